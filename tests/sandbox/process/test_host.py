"""What is read of this machine."""

from __future__ import annotations

import sys

import pytest

from bridge.sandbox.process.host import find_command, in_container, is_mapped, kernel_settings


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
