"""The list of system calls as data, and as what kernels and engines are given."""

from __future__ import annotations

import errno
import sys

import pytest

from bridge.sandbox.process.libseccomp import INSTRUCTION_BYTES, filters, numbers
from bridge.sandbox.syscalls import (
    ALLOWED,
    ARGUMENTS,
    NAMESPACE_MASK,
    REFUSED,
    UNKNOWN,
    oci_profile,
)
from tests.raised import raises_code

DANGEROUS = """
bpf clone3 delete_module finit_module init_module io_uring_setup kexec_load keyctl mount move_mount
open_by_handle_at open_tree perf_event_open pivot_root process_vm_readv process_vm_writev ptrace
seccomp setns umount2 unshare userfaultfd
"""


def test_each_call_is_on_one_list_once() -> None:
    """A call on two lists would be decided by chance."""
    names = (*ALLOWED, *REFUSED, *UNKNOWN)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_what_escapes_are_made_of_is_not_allowed(name: str) -> None:
    assert name not in ALLOWED


def test_only_allowed_calls_are_judged_by_their_arguments() -> None:
    assert {rule.call for rule in ARGUMENTS} <= set(ALLOWED)


def test_no_namespace_can_be_cloned() -> None:
    threads = 0x003D0F00  # what the C library starts threads with
    assert NAMESPACE_MASK == 0x7E020000
    assert NAMESPACE_MASK & threads == 0


def test_an_engine_is_told_the_same() -> None:
    profile = oci_profile()
    allowed: list[str] = []
    answers: dict[str, int] = {}
    for rule in profile["syscalls"]:
        if rule["action"] == "SCMP_ACT_ALLOW":
            allowed += rule["names"]
        elif "args" not in rule:
            answers |= dict.fromkeys(rule["names"], rule["errnoRet"])
    assert sorted(allowed) == list(ALLOWED)
    assert answers == dict.fromkeys(REFUSED, errno.EPERM) | dict.fromkeys(UNKNOWN, errno.ENOSYS)
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == (
        "SCMP_ACT_ERRNO",
        errno.ENOSYS,
    )
    conditional = {name for rule in profile["syscalls"] if "args" in rule for name in rule["names"]}
    assert conditional == {"clone", "mknod", "mknodat", "personality", "socket", "socketpair"}


def test_an_engine_lets_a_network_have_the_internets_families_and_no_other() -> None:
    plain, networked = oci_profile()["syscalls"], oci_profile("networked")["syscalls"]
    sockets = (["socket"], ["socketpair"])
    assert [rule for rule in plain if rule["names"] not in sockets] == [
        rule for rule in networked if rule["names"] not in sockets
    ]
    rules = [(rule["action"], rule["args"][0]) for rule in networked if rule["names"] == ["socket"]]
    assert [
        (argument["op"], argument["value"])
        for action, argument in rules
        if action == "SCMP_ACT_ALLOW"
    ] == [("SCMP_CMP_EQ", 2), ("SCMP_CMP_EQ", 10)]
    refusals = [argument for action, argument in rules if action == "SCMP_ACT_ERRNO"]
    assert {argument["op"] for argument in refusals} == {"SCMP_CMP_MASKED_EQ"}
    assert [
        family
        for family in range(1024)
        if not any(family & argument["value"] == argument["valueTwo"] for argument in refusals)
    ] == [2, 10]


def test_an_engine_allows_no_other_architecture() -> None:
    assert all(not entry["subArchitectures"] for entry in oci_profile()["archMap"])


@pytest.mark.skipif(sys.platform != "linux", reason="libseccomp is for Linux")
def test_the_filters_are_programs_the_kernel_takes() -> None:
    for program in filters():
        assert len(program) % INSTRUCTION_BYTES == 0
        assert 0 < len(program) // INSTRUCTION_BYTES <= 4096


@pytest.mark.skipif(sys.platform != "linux", reason="libseccomp is for Linux")
def test_without_the_library_there_are_no_filters() -> None:
    with raises_code("engine_not_found") as caught:
        filters("libno-such-library.so.9")
    assert "apt install libseccomp2" in caught.value.remedy


@pytest.mark.skipif(sys.platform != "linux", reason="libseccomp is for Linux")
def test_names_of_nothing_have_no_number() -> None:
    assert "no_such_call" not in numbers(["no_such_call", "read"])
    known = numbers(ALLOWED)
    unknown = set(ALLOWED) - set(known)
    # What this architecture never had, or what is newer than the library.
    assert len(unknown) < 45, unknown
