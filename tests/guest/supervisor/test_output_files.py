"""What is read of `out`, whatever a program put there, and what is said of the rest."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.guest.processes import file_version
from bridge.guest.protocol.wire import File, decode_guest_frame, encode
from bridge.guest.supervisor import output_files as collecting
from bridge.guest.supervisor.output_files import MAX_DEPTH, FileCollector
from bridge.runs.program import COLLECT_SECONDS

pytestmark = pytest.mark.guarantee("files-out")

LIMITS = {"out_bytes": 1024 * 1024, "out_files": 100}
LINK = "it is a symbolic link; only regular files are read"
NO_FILE = "it is a pipe, a socket or a device; only regular files are read"


class Taken:
    def __init__(self, before: Callable[[File], None]) -> None:
        self.frames: list[File] = []
        self.before = before

    def send(self, frame: File) -> None:
        self.before(frame)
        again = decode_guest_frame(encode(frame).rstrip(b"\n"))
        assert isinstance(again, File)
        self.frames.append(again)

    @property
    def files(self) -> Mapping[str, bytes]:
        parts: dict[str, bytes] = {}
        whole: dict[str, bytes] = {}
        for frame in self.frames:
            if frame.problem:
                parts.pop(frame.name, None)
                continue
            parts[frame.name] = parts.get(frame.name, b"") + frame.data
            if not frame.more:
                assert len(parts[frame.name]) == frame.size
                whole[frame.name] = parts.pop(frame.name)
        assert not parts
        return whole

    @property
    def problems(self) -> Mapping[str, str]:
        return {frame.name: frame.problem for frame in self.frames if frame.problem}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def collect(
    out: Path,
    limits: Mapping[str, int] = LIMITS,
    before: Callable[[File], None] = lambda frame: None,
    **options: Any,
) -> Taken:
    taken = Taken(before)
    FileCollector().collect(taken.send, limits, root=str(out.parent), **options)
    return taken


def test_regular_files_come_whole_in_order_by_their_names_below_it(out: Path) -> None:
    large = os.urandom(2 * collecting.PIECE_BYTES + 1)
    (out / "b").write_bytes(large)
    (out / "a" / "x").mkdir(parents=True)
    (out / "a" / "x" / "é\N{NO-BREAK SPACE}.txt").write_bytes(b"1")
    (out / "c").touch()
    os.link(out / "c", out / "d")
    taken = collect(out)
    assert taken.files == {"a/x/é\N{NO-BREAK SPACE}.txt": b"1", "b": large, "c": b"", "d": b""}
    assert [frame.name for frame in taken.frames] == ["a/x/é\N{NO-BREAK SPACE}.txt", *"bbbcd"]
    assert not taken.problems


def test_nothing_is_sent_for_nothing(out: Path) -> None:
    assert collect(out).frames == []
    out.rmdir()
    assert collect(out).frames == []


def test_links_devices_pipes_and_sockets_are_named_and_not_opened(out: Path) -> None:
    (out.parent / ".secret").write_text("not in out")
    (out / "absolute").symlink_to("/etc/passwd")
    (out / "relative").symlink_to("../.secret")
    (out / "circle").symlink_to("circle")
    (out / "above").symlink_to("..")
    os.mkfifo(out / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(out / "socket"))
        taken = collect(out)
    assert taken.files == {}
    assert taken.problems == {
        **dict.fromkeys(("above", "absolute", "circle", "relative"), LINK),
        **dict.fromkeys(("pipe", "socket"), NO_FILE),
    }


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "file"])
def test_something_else_in_place_of_it_is_not_followed(out: Path, kind: str) -> None:
    out.rmdir()
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "file":
        out.write_text("x")
    else:
        out.symlink_to("/etc" if kind == "link" else "/nowhere")
    taken = collect(out)
    assert taken.files == {}
    assert list(taken.problems) == ["out"]
    assert taken.problems["out"].startswith("it is ")


def test_a_mount_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "OUT", "proc")
    taken = collect(Path("/proc"), placed={path.name: None for path in Path("/").iterdir()})
    assert taken.problems == {"proc": "something else is mounted there"}


def test_too_much_is_left_out_before_it_is_read(out: Path) -> None:
    with (out / "1-sparse").open("wb") as file:
        file.truncate(1 << 40)
    (out / "2-first").write_bytes(b"x" * (LIMITS["out_bytes"] - 10))
    (out / "3-much").write_bytes(b"x" * 11)
    (out / "4-fits").write_bytes(b"x" * 10)
    taken = collect(out)
    assert list(taken.files) == ["2-first", "4-fits"]
    assert taken.problems == {
        "1-sparse": "its 1,099,511,627,776 bytes are too many: a run may leave 1,048,576 bytes in "
        "all, of which 1,048,576 were free",
        "3-much": "its 11 bytes are too many: a run may leave 1,048,576 bytes in all, of which 10 "
        "were free",
    }


def test_memory_stays_small_whatever_the_size(out: Path) -> None:
    with (out / "sparse").open("wb") as file:
        file.truncate(48 << 20)
    sizes: list[int] = []
    tracemalloc.start()
    try:
        send = lambda frame: sizes.append(len(frame.data))  # noqa: E731
        FileCollector().collect(send, {"out_bytes": 1 << 30}, root=str(out.parent))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 48 << 20
    assert peak < 8 * collecting.PIECE_BYTES


@pytest.mark.parametrize("change", ["grows", "shrinks", "is written to"])
def test_a_file_that_changes_while_it_is_read_does_not_come_torn(out: Path, change: str) -> None:
    path = out / "log"
    path.write_bytes(b"x" * (collecting.PIECE_BYTES + 1))

    def disturb(frame: File) -> None:
        if not frame.more:
            return
        if change == "shrinks":
            os.truncate(path, 10)
        else:
            with path.open("r+b") as file:
                file.seek(0, os.SEEK_END if change == "grows" else os.SEEK_SET)
                file.write(b"y")
            # A clock that stood still must not hide it here.
            os.utime(path, ns=(1, 1))

    taken = collect(out, before=disturb)
    assert (taken.files, taken.problems) == ({}, {"log": "it changed while it was read"})


def test_a_name_that_comes_to_be_a_link_is_not_followed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "a").write_text("x")
    (out / "b").write_text("x")
    (out / "c").mkdir()

    def switch(above: int, name: str, flags: int) -> int:
        if name in ("a", "b", "c"):
            (out / name).rename(out.parent / f".{name}")
            if name == "b":
                os.mkfifo(out / name)
            else:
                (out / name).symlink_to("/etc/passwd" if name == "a" else "/etc")
        return os.open(name, flags, dir_fd=above)

    monkeypatch.setattr(collecting, "open_below", switch)
    taken = collect(out)
    assert taken.files == {}
    assert taken.problems == {"a": LINK, "b": NO_FILE, "c": LINK}


def test_a_directory_that_is_moved_away_leads_nowhere_else(out: Path) -> None:
    (out / "a").mkdir()
    (out / "a" / "1").write_text("x")
    (out / "a" / "2").write_text("y")

    def move(frame: File) -> None:
        if frame.name == "a/1":
            (out / "a").rename(out.parent / "b")
            (out / "a").symlink_to("/etc")

    assert collect(out, before=move).files == {"a/1": b"x", "a/2": b"y"}


def test_deep_and_many_and_odd_names_end_in_a_few_words(out: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"x" * 255, b"-rf", b"..."]
    for name in names:
        (Path(os.fsdecode(bytes(out) + b"/" + name))).write_bytes(b"1")
    deep = out
    for _ in range(MAX_DEPTH + 3):
        deep /= "d"
        deep.mkdir()
    (deep / "lost").touch()
    taken = collect(out)
    assert {os.fsencode(name) for name in taken.files} == set(names)
    assert taken.problems == {
        "/".join("d" * (MAX_DEPTH + 1)): f"it is more than {MAX_DEPTH} directories deep"
    }


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("x")])
def test_of_very_many_names_the_first_are_looked_at(
    out: Path, make: Callable[[Path], None]
) -> None:
    (out / "a").mkdir()
    for number in range(12):
        make(out / "a" / f"{number:02}")
    taken = collect(out, {**LIMITS, "out_files": 10})
    assert [*taken.files] + [name for name in taken.problems if name] == [
        f"a/{number:02}" for number in range(10)
    ]
    assert taken.problems[""] == (
        "more than 10 files: put them into one archive; the rest was left out"
    )


def test_time_is_bounded_and_less_than_the_host_s(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "a").write_bytes(b"x" * (collecting.PIECE_BYTES + 1))
    (out / "b").write_text("x")
    times = iter((0.0, 1.0, 2.0))
    monkeypatch.setattr(collecting, "monotonic", lambda: next(times, COLLECT_SECONDS - 1))
    taken = collect(out)
    assert taken.files == {}
    assert taken.problems["a"] == "reading took too long"
    assert "the rest was left out" in taken.problems[""]


def test_in_a_session_only_what_is_new_or_changed_comes_again(out: Path) -> None:
    collector = FileCollector()

    def again(limits: Mapping[str, int] = LIMITS) -> Mapping[str, bytes]:
        taken = Taken(lambda frame: None)
        collector.collect(taken.send, limits, more_runs=True, root=str(out.parent))
        assert not taken.problems or limits is not LIMITS
        return taken.files

    (out / "a").write_text("1")
    (out / "b").write_text("1")
    assert again() == {"a": b"1", "b": b"1"}
    (out / "a").write_text("2")
    assert again() == {"a": b"2"}
    assert again() == {}
    (out / "b").rename(out / "c")
    (out / "d").write_text("1")
    assert again({**LIMITS, "out_files": 1}) == {"c": b"1"}
    # What there was no room for comes when there is.
    assert again() == {"d": b"1"}
    assert again() == {}


def test_new_and_changed_files_beside_out_come_too(out: Path) -> None:
    top = out.parent
    for name in ("given.csv", "changed.csv", "old/a.txt"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("given")
    placed = {path.name: list(file_version(path.lstat())) for path in top.iterdir()}
    (top / "changed.csv").write_text("by the program")
    for name in ("plot.png", ".cache", "new/b.txt", "empty/c", "__pycache__/x.pyc", "old/d.txt"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("made")
    (top / "empty/c").unlink()
    (top / "link.txt").symlink_to("/etc/passwd")
    (out / "o.txt").write_text("out")
    taken = collect(out, placed=placed)
    made = {"../changed.csv": b"by the program", "../plot.png": b"made"}
    assert taken.files == {"o.txt": b"out", **made}
    assert taken.problems == {
        "../link.txt": LINK,
        "../new": "a directory with 1 names; write it below out/ to get it back",
    }
