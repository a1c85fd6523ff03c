"""What is read of this machine, and how a command becomes another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.sandbox.process.host import (
    become,
    find_command,
    find_setpriv,
    in_container,
    is_mapped,
    kernel_settings,
)


def test_an_id_exists_where_it_is_mapped() -> None:
    assert is_mapped(65534, "         0          0 4294967295\n")
    assert is_mapped(65534, "         0       1000          1\n         1     100000      65536\n")
    assert not is_mapped(65534, "         0       1000          1\n")
    assert not is_mapped(65534, "")


def test_commands_are_found_by_the_bridges_path() -> None:
    assert find_command("no-such-command", {}) is None
    assert find_command("sh", {"PATH": "/no/such/directory"}) is None
    assert (find_command("sh", {}) or "").startswith("/")


@pytest.mark.skipif(sys.platform != "linux", reason="these are settings of Linux")
def test_the_kernels_settings_can_be_read() -> None:
    found = kernel_settings("/no/such/bwrap")
    assert found.max_user_namespaces is None or found.max_user_namespaces >= 0
    assert not found.setuid
    assert found.in_container == in_container()


@pytest.mark.parametrize("does", ["exit 1", "exit 0", 'shift 4; exec "$@"', None])
def test_only_a_setpriv_that_was_seen_to_do_it_is_used(tmp_path: Path, does: str | None) -> None:
    if does is not None:
        script = tmp_path / "setpriv"
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
    assert find_setpriv({"PATH": f"{tmp_path}:/usr/bin:/bin" if does else str(tmp_path)}) == ""


@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root becomes another user"
)
@pytest.mark.parametrize("setpriv", [True, False])
def test_a_command_that_became_another_user_has_nothing_of_root(setpriv: bool) -> None:
    found = find_setpriv({}) if setpriv else ""
    if setpriv and not found:
        pytest.skip("no setpriv")
    words = become(65534, 65534, setpriv=found, python="/usr/bin/python3")
    words += ["/bin/cat", "/proc/self/status"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    shown = {words[0]: words[1:] for words in map(str.split, said.splitlines())}
    assert shown["Uid:"] == shown["Gid:"] == ["65534"] * 4
    assert shown["Groups:"] == []
    for name in ("CapEff:", "CapPrm:", "CapInh:", "CapAmb:"):
        assert shown[name] == ["0000000000000000"]
