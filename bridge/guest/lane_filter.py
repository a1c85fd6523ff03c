"""What separates a run of a lane from the process that made it, as a program for the kernel.

A lane's sandbox may make namespaces and mounts, so that its supervisor can; a run may not. This is
the difference, made in pure Python and stacked on the sandbox's own list: the kernel takes the
stricter answer of the two, which makes the list that any other run is under. The older of the calls
that the sandbox's list never allows are named all the same, so that this does not hang on it.
"""

from __future__ import annotations

import errno
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Tuple

NAMESPACE_FLAGS = 0x7E020000
"""Of `clone`: mount, control group, UTS, IPC, user, pid and network namespaces."""

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_NOT_LESS = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_FIRST_ARGUMENT_AT = 16
"""The lower half of it, on machines that keep that first: all that are named below."""

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS

_X32_BIT = 0x40000000
"""x86_64 has a second table whose numbers have it: the same calls under other names."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine to what the kernel calls it (AUDIT_ARCH)."""

_SINCE_THEN = {
    "clone3": 435,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
}
"""New calls have the same number everywhere."""

CALLS: Mapping[str, Dict[str, int]] = {
    "x86_64": {
        "clone": 56,
        "unshare": 272,
        "setns": 308,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "capset": 126,
        **_SINCE_THEN,
    },
    "aarch64": {
        "clone": 220,
        "unshare": 97,
        "setns": 268,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "capset": 91,
        **_SINCE_THEN,
    },
}

_FLAGS_MATTER = "clone"
_UNKNOWN_CALL = "clone3"
"""Its flags lie in memory, where no filter can look; the C library then uses `clone`."""


class UnknownMachineError(Exception):
    """There is no table of system calls for it."""


def program(machine: str, byteorder: str = sys.byteorder) -> bytes:
    """Return the filter for a machine, as the kernel takes it.

    Raises:
        UnknownMachineError: It is none of `ARCHITECTURES`.
    """
    if machine not in ARCHITECTURES or byteorder != "little":
        message = "no filter is known for %s" % machine
        raise UnknownMachineError(message)
    calls = CALLS[machine]
    refused = [n for name, n in calls.items() if name not in (_FLAGS_MATTER, _UNKNOWN_CALL)]
    made: List[Tuple[int, int, int, int]] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        made += [(_JUMP_NOT_LESS, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL_PROCESS)]
    made += _answer([calls[_UNKNOWN_CALL]], UNKNOWN)
    made += _answer(sorted(refused), REFUSE)
    made += [
        (_JUMP_EQUAL, 0, 3, calls[_FLAGS_MATTER]),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        (_JUMP_ANY_BIT, 0, 1, NAMESPACE_FLAGS),
        (_RETURN, 0, 0, REFUSE),
        (_RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in made)


def _answer(numbers: List[int], action: int) -> List[Tuple[int, int, int, int]]:
    """Return the instructions that give one answer to several calls."""
    count = len(numbers)
    tests = [(_JUMP_EQUAL, count - 1 - at, 0, number) for at, number in enumerate(numbers)]
    # The last one jumps over the answer unless it fits; the others jump to it if they do.
    code, _, _, number = tests[-1]
    tests[-1] = (code, 0, 1, number)
    return [*tests, (_RETURN, 0, 0, action)]
