"""What was saved of a session is there whole and to its owner alone, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import Loss
from bridge.sessions import checkpoints
from bridge.sessions.checkpoints import Checkpoints, Saved
from bridge.store.schema import sessions
from tests.audit_rig import FakeClock
from tests.postgresql import store_at

pytestmark = [
    pytest.mark.usefixtures("each_database"),
    pytest.mark.guarantee("checkpoints", "kept-apart", "shares"),
    pytest.mark.every_case,
]

DAY = 24 * 3600.0
DAMAGED = (None, "its checkpoint is damaged, or somebody changed it")

ONE = Saved(
    session_id="s-1",
    name="plots",
    run=3,
    data=bytes(range(256)) * 10,
    lost=(Loss(name="f", why="it is an open file"),),
    facts={"servers": ["git"], "packages": []},
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def kept(tmp_path: Path, clock: FakeClock) -> Checkpoints:
    return Checkpoints(store_at(tmp_path), days=7, now=clock)


def contents(tmp_path: Path) -> list[Path]:
    files = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    store = store_at(tmp_path)
    return files if not store.shared else [*files, *map(Path, store.blobs.all())]


on_files = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)


async def test_what_is_saved_comes_back_as_it_was(kept: Checkpoints, clock: FakeClock) -> None:
    kept.write("me", ONE)
    expected = replace(ONE, moment=clock.now)
    assert kept.loaded("me", "s-1") == (expected, "")
    for key in ("s-1", "plots"):
        assert await kept.find("me", key) == (replace(expected, data=b""), "")
    assert kept.all("me") == (replace(expected, data=b""),)


def test_saving_again_replaces_and_leaves_nothing_of_before(
    kept: Checkpoints, tmp_path: Path
) -> None:
    kept.write("me", ONE)
    kept.write("me", replace(ONE, run=4, data=b"two"))
    found, _ = kept.loaded("me", "s-1")
    assert found is not None
    assert (found.run, found.data) == (4, b"two")
    assert len(kept.all("me")) == len(contents(tmp_path)) == 1


async def test_of_several_of_a_name_the_last_saved_is_found(
    kept: Checkpoints, clock: FakeClock
) -> None:
    for number in range(3):
        clock.now += 1
        kept.write("me", replace(ONE, session_id=f"s-{number}"))
    found, _ = await kept.find("me", "plots")
    assert found is not None
    assert found.session_id == "s-2"
    assert [each.session_id for each in kept.all("me")] == ["s-2", "s-1", "s-0"]


async def test_no_one_has_anothers(kept: Checkpoints) -> None:
    kept.write("me", ONE)
    for key in ("s-1", "plots"):
        assert await kept.find("you", key) == (None, "")
    assert kept.loaded("you", "s-1") == (None, "")
    assert kept.remove("you", "s-1") is False


@on_files
def test_a_changed_state_is_noticed(kept: Checkpoints, tmp_path: Path) -> None:
    kept.write("me", ONE)
    (file,) = contents(tmp_path)
    whole = file.read_bytes()
    for other in (whole[:-1], whole + b"x", b"", bytes([whole[0] ^ 1]) + whole[1:]):
        file.write_bytes(other)
        assert kept.loaded("me", "s-1") == DAMAGED
    file.unlink()
    found, why = kept.loaded("me", "s-1")
    assert found is None
    assert why.startswith("its checkpoint cannot be read")
    kept.write("me", ONE)
    assert kept.loaded("me", "s-1")[0] is not None


@pytest.mark.parametrize("facts", ["", "{}", "[1]", "null", "[" * 100_000, '{"id": 1, "run": 1}'])
def test_a_row_that_says_nothing_is_refused(kept: Checkpoints, tmp_path: Path, facts: str) -> None:
    kept.write("me", ONE)
    with store_at(tmp_path).writing() as database:
        assert database.connection is not None
        database.connection.execute(sessions.update().values(facts=facts))
    assert kept.loaded("me", "s-1") == DAMAGED
    assert kept.all("me") == ()


def test_time_makes_it_go(kept: Checkpoints, tmp_path: Path, clock: FakeClock) -> None:
    kept.write("me", ONE)
    clock.now += 7 * DAY
    assert kept.loaded("me", "s-1")[0] is not None
    clock.now += 1
    assert kept.loaded("me", "s-1") == (None, "")
    assert kept.all("me") == ()
    assert kept.tidy() == 1
    assert contents(tmp_path) == []


def test_of_too_much_the_oldest_go(kept: Checkpoints, tmp_path: Path, clock: FakeClock) -> None:
    for number in range(5):
        clock.now += 1
        kept.write("me", replace(ONE, session_id=f"s-{number}", data=bytes([number]) * 3000))
    small = Checkpoints(store_at(tmp_path), days=7, total_bytes=10_500, now=clock)
    assert small.tidy() == 2
    assert sorted(each.session_id for each in small.all("me")) == ["s-2", "s-3", "s-4"]
    with pytest.raises(OSError, match="larger than the limit"):
        small.write("me", replace(ONE, data=bytes(10_501)))


def test_an_owner_has_a_share_of_the_sessions(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_OF_OWNER", 3)
    for number in range(5):
        kept.write("me", replace(ONE, session_id=f"s-{number}"))
    kept.write("you", ONE)
    assert kept.tidy() == 2
    assert (len(kept.all("me")), len(kept.all("you"))) == (3, 1)


def test_forgetting_leaves_nothing(kept: Checkpoints, tmp_path: Path) -> None:
    assert kept.remove("me", "s-1") is False
    assert not list(tmp_path.iterdir())
    kept.write("me", ONE)
    kept.write("you", ONE)
    assert kept.remove("me", "s-1") is True
    # The same state of another's stays.
    assert kept.loaded("you", "s-1")[0] is not None
    assert kept.remove("you", "s-1") is True
    assert contents(tmp_path) == []
    assert kept.loaded("me", "s-1") == (None, "")


async def test_what_cannot_be_saved_leaves_what_was(kept: Checkpoints, tmp_path: Path) -> None:
    kept.write("me", ONE)
    (tmp_path / "file").touch()
    blocked = Checkpoints(store_at(tmp_path / "file"), days=7)
    assert "could not write it down" in await blocked.save("me", ONE)
