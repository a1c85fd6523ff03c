"""A client's file is replaced whole or not at all, and no edit of another program is lost."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.client_configs.journal import (
    UNFINISHED,
    Journal,
    MoveRecord,
    digest,
    missing_directories,
    remove_directories,
    rewrite,
)
from bridge.errors import UneditableError
from tests.raised import raises_code


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def append(content: bytes | None) -> bytes | None:
    return (content or b"") + b"new"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.json"
    path.write_bytes(b"old")
    return path


def test_a_file_keeps_its_mode_and_owner(file: Path) -> None:
    file.chmod(0o640)
    similar = file.parent / f"{UNFINISHED}notes.txt"
    similar.write_bytes(b"a user's file")
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    before = file.stat()
    assert rewrite(file, append) == b"oldnew"
    after = file.stat()
    assert file.read_bytes() == b"oldnew"
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)
    assert after.st_gid == before.st_gid
    assert names(file.parent) == [similar.name, file.name]
    rewrite(file, lambda content: content)
    assert file.stat() == after


def test_a_new_file_is_private_and_its_new_directories_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "client.json"
    made = missing_directories(path)
    rewrite(path, append)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made == (tmp_path / "a", tmp_path / "a" / "b")
    assert rewrite(path, lambda content: None) is None
    assert not path.exists()
    remove_directories(made)
    assert names(tmp_path) == []


def test_a_failed_edit_removes_its_new_directories(tmp_path: Path) -> None:
    def fail(before: bytes | None, after: bytes | None) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UneditableError, match="No space left on device"):
        rewrite(tmp_path / "a" / "client.json", append, before_replace=fail)
    assert names(tmp_path) == []


@pytest.mark.parametrize("before", [b"old", None])
def test_links_stay_and_their_target_is_written(tmp_path: Path, before: bytes | None) -> None:
    real = tmp_path / "dotfiles" / "client.json"
    if before is not None:
        real.parent.mkdir()
        real.write_bytes(before)
    (tmp_path / "second").symlink_to("dotfiles/client.json")
    named = tmp_path / "client.json"
    named.symlink_to(tmp_path / "second")
    rewrite(named, append)
    assert named.is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert real.read_bytes() == (before or b"") + b"new"


def put_twice(path: Path) -> None:
    path.touch()
    path.with_name("second").hardlink_to(path)


REFUSED: dict[str, Callable[[Path], object]] = {
    "cannot be written": lambda path: path.symlink_to(path.name),
    "read-only": lambda path: path.touch(0o444),
    "hard links": put_twice,
    "no regular file": os.mkfifo,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_unreplaceable_file_is_refused(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "client.json"
    REFUSED[reason](path)
    with pytest.raises(UneditableError, match=reason) as caught:
        rewrite(path, append)
    assert str(path) in str(caught.value)
    assert path.is_symlink() or path.stat().st_size == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_refused(file: Path) -> None:
    file.parent.chmod(0o555)
    try:
        with pytest.raises(UneditableError, match="Permission denied"):
            rewrite(file, append)
    finally:
        file.parent.chmod(0o755)


@pytest.mark.parametrize("old", [b"old", None])
def test_another_program_s_write_is_edited_too(file: Path, old: bytes | None) -> None:
    calls: list[object] = []
    if old is None:
        file.unlink()

    def race(before: bytes | None, after: bytes | None) -> None:
        if not calls:
            file.write_bytes(b"theirs")
        calls.append((before, after))

    rewrite(file, append, before_replace=race)
    assert calls == [(old, append(old)), (b"theirs", b"theirsnew")]
    assert file.read_bytes() == b"theirsnew"
    assert names(file.parent) == [file.name]


def test_a_program_that_never_stops_writing_keeps_its_file(file: Path) -> None:
    calls: list[object] = []

    def race(before: bytes | None, after: bytes | None) -> None:
        calls.append(before)
        file.write_bytes(b"theirs %d" % len(calls))

    with raises_code("changed_meanwhile"):
        rewrite(file, append, before_replace=race)
    assert file.read_bytes() == b"theirs 3"
    assert names(file.parent) == [file.name]


KILLED = """
import os, signal, sys
from itertools import count
from pathlib import Path
from bridge.client_configs.journal import UNFINISHED, Journal, MoveRecord, digest, rewrite

path, journal = Path(sys.argv[1], "client.json"), Journal(Path(sys.argv[1], "state"))

def record(before, after):
    journal.add(MoveRecord(path=str(path), action="install", name="n",
                           before=before, after_sha256=digest(after)))

def run(step):
    left = [step]
    def hook(event, args):
        if event == "open" or event.startswith(("os.", "tempfile.")):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    rewrite(path, lambda content: b"new" if content == b"old" else b"old", before_replace=record)
    os._exit(0)

for step in count(1):
    before = path.read_bytes()
    pid = os.fork()
    if not pid:
        run(step)
    status = os.waitpid(pid, 0)[1]
    present = path.read_bytes()
    made = present != before
    assert present in (b"old", b"new"), present
    latest = (journal.records() or [None])[-1]
    assert not made or latest.describes(present) and latest.before == before
    print("made" if made else "kept")
    if not status:
        break
assert not [name for name in os.listdir(path.parent) if name.startswith(UNFINISHED)]
"""


def test_a_bridge_killed_at_any_step_leaves_the_old_file_or_the_new(file: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(file.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = done.stdout.split()
    assert steps.count("kept") > 10
    assert steps[-2:] == ["made", "made"]
    assert names(file.parent) == ["client.json", "state"]


FULL = """
import resource, signal, sys
from pathlib import Path
from bridge.client_configs.journal import rewrite
from bridge.errors import UneditableError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    rewrite(Path(sys.argv[1]), lambda content: b"x" * 100_000)
except UneditableError as error:
    print(error)
"""


def test_a_full_disk_keeps_the_old_file(file: Path) -> None:
    output = subprocess.check_output([sys.executable, "-c", FULL, str(file)], text=True)
    assert ("File too large" in output, str(file) in output) == (True, True)
    assert file.read_bytes() == b"old"
    assert names(file.parent) == [file.name]


INSTALLED = MoveRecord(
    path="/home/me/.cursor/mcp.json",
    action="move",
    name="code-bridge",
    before=b"\xff old",
    after_sha256=digest(b"new"),
    made_directories=("/home/me/.cursor",),
)


def test_records_are_private_and_describe_the_content_after(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "clients")
    assert journal.records() == []
    assert not journal.directory.exists()
    first, second, third = (journal.add(INSTALLED) for _ in range(3))
    assert replace(first, id="") == INSTALLED
    assert stat.S_IMODE(journal.directory.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in journal.directory.iterdir()}
    assert modes == {0o600}
    journal.drop(second.id)
    (journal.directory / f"{third.id}.json").write_text("{")
    assert journal.records() == [first]
    assert list(map(INSTALLED.describes, (b"new", b"newer", None))) == [True, False, False]
    assert replace(INSTALLED, after_sha256=digest(None)).describes(None)
