"""What was saved of a session is there whole and to its owner alone, or it is refused."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import Loss
from bridge.sessions import checkpoints
from bridge.sessions.checkpoints import Checkpoints, Claims, Saved
from bridge.store.schema import sessions
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
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(store_at(tmp_path), days=7)


def change(tmp_path: Path, **values: object) -> None:
    """Change columns of all rows."""
    store_at(tmp_path).execute(sessions.update().values(**values))


def rows(tmp_path: Path) -> int:
    return len(store_at(tmp_path).query(sessions.select()))


on_files = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)


def test_what_is_saved_comes_back_as_it_was(kept: Checkpoints) -> None:
    before = time.time()
    kept.save("me", ONE)
    found, _ = kept.load("me", "s-1")
    assert found is not None
    expected = replace(ONE, moment=found.moment)
    assert found == expected
    assert abs(found.moment - before) < 60
    for key in ("s-1", "plots"):
        assert kept.find("me", key) == (replace(expected, data=b""), "")
    assert kept.all("me") == (replace(expected, data=b""),)


def test_saving_again_replaces_and_leaves_nothing_of_before(
    kept: Checkpoints, tmp_path: Path
) -> None:
    kept.save("me", ONE)
    kept.save("me", replace(ONE, run=4, data=b"two"))
    found, _ = kept.load("me", "s-1")
    assert found is not None
    assert (found.run, found.data) == (4, b"two")
    assert len(kept.all("me")) == rows(tmp_path) == 1


def test_of_several_of_a_name_the_last_saved_is_found(kept: Checkpoints) -> None:
    for number in range(3):
        kept.save("me", replace(ONE, session_id=f"s-{number}"))
    found, _ = kept.find("me", "plots")
    assert found is not None
    assert found.session_id == "s-2"
    assert [each.session_id for each in kept.all("me")] == ["s-2", "s-1", "s-0"]


def test_no_one_has_anothers(kept: Checkpoints) -> None:
    kept.save("me", ONE)
    for key in ("s-1", "plots"):
        assert kept.find("you", key) == (None, "")
    assert kept.load("you", "s-1") == (None, "")
    assert kept.remove("you", "s-1") is False


def test_a_changed_state_is_noticed(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE)
    whole = ONE.data
    for other in (whole[:-1], whole + b"x", b"", bytes([whole[0] ^ 1]) + whole[1:], None):
        change(tmp_path, state=other)
        assert kept.load("me", "s-1") == DAMAGED
    kept.save("me", ONE)
    assert kept.load("me", "s-1")[0] is not None


@pytest.mark.parametrize("facts", ["", "{}", "[1]", "null", "[" * 100_000, '{"id": 1, "run": 1}'])
def test_a_row_that_says_nothing_is_refused(kept: Checkpoints, tmp_path: Path, facts: str) -> None:
    kept.save("me", ONE)
    change(tmp_path, facts=facts)
    assert kept.load("me", "s-1") == DAMAGED
    assert kept.all("me") == ()


def test_time_makes_it_go(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE)
    change(tmp_path, saved=sessions.c.saved - 7 * DAY + 60)
    assert kept.load("me", "s-1")[0] is not None
    assert kept.tidy() == 0
    change(tmp_path, saved=sessions.c.saved - 61)
    assert kept.load("me", "s-1") == (None, "")
    assert kept.all("me") == ()
    assert kept.tidy() == 1
    assert rows(tmp_path) == 0


def test_of_too_much_the_oldest_go(kept: Checkpoints, tmp_path: Path) -> None:
    small = Checkpoints(store_at(tmp_path), days=7, total_bytes=10_500)
    for number in range(5):
        small.save("me", replace(ONE, session_id=f"s-{number}", data=bytes([number]) * 3000))
    assert sorted(each.session_id for each in small.all("me")) == ["s-2", "s-3", "s-4"]
    assert "larger than the limit" in small.save("me", replace(ONE, data=bytes(10_501)))


def test_an_owner_has_a_share_of_the_sessions(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_OF_OWNER", 3)
    for number in range(5):
        kept.save("me", replace(ONE, session_id=f"s-{number}"))
    kept.save("you", ONE)
    assert kept.tidy() == 2
    assert (len(kept.all("me")), len(kept.all("you"))) == (3, 1)


def test_a_save_is_made_even_if_nothing_can_be_tidied(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise OSError("the database is locked")

    monkeypatch.setattr(kept, "tidy", fail)
    assert kept.save("me", ONE) == ""


async def test_a_session_with_a_claim_does_not_go_and_one_whose_claim_lapsed_does(
    kept: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.save("me", ONE)
    claims = Claims(store_at(tmp_path), "a")
    await claims.claim("me", "s-1")
    await claims.claim("me", "never saved")
    change(tmp_path, saved=sessions.c.saved - 8 * DAY)
    assert kept.tidy() == 0
    claimed = Checkpoints(store_at(tmp_path), days=7, claims=claims)
    assert claimed.save("me", replace(ONE, run=4)) == ""
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", -60.0)
    assert kept.tidy() == 1
    assert [each.run for each in kept.all("me")] == [4]


def test_forgetting_leaves_nothing(kept: Checkpoints, tmp_path: Path) -> None:
    assert kept.remove("me", "s-1") is False
    assert not list(tmp_path.iterdir())
    kept.save("me", ONE)
    kept.save("you", ONE)
    assert kept.remove("me", "s-1") is True
    # The same state of another's stays.
    assert kept.load("you", "s-1")[0] is not None
    assert kept.remove("you", "s-1") is True
    assert rows(tmp_path) == 0
    assert kept.load("me", "s-1") == (None, "")


@on_files
def test_what_cannot_be_saved_leaves_what_was(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE)
    (tmp_path / "file").touch()
    blocked = Checkpoints(store_at(tmp_path / "file"), days=7)
    assert "could not write it down" in blocked.save("me", ONE)
