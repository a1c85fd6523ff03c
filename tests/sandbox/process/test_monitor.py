"""What the monitor reads of the processes of this machine. What it does with it: the backends'."""

from __future__ import annotations

import os
import subprocess
import sys

from bridge.sandbox.process.monitor import descendants, parse_ps, processes_by_ps, relatives

MARK = "mcp-code-bridge_1_run"

ROWS = [
    (1, 0, 1, "Ss", "init"),
    (50, 1, 50, "S", f"monitor {MARK}"),
    (100, 50, 100, "S", f"python3 -c stage {MARK}"),
    (101, 100, 100, "R", f"python3 -c stage {MARK}"),
    (102, 101, 102, "S", "python3 -c other"),
    (103, 1, 102, "S", "python3 -c orphan in its group"),
    (104, 1, 104, "S", f"python3 -c stage {MARK}"),
    (105, 101, 100, "Z", "(python3)"),
    (200, 1, 200, "S", "somebody else"),
    (201, 200, 200, "S", "somebody else's child"),
]


def test_descendants_are_found_however_deep() -> None:
    pairs = [(row[0], row[1]) for row in ROWS]
    assert descendants(100, pairs) == {101, 102, 105}
    assert descendants(200, pairs) == {201}
    assert descendants(7, pairs) == set()
    assert descendants(1, [(1, 1)]) == {1}, "a loop ends"


def test_relatives_are_found_by_parent_group_and_mark() -> None:
    """Where orphans go to process 1; no one else is touched, and no one who is dead already."""
    groups = {100}
    rows = [row for row in ROWS if row[0] != 50]
    assert relatives(rows, 100, groups, MARK) == {100, 101, 102, 103, 104}
    assert {100, 102} <= groups
    assert 200 not in groups


def test_relatives_are_still_found_when_the_first_has_gone() -> None:
    rows = [row for row in ROWS if row[0] in (101, 104, 200)]
    assert relatives(rows, 100, {100}, MARK) == {101, 104}
    assert relatives(rows, 100, {7}, "") == {101}, "by its parent, and an empty mark fits nobody"


def test_the_monitor_does_not_find_itself() -> None:
    rows = [(os.getpid(), 1, 100, "S", f"monitor {MARK}")]
    assert relatives(rows, 100, {100}, MARK) == set()


def test_what_ps_prints_is_read() -> None:
    text = "  PID PPID\n   12     1    12 Ss   /sbin/x a b\n 13 12 12 Z\n\nnonsense\n 1 2 x S c\n"
    assert parse_ps(text) == [(12, 1, 12, "Ss", "/sbin/x a b"), (13, 12, 12, "Z", "")]


def test_ps_shows_this_very_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", MARK], stdin=subprocess.PIPE) as child:
        found = {row[0]: row for row in processes_by_ps()}
        child.communicate(b"\n")
    assert found[os.getpid()][1] == os.getppid()
    assert found[child.pid][1] == os.getpid()
    assert found[child.pid][2] == os.getpgrp()
    assert MARK in found[child.pid][4]
