"""What a run of a lane may ask of the kernel, by reading the filter as the kernel does."""

from __future__ import annotations

import ctypes
import errno
import struct
import sys

import pytest

from bridge.guest import lane_filter
from bridge.guest.lane_filter import ALLOW, ARCHITECTURES, CALLS, KILL_PROCESS, program
from bridge.sandbox.process.libseccomp import LIBRARY, MAX_INSTRUCTIONS
from bridge.sandbox.syscalls import (
    ALLOWED,
    ARGUMENTS,
    LANE_ARGUMENTS,
    LANE_CALLS,
    NAMESPACE_MASK,
    REFUSED,
)

ERRNO = 0x00050000
MACHINES = tuple(ARCHITECTURES)
TOKENS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What libseccomp calls them, which is what the kernel does."""

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}
THREAD = 0x003D0F00
"""What the C library starts threads with."""


def answer(machine: str, number: int, argument: int = 0, *, architecture: int | None = None) -> int:
    """Run the filter on a system call, as the kernel's interpreter would."""
    asked = struct.pack(
        "<IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, argument, 0, 0, 0, 0, 0
    )
    instructions = list(struct.iter_unpack("=HBBI", program(machine, "little")))
    at = held = 0
    while True:
        code, if_so, if_not, value = instructions[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("<I", asked, value)
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += if_so if holds else if_not


def sandbox_refuses(name: str) -> bool:
    """Tell whether the list of a lane's sandbox refuses a call whatever its arguments."""
    return name not in ALLOWED and name not in LANE_CALLS


@pytest.mark.parametrize("machine", MACHINES)
def test_both_filters_together_allow_what_any_run_may_and_nothing_else(machine: str) -> None:
    """Law: what the supervisor of a lane may do is not handed to programs."""
    calls = CALLS[machine]
    for name in {*ALLOWED, *REFUSED, *LANE_CALLS}:
        inner = answer(machine, calls[name]) if name in calls else ALLOW
        allowed = not sandbox_refuses(name) and inner == ALLOW
        assert allowed == (name in ALLOWED), name
        if name in LANE_CALLS:
            assert inner == ERRNO | errno.EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
def test_a_run_cannot_clone_into_any_namespace_and_can_make_threads(machine: str) -> None:
    """The sandbox's own list lets `clone` through; the arguments of all else are as ever."""
    clone = CALLS[machine]["clone"]
    for bit in range(32):
        wanted = ERRNO | errno.EPERM if NAMESPACE_MASK >> bit & 1 else ALLOW
        assert answer(machine, clone, 1 << bit) == wanted
    assert answer(machine, clone, THREAD) == ALLOW
    assert answer(machine, CALLS[machine]["clone3"]) == ERRNO | errno.ENOSYS
    assert {rule.call for rule in ARGUMENTS} - {rule.call for rule in LANE_ARGUMENTS} == {"clone"}
    assert lane_filter.NAMESPACE_FLAGS == NAMESPACE_MASK


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_by_another_architectures_numbers_end_the_process(machine: str) -> None:
    """The same numbers mean other calls there."""
    assert answer(machine, 1, architecture=ARCHITECTURES[OTHER[machine]]) == KILL_PROCESS
    assert answer(machine, 1, architecture=0x40000003) == KILL_PROCESS
    if machine == "x86_64":
        assert answer(machine, 0x40000000 + 39) == KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_of_the_filter_is_the_librarys(machine: str) -> None:
    """A typing mistake here would leave a call to programs."""
    if sys.platform != "linux":
        pytest.skip("libseccomp is for Linux")
    resolve = ctypes.CDLL(LIBRARY).seccomp_syscall_resolve_name_arch
    for name, number in CALLS[machine].items():
        found = resolve(ctypes.c_uint32(TOKENS[machine]), name.encode())
        # Below zero: newer than this library.
        assert found in (number, -1), name


def test_the_filter_fits_and_does_not_exist_for_unknown_machines() -> None:
    """A lane is refused there."""
    assert len(program("x86_64", "little")) < MAX_INSTRUCTIONS * 8
    for machine, order in (("riscv64", "little"), ("aarch64", "big")):
        with pytest.raises(lane_filter.UnknownMachineError):
            program(machine, order)
