"""bubblewrap's own words, captured, and what is made of them."""

from __future__ import annotations

import pytest

from bridge.errors import EngineNotFoundError, LaunchError, OciRuntimeError, SandboxError
from bridge.sandbox.process import faults
from bridge.sandbox.process.faults import KernelSettings, classify, not_installed, stage_failed

# Captured from bubblewrap 0.8.0 on Linux 6.18, except where said.
NO_CLONE = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow "
    "non-privileged user namespaces. See <https://deb.li/bubblewrap> or "
    "<file:///usr/share/doc/bubblewrap/README.Debian.gz>.\n"
)
NO_MORE = (
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces "
    "exceeded (ENOSPC)\n"
)
NO_MOUNT = "bwrap: Failed to make / slave: Operation not permitted\n"
NO_HOSTNAME = "bwrap: Can't set hostname to sandbox: Operation not permitted"
NO_PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n"
SETUID = "bwrap: --cap-add in setuid mode can be used only by root\n"
CAPABLE = "bwrap: Unexpected capabilities but not setuid, old file caps config?\n"
OLD = "bwrap: Unknown option --frobnicate\nusage: bwrap [OPTIONS...] [--] COMMAND [ARGS...]\n"
NO_SOURCE = "bwrap: Can't find source path /nonexistent: No such file or directory\n"
# Reported from Ubuntu 24.04 with bubblewrap 0.9.0 (its bug tracker and several others').
UBUNTU_MAP = "bwrap: setting up uid map: Permission denied\n"
UBUNTU_LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted\n"

UBUNTU = KernelSettings(max_user_namespaces=96365, apparmor_restricts=1)
DEBIAN_OLD = KernelSettings(max_user_namespaces=96365, userns_clone=0)
NONE_LEFT = KernelSettings(max_user_namespaces=0)
CONTAINER = KernelSettings(max_user_namespaces=96365, in_container=True)
PLAIN = KernelSettings(max_user_namespaces=96365)


@pytest.mark.parametrize(
    ("said", "kernel", "kind", "remedy"),
    [
        (NO_CLONE, UBUNTU, OciRuntimeError, faults.APPARMOR_REMEDY),
        (UBUNTU_MAP, UBUNTU, OciRuntimeError, faults.APPARMOR_REMEDY),
        (UBUNTU_LOOPBACK, UBUNTU, OciRuntimeError, faults.APPARMOR_REMEDY),
        (NO_CLONE, DEBIAN_OLD, OciRuntimeError, faults.CLONE_REMEDY),
        (NO_MORE, NONE_LEFT, OciRuntimeError, faults.MAXIMUM_REMEDY),
        (NO_CLONE, CONTAINER, OciRuntimeError, faults.CONTAINER_REMEDY),
        (NO_MOUNT, CONTAINER, OciRuntimeError, faults.CONTAINER_REMEDY),
        (NO_PROC, CONTAINER, OciRuntimeError, faults.CONTAINER_REMEDY),
        (NO_HOSTNAME, CONTAINER, OciRuntimeError, faults.CONTAINER_REMEDY),
        (NO_PROC, PLAIN, OciRuntimeError, faults.CONTAINER_REMEDY),
        (SETUID, KernelSettings(setuid=True), OciRuntimeError, faults.SETUID_REMEDY),
        (OLD, PLAIN, OciRuntimeError, faults.OLD_REMEDY),
        (NO_SOURCE, PLAIN, LaunchError, faults.BROKEN_REMEDY),
        ("", PLAIN, LaunchError, faults.BROKEN_REMEDY),
    ],
)
def test_each_refusal_has_its_remedy(
    said: str, kernel: KernelSettings, kind: type[SandboxError], remedy: str
) -> None:
    error = classify(said, kernel)
    assert type(error) is kind
    assert error.remedy == remedy


def test_a_refusal_without_a_known_cause_names_both_likely_ones() -> None:
    remedy = classify(NO_CLONE, PLAIN).remedy
    assert faults.MAXIMUM_REMEDY in remedy
    assert faults.CONTAINER_REMEDY in remedy


def test_capabilities_of_the_bridge_are_told() -> None:
    assert "capabilities" in classify(CAPABLE, PLAIN).message


def test_what_was_said_is_bounded() -> None:
    assert len(classify("x" * 100_000, PLAIN).message) < 1000


def test_an_absent_bubblewrap_is_to_be_installed() -> None:
    error = not_installed("bwrap")
    assert isinstance(error, EngineNotFoundError)
    assert "apt install bubblewrap" in error.remedy


def test_a_mount_that_apparmor_forbids_has_the_same_remedy() -> None:
    said = "mounting /tmp: Permission denied"
    assert stage_failed(said, UBUNTU).remedy == faults.APPARMOR_REMEDY
    assert isinstance(stage_failed(said, PLAIN), LaunchError)
    assert "it wrote nothing" in stage_failed("", PLAIN).message
