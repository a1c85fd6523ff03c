"""What was saved of a session is there whole and to its owner alone, or it is refused."""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bridge
from bridge.engine.sessions import checkpoints
from bridge.engine.sessions.checkpoints import Checkpoint, Checkpoints, Opened
from bridge.engine.sessions.surplus import owner_digest
from bridge.model import Loss

DAY = 24 * 3600.0

ONE = Checkpoint(
    session_id="s-1",
    name="plots",
    run=3,
    lost=(Loss(name="f", why="it is an open file"),),
    facts={"servers": ["git"], "packages": []},
)


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def kept(tmp_path: Path, clock: Time) -> Checkpoints:
    return Checkpoints(tmp_path / "sessions", days=7, now=clock)


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "sessions").rglob("*") if path.is_file())


def test_what_is_saved_comes_back_as_it_was(kept: Checkpoints, clock: Time) -> None:
    data = bytes(range(256)) * 10 + b"\n\n"
    kept.save("me", ONE, data)
    expected = replace(ONE, created=clock.now, saved=clock.now, size=len(data))
    opened = kept.load("me", "s-1")
    assert (opened.checkpoint, opened.data, opened.why) == (expected, data, "")
    for key in ("s-1", "plots"):
        assert kept.find("me", key).checkpoint == expected
    assert kept.listed("me") == (expected,)


def test_saving_again_replaces_and_remembers_when_it_began(kept: Checkpoints, clock: Time) -> None:
    kept.save("me", ONE, b"one")
    clock.now += 50
    kept.save("me", replace(ONE, run=4), b"two")
    opened = kept.load("me", "s-1")
    assert opened.checkpoint is not None
    assert (opened.checkpoint.run, opened.data) == (4, b"two")
    assert opened.checkpoint.saved - opened.checkpoint.created == 50
    assert len(kept.listed("me")) == 1


def test_of_several_of_a_name_the_last_saved_is_found(kept: Checkpoints, clock: Time) -> None:
    for number in range(3):
        clock.now += 1
        kept.save("me", replace(ONE, session_id=f"s-{number}"), b"x")
    found = kept.find("me", "plots").checkpoint
    assert found is not None
    assert found.session_id == "s-2"
    assert [each.session_id for each in kept.listed("me")] == ["s-2", "s-1", "s-0"]


def test_nobody_has_anothers(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE, b"mine")
    for key in ("s-1", "plots"):
        assert kept.find("you", key) == Opened()
    assert kept.load("you", "s-1").checkpoint is None
    assert kept.forget("you", "s-1") is False
    # Nor by having it moved.
    (mine,) = files(tmp_path)
    theirs = tmp_path / "sessions" / owner_digest("you") / mine.name
    theirs.parent.mkdir()
    mine.rename(theirs)
    assert kept.listed("you") == ()
    assert kept.load("you", "s-1").why == "its checkpoint is somebody else's"


