"""Which processes belong to a server."""

from __future__ import annotations

import os
import subprocess
import sys

from bridge.upstream.process import (
    TAG_VARIABLE,
    ProcessStat,
    _orphan_pids,
    _tree,
    new_tag,
    parse_stat,
)

SLEEP = [sys.executable, "-c", "input('ready\\n')"]


def test_a_command_name_with_brackets_does_not_shift_the_fields() -> None:
    fields = " ".join(["S", "7", "8", "9", *["0"] * 15, "123", "0"])
    expected = ProcessStat(pid=42, state="S", parent=7, group=8, session=9, started=123)
    assert parse_stat(f"42 (a) b) (c) {fields}") == expected
    assert parse_stat("nonsense") is None
    assert parse_stat("") is None


def test_this_process_is_nobodys_to_end() -> None:
    assert os.getpid() not in _tree(os.getpgid(0), new_tag())


def test_what_a_living_bridge_started_is_no_orphan() -> None:
    """Only a bridge that is gone leaves orphans; this one is not."""
    child = subprocess.Popen(SLEEP, stdin=subprocess.PIPE, env={TAG_VARIABLE: new_tag()})
    with child:
        try:
            assert child.pid not in _orphan_pids()
        finally:
            child.kill()
