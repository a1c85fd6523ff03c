"""Becoming another user by a command, instead of in a copy of this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.sandbox.process.host import find_setpriv, setpriv_options, shows_user

NOBODY = """\
uid: 65534
euid: 65534
gid: 65534
egid: 65534
Supplementary groups: [none]
no_new_privs: 0
"""


def test_the_command_is_told_whom_to_become_and_to_keep_no_groups() -> None:
    assert setpriv_options(1, 2) == ("--reuid=1", "--regid=2", "--clear-groups", "--")


@pytest.mark.parametrize(
    ("dump", "right"),
    [
        (NOBODY, True),
        (NOBODY.replace("\ngid: 65534", "\ngid: 0"), False),
        (NOBODY.replace("euid: 65534", "euid: 0"), False),
        (NOBODY.replace("[none]", "0"), False),
        ("", False),
    ],
)
def test_only_a_command_that_did_it_is_used(dump: str, right: bool) -> None:
    assert shows_user(dump, 65534) is right


@pytest.mark.parametrize("does", ["exit 1", "exit 0", None])
def test_another_command_of_that_name_is_not_used(tmp_path: Path, does: str | None) -> None:
    if does is not None:
        script = tmp_path / "setpriv"
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
    assert find_setpriv(65534, {"PATH": str(tmp_path)}) == ""


@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root becomes another user"
)
def test_the_command_leaves_nothing_of_root() -> None:
    found = find_setpriv(65534, {})
    if not found:
        pytest.skip("no setpriv")
    status = ("/bin/cat", "/proc/self/status")
    said = subprocess.run(
        (found, *setpriv_options(65534, 65534), *status), capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split() for line in said.splitlines()]
    shown = {words[0]: words[1:] for words in lines}
    assert shown["Uid:"] == shown["Gid:"] == ["65534"] * 4
    assert shown["Groups:"] == []
    for name in ("CapEff:", "CapPrm:", "CapInh:", "CapAmb:"):
        assert shown[name] == ["0000000000000000"]