def test_files_are_this_users_alone_and_show_no_names(kept: Checkpoints, tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    root.mkdir(mode=0o755)
    kept.save("../../me", replace(ONE, session_id="../../etc/passwd"), b"x")
    (file,) = files(tmp_path)
    assert file.parent.parent == root
    assert file.parent.name == hashlib.sha256(b"../../me").hexdigest()[:32]
    assert [p.stat().st_mode & 0o777 for p in (root, file.parent, file)] == [0o700, 0o700, 0o600]
    assert not any(word in str(file) for word in ("passwd", "plots", "me/"))


def test_any_changed_byte_is_noticed(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE, b"the state")
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        opened = kept.load("me", "s-1")
        assert opened.checkpoint is None, place
        assert opened.why == "its checkpoint is damaged, or somebody changed it"
    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        assert kept.load("me", "s-1").why, size
        kept.listed("me")
    file.write_bytes(whole + b"x")
    assert kept.load("me", "s-1").why
    kept.save("me", ONE, b"anew")
    assert kept.load("me", "s-1").data == b"anew"


def sealed(head: bytes, data: bytes = b"") -> bytes:
    digest = hashlib.sha256(head + b"\n" + data).hexdigest().encode()
    return digest + b"\n" + head + b"\n" + data


@pytest.mark.parametrize(
    "head",
    [b"", b"{}", b"[1]", b"null", b"[" * 100_000, b'{"version": 1}', b"\xff", b'{"version": "1"}'],
)
def test_a_file_that_says_nothing_is_refused(
    kept: Checkpoints, tmp_path: Path, head: bytes
) -> None:
    kept.save("me", ONE, b"x")
    (file,) = files(tmp_path)
    file.write_bytes(sealed(head))
    assert kept.load("me", "s-1").why == "its checkpoint is damaged"
    assert kept.listed("me") == ()


def test_another_version_and_another_session_are_refused_by_reason(
    kept: Checkpoints, tmp_path: Path
) -> None:
    kept.save("me", ONE, b"x")
    (file,) = files(tmp_path)
    _, head, data = file.read_bytes().split(b"\n")
    file.write_bytes(sealed(head.replace(b'"version": 1', b'"version": 2'), data))
    why = "its checkpoint is of version 2, and this bridge reads version 1"
    assert kept.load("me", "s-1").why == why
    file.write_bytes(sealed(head.replace(b'"id": "s-1"', b'"id": "s-2"'), data))
    assert kept.load("me", "s-1").why == "its checkpoint is another session's"
    file.write_bytes(sealed(head, data + b"y"))
    assert kept.load("me", "s-1").why == "its checkpoint is another session's"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_plain_files_are_read(kept: Checkpoints, tmp_path: Path, kind: str) -> None:
    kept.save("me", ONE, b"x")
    (file,) = files(tmp_path)
    aside = tmp_path / "aside"
    file.rename(aside)
    match kind:
        case "link":
            file.symlink_to(aside)
        case "pipe":
            os.mkfifo(file)
        case _:
            file.mkdir()
    assert kept.load("me", "s-1").why.startswith("its checkpoint cannot be read")
    assert kept.listed("me") == ()


def test_time_makes_it_go(kept: Checkpoints, tmp_path: Path, clock: Time) -> None:
    kept.save("me", ONE, b"x")
    (file,) = files(tmp_path)
    clock.now += 7 * DAY
    assert kept.load("me", "s-1").checkpoint is not None
    clock.now += 1
    assert kept.load("me", "s-1").checkpoint is None
    assert kept.listed("me") == ()
    os.utime(file, (clock.now - 8 * DAY, clock.now - 8 * DAY))
    assert kept.tidy() == 1
    assert list((tmp_path / "sessions").iterdir()) == []


def test_of_too_much_the_oldest_go(kept: Checkpoints, tmp_path: Path, clock: Time) -> None:
    for number in range(5):
        before = files(tmp_path)
        kept.save("me", replace(ONE, session_id=f"s-{number}"), bytes(3000))
        (made,) = set(files(tmp_path)) - set(before)
        os.utime(made, (clock.now + number, clock.now + number))
    small = Checkpoints(tmp_path / "sessions", days=7, total_bytes=10_500, now=clock)
    assert small.tidy() == 2
    assert sorted(each.session_id for each in small.listed("me")) == ["s-2", "s-3", "s-4"]
    with pytest.raises(OSError, match="larger than what is kept"):
        small.save("me", ONE, bytes(10_501))


def test_of_too_much_what_goes_is_of_the_owner_who_has_most(
    kept: Checkpoints, tmp_path: Path, clock: Time
) -> None:
    """Though it is newer; and however many come over HTTP, half is the person's."""
    whose = ["me", "stdio", *["you"] * 4, *(f"invented {number}" for number in range(4))]
    for number, owner in enumerate(whose):
        before = files(tmp_path)
        kept.save(owner, replace(ONE, session_id=f"s-{number}"), bytes(3000))
        (made,) = set(files(tmp_path)) - set(before)
        os.utime(made, (clock.now + number, clock.now + number))
    small = Checkpoints(tmp_path / "sessions", days=7, total_bytes=28_000, now=clock)
    assert small.tidy() == 2
    assert sorted(each.session_id for each in small.listed("you")) == ["s-4", "s-5"]
    smaller = Checkpoints(tmp_path / "sessions", days=7, total_bytes=7_000, now=clock)
    smaller.tidy()
    assert len(smaller.listed("stdio")) == 1
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, b"\0" * 64 + b"\n{}\n"])
def test_a_checkpoint_that_says_not_whose_it_is_is_told_of_where_it_may_be_meant(
    kept: Checkpoints, tmp_path: Path, damage: bytes
) -> None:
    """By its id for sure, by any name that is not known as what may be; others are as they were."""
    kept.save("me", ONE, b"x")
    (file,) = files(tmp_path)
    kept.save("me", replace(ONE, session_id="s-2", name="whole"), b"y")
    file.write_bytes(damage)
    assert kept.find("me", "s-1").why.startswith("its checkpoint ")
    assert "maybe of this one" in kept.find("me", "plots").why
    for key in ("s-2", "whole"):
        assert kept.find("me", key) == Opened(checkpoint=kept.listed("me")[0])
    assert kept.find("you", "plots") == Opened()
    # The next to be saved under that id takes its place.
    kept.save("me", ONE, b"again")
    assert kept.load("me", "s-1").data == b"again"


