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
    names = (*ALLOWED, *REFUSED, *UNKNOWN)
    assert len(set(names)) == len(names)


def test_what_escapes_are_made_of_is_not_allowed() -> None:
    assert not {*DANGEROUS.split()} & {*ALLOWED}
    assert {rule.call for rule in ARGUMENTS} <= {*ALLOWED}
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
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == errno.ENOSYS
    assert all(not entry["subArchitectures"] for entry in profile["archMap"])
    conditional = {name for rule in profile["syscalls"] if "args" in rule for name in rule["names"]}
    assert conditional == {"clone", "mknod", "mknodat", "personality", "socket", "socketpair"}


def test_an_engine_lets_a_network_have_the_internets_families_and_no_other() -> None:
    plain, networked = oci_profile()["syscalls"], oci_profile("networked")["syscalls"]
    sockets = (["socket"], ["socketpair"])
    others, same = [
        [rule for rule in rules if rule["names"] not in sockets] for rules in (plain, networked)
    ]
    assert others == same
    allowed, refused = [
        [rule["args"][0] for rule in networked if (rule["names"], rule["action"]) == wanted]
        for wanted in ((["socket"], "SCMP_ACT_ALLOW"), (["socket"], "SCMP_ACT_ERRNO"))
    ]
    assert [(arg["op"], arg["value"]) for arg in allowed] == [
        ("SCMP_CMP_EQ", 2),
        ("SCMP_CMP_EQ", 10),
    ]
    assert {arg["op"] for arg in refused} == {"SCMP_CMP_MASKED_EQ"}
    families = set(range(1024))
    for arg in refused:
        families -= {number for number in families if number & arg["value"] == arg["valueTwo"]}
    assert families == {2, 10}


@pytest.mark.skipif(sys.platform != "linux", reason="libseccomp is for Linux")
def test_the_filters_are_programs_the_kernel_takes() -> None:
    for program in filters():
        assert len(program) % INSTRUCTION_BYTES == 0
        assert 0 < len(program) // INSTRUCTION_BYTES <= 4096
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
