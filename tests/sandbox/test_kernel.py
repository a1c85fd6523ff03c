"""Whose kernel a guest runs on."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.model import HostKernel
from bridge.sandbox.layers import brings_own_kernel, is_gvisor, own_kernel, this_kernel

HOST = HostKernel(release="6.1.0-9-amd64", version="#1 SMP Debian", boot_id="a-b-c")


@pytest.mark.parametrize(
    ("runtime", "own"),
    [
        ("runsc", True),
        ("runsc-kvm", True),
        ("io.containerd.runsc.v1", True),
        ("gvisor", True),
        ("kata", True),
        ("kata-qemu", True),
        ("io.containerd.kata.v2", True),
        ("krun", True),
        ("crun-vm", True),
        ("runc", False),
        ("crun", False),
        ("youki", False),
        ("", False),
    ],
)
def test_runtimes_are_known_by_name(runtime: str, own: bool) -> None:
    assert brings_own_kernel(runtime) is own
    assert own or not is_gvisor(runtime)


@pytest.mark.parametrize(
    ("facts", "own"),
    [
        # gVisor has no boot id; its build and release are its own.
        ({"kernel": "4.4.0", "kernel_version": "#1 SMP Sun Jan 10 15:06:54 PST 2016"}, True),
        # Kata may run the very build that the host runs; it booted by itself all the same.
        ({"boot_id": "d-e", "kernel": HOST.release, "kernel_version": HOST.version}, True),
        # A release can be lied about with a personality; neither the boot nor the build can.
        ({"boot_id": "a-b-c", "kernel": "2.6.60", "kernel_version": "#9"}, False),
        ({"kernel": "2.6.60", "kernel_version": HOST.version}, False),
        ({"kernel": HOST.release}, False),
        ({}, None),
    ],
)
def test_a_kernel_is_told_by_its_boot_its_build_its_release(
    facts: dict[str, Any], own: bool | None
) -> None:
    assert own_kernel(facts, HOST) is own


def test_of_a_remote_engines_kernel_the_release_is_known() -> None:
    remote = HostKernel(release="6.1.0-9-amd64")
    assert own_kernel({"boot_id": "x", "kernel": "4.4.0"}, remote) is True
    assert own_kernel({"boot_id": "x", "kernel": "6.1.0-9-amd64"}, remote) is False
    assert own_kernel({"boot_id": "x", "kernel": "4.4.0"}, HostKernel()) is None


def test_this_process_runs_on_this_kernel() -> None:
    here = this_kernel()
    facts = {"boot_id": here.boot_id, "kernel": here.release, "kernel_version": here.version}
    assert own_kernel(facts, here) is False