def test_an_owner_has_a_share_of_the_sessions(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_OF_OWNER", 3)
    for number in range(5):
        kept.save("me", replace(ONE, session_id=f"s-{number}"), b"x")
    kept.save("you", ONE, b"x")
    assert kept.tidy() == 2
    assert (len(kept.listed("me")), len(kept.listed("you"))) == (3, 1)


def test_forgetting_leaves_nothing(kept: Checkpoints, tmp_path: Path) -> None:
    assert kept.forget("me", "s-1") is False
    kept.save("me", ONE, b"x")
    assert kept.forget("me", "s-1") is True
    assert files(tmp_path) == []
    assert kept.load("me", "s-1").why == ""


def test_what_cannot_be_saved_leaves_what_was(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save("me", ONE, b"x")
    with pytest.raises(OSError, match="larger than what is kept"):
        kept.save("me", replace(ONE, facts={"much": "y" * 2_000_000}), b"y")
    assert kept.load("me", "s-1").data == b"x"
    blocked = Checkpoints(files(tmp_path)[0], days=7)
    with pytest.raises(OSError, match="."):
        blocked.save("me", ONE, b"y")


def test_several_bridges_share_a_directory_and_the_last_to_save_wins(
    kept: Checkpoints, tmp_path: Path, clock: Time
) -> None:
    other = Checkpoints(tmp_path / "sessions", days=7, now=clock)
    kept.save("me", ONE, b"one")
    other.save("me", ONE, b"two")
    assert kept.load("me", "s-1").data == b"two"
    kept.save("me", ONE, b"three")
    assert other.load("me", "s-1").data == b"three"


SAVER = """
import os, signal, sys, tempfile
from pathlib import Path
from bridge.engine.sessions.checkpoints import Checkpoint, Checkpoints

def at(owner, name, after):
    real = getattr(owner, name)
    def die(*args, **kwargs):
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, die)

class Half:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *error): self.file.close()
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

def save(root, point):
    kept = Checkpoints(root, days=7)
    one = Checkpoint(session_id="s-1", name="n", run=1)
    kept.save("me", one, b"old" * 100_000)
    what, _, when = point.partition(" ")
    if what == "making":
        at(tempfile, "mkstemp", when == "after")
    elif what == "writing":
        real = os.fdopen
        os.fdopen = lambda fd, mode: Half(real(fd, mode)) if "w" in mode else real(fd, mode)
    else:
        at(Path, "replace", when == "after")
    kept.save("me", one, b"new" * 100_000)

for point in sys.argv[2:]:
    child = os.fork()
    if not child:
        save(Path(sys.argv[1], point), point)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""

POINTS = {
    "making before": b"old",
    "making after": b"old",
    "writing half": b"old",
    "renaming before": b"old",
    "renaming after": b"new",
}


def test_a_bridge_that_is_killed_while_it_saves_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    # One process for all points: to import the engine takes longer than everything else here.
    command = [sys.executable, "-c", SAVER, str(tmp_path), *POINTS]
    saver = subprocess.run(command, check=True, capture_output=True, text=True)
    assert saver.stdout.split() == [str(int(signal.SIGKILL))] * len(POINTS)
    for point, expected in POINTS.items():
        kept = Checkpoints(tmp_path / point, days=7)
        opened = kept.load("me", "s-1")
        assert (opened.why, opened.data) == ("", expected * 100_000), point
        every = [path for path in (tmp_path / point).rglob("*") if path.is_file()]
        # What was begun goes with time, and the rest stays.
        for file in every:
            if not file.name.endswith(".session"):
                os.utime(file, (0, 0))
        kept.tidy()
        assert [file.exists() for file in every] == [file.suffix == ".session" for file in every]
        assert kept.load("me", "s-1").data == expected * 100_000


def test_nothing_on_the_host_unpickles() -> None:
    """What a state holds is for sandboxes; to unpickle it is to run it."""
    root = Path(bridge.__file__).parent
    for file in root.rglob("*.py"):
        if file.is_relative_to(root / "guest"):
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [node.module or "", *(alias.name for alias in node.names)]
            for name in imported:
                assert name.partition(".")[0] not in (
                    "pickle",
                    "_pickle",
                    "cloudpickle",
                    "shelve",
                ), file
