"""The Landlock ruleset on top of the mounts, for each ABI version. Pure, but for `version`.

Enforces: a path out of the mount namespace (by a kernel bug or a leaked descriptor) opens nothing.
Writable directories execute nothing. From ABI 4 no TCP port is usable, and from ABI 6 no signal or
abstract socket beyond the sandbox.

Does not: cover changes of a file without opening it (chmod, chown, times, extended attributes),
named sockets, or existing descriptors. Mounts and the system call filter cover those.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from bridge.model import Json

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_CHAR = 1 << 6
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_SOCK = 1 << 9
_MAKE_FIFO = 1 << 10
_MAKE_BLOCK = 1 << 11
_MAKE_SYM = 1 << 12
_REFER = 1 << 13
TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

_FIRST_RIGHTS = (1 << 13) - 1  # Everything up to `_MAKE_SYM`: version 1.

_LATER_RIGHTS = ((2, _REFER), (3, TRUNCATE), (5, _IOCTL_DEV))

_NETWORK_SINCE = 4
_BIND_TCP, _CONNECT_TCP = 0b01, 0b10

_SCOPES_SINCE = 6
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_CREATE_RULESET = 444  # The system call's number, the same on every architecture.
_ASK_VERSION = 1

READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = (
    READ
    | WRITE_FILE
    | TRUNCATE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SOCK
    | _MAKE_FIFO
    | _MAKE_SYM
    | _REFER
)
USE_DEVICE = READ_FILE | WRITE_FILE
USE_PROC = READ | WRITE_FILE | TRUNCATE
"""A process sets its own attributes there, such as its OOM score."""

_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | _IOCTL_DEV
"""The rights of files; the kernel rejects others in a file's rule."""


class LandlockRule(NamedTuple):
    """The rights at and below a path."""

    path: str
    rights: int
    is_file: bool = False


def version() -> int:
    """Return this kernel's Landlock ABI version; 0 if Landlock is absent or off."""
    if sys.platform != "linux":
        return 0
    library = ctypes.CDLL(None, use_errno=True)
    size, flags = ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)
    return max(0, int(library.syscall(_CREATE_RULESET, None, size, flags)))


def ruleset(
    rules: Iterable[LandlockRule], abi: int, *, connects: bool = False
) -> dict[str, Json] | None:
    """Return the ruleset for the stage's plan and an ABI version; None without Landlock.

    The kernel refuses the rights in `files`, `network` and `scopes` unless a rule grants them.

    Args:
        connects: Whether TCP connections are allowed; binding a port never is.
    """
    if abi < 1:
        return None
    files = _FIRST_RIGHTS
    for since, right in _LATER_RIGHTS:
        if abi >= since:
            files |= right
    refused = _BIND_TCP if connects else _BIND_TCP | _CONNECT_TCP
    return {
        "files": files,
        "network": refused if abi >= _NETWORK_SINCE else 0,
        "scopes": _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= _SCOPES_SINCE else 0,
        "rules": [
            [rule.path, rule.rights & files & (_OF_FILES if rule.is_file else files)]
            for rule in rules
        ],
    }


def describe_gaps(abi: int) -> str:
    """Return a sentence on what an ABI version lacks; empty if nothing."""
    release = os.uname().release
    if abi < 1:
        return f"landlock: this kernel ({release}) has none, or has it turned off"
    if abi < _NETWORK_SINCE:
        return f"landlock: files only, version {abi} of this kernel has no network rights or scopes"
    if abi < _SCOPES_SINCE:
        return f"landlock: version {abi} of this kernel has no scopes for signals and sockets"
    return ""
