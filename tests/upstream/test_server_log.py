"""A server's log file: its name, its size, and the end of it that errors quote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.model import MEBIBYTE
from bridge.upstream import stdio as server_log
from bridge.upstream.stdio import ServerLog, log_path


def test_each_name_gives_a_file_of_its_own_in_the_directory(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a/b", "a:b", "a_b", "a b", "x\0y", "\ud800"]
    names += ["", ".", "..", "é" * 300]
    paths = {log_path(tmp_path, name) for name in names}
    assert len(paths) == len(names)
    for path in paths:
        path.touch()
        assert path.resolve().parent == tmp_path.resolve()
    assert log_path(tmp_path, "Git-Hub_2.x") == tmp_path / "Git-Hub_2.x.log"


@pytest.mark.guarantee("log-floods")
def test_a_log_is_private_and_capped(tmp_path: Path) -> None:
    path = tmp_path / "new" / "server.log"
    with ServerLog(path) as log:
        for number in range(40):
            log.write(b"%02d" % number + b"x" * 100_000)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["server.log", "server.log.1"]
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.stat().st_size <= MEBIBYTE
    assert b"39x" in path.read_bytes()


def test_a_new_log_keeps_the_one_before_and_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "s.log").symlink_to(victim)
    for text in (b"first", b"second"):
        with ServerLog(tmp_path / "s.log") as log:
            log.write(text)
    assert (tmp_path / "s.log").read_bytes() == b"second"
    assert (tmp_path / "s.log.1").read_bytes() == b"first"
    assert victim.read_text() == "precious"


def test_the_tail_starts_at_a_line_and_holds_no_notes_of_the_bridge(tmp_path: Path) -> None:
    with ServerLog(tmp_path / "s.log") as log:
        log.write(b"".join(b"line %d\n" % number for number in range(1000)))
        log.note("the bridge's own")
        tail = log.tail()
    assert tail.startswith("line ")
    assert tail.endswith("line 999")
    assert "the bridge's own" in (tmp_path / "s.log").read_text()


@pytest.mark.guarantee("log-floods")
def test_the_oldest_logs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "ALL_LOGS_BYTES", 4 * 1000)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for number in range(20):
        with ServerLog(tmp_path / f"s{number}.log") as log:
            log.write(b"x" * 1000)
        os.utime(tmp_path / f"s{number}.log", (number, number))
    left = {path.name for path in tmp_path.iterdir()}
    assert {"notes.txt", "s19.log", "s18.log"} <= left
    assert "s0.log" not in left
    assert len(left - {"notes.txt"}) <= 5
