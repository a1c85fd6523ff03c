"""Compiles the system call list into seccomp filter programs, by libseccomp through `ctypes`.

libseccomp's Python bindings are bound to the distribution's interpreter.

Enforces: calls of another architecture's table (i386, x32) kill the process. A name that libseccomp
does not know gets the default, ENOSYS, which is the stricter answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from functools import cache

from bridge.errors import LaunchError, SandboxError
from bridge.sandbox.syscalls import (
    ALLOWED,
    ARGUMENTS,
    REFUSED,
    REFUSED_ERRNO,
    UNKNOWN_ERRNO,
    Comparison,
    SyscallRefusal,
)

LIBRARY = "libseccomp.so.2"

INSTRUCTION_BYTES = 8

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000

_ATTRIBUTE_BAD_ARCHITECTURE = 2
"""SCMP_FLTATR_ACT_BADARCH: the action for calls of another architecture's table (i386, x32)."""

_ATTRIBUTE_OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE; 2 makes it a binary tree. Since 2.5.

_COMPARISONS: dict[Comparison, int] = {"ne": 1, "masked_eq": 7}

INSTALL_REMEDY = "Install libseccomp (Debian and Ubuntu: `apt install libseccomp2`)."


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def filters(name: str = LIBRARY) -> tuple[bytes, bytes]:
    """Return two filter programs to install; the kernel applies the stricter answer.

    The first refuses calls by argument, and the second is the allow-list. In one program, a rule
    without arguments would override the rules with arguments.
    """
    library = _load(name)
    refused = ((_ERRNO | REFUSED_ERRNO, call, None) for call in REFUSED)
    allowed = ((_ALLOW, call, None) for call in ALLOWED)
    listed = _compile_filter(library, _ERRNO | UNKNOWN_ERRNO, (*allowed, *refused))
    return _arguments(library, ARGUMENTS), listed


@cache
def refusal_filter(rules: tuple[SyscallRefusal, ...], name: str = LIBRARY) -> bytes:
    """Return a program that refuses calls by argument, to install with `filters`."""
    return _arguments(_load(name), rules)


def numbers(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of the system calls that this architecture has."""
    library = _load(LIBRARY)
    found = {name: library.seccomp_syscall_resolve_name(name.encode("ascii")) for name in names}
    return {name: number for name, number in found.items() if number >= 0}


def _arguments(library: ctypes.CDLL, rules: Iterable[SyscallRefusal]) -> bytes:
    made = []
    for rule in rules:
        compare = _Compare(rule.argument, _COMPARISONS[rule.comparison], *rule.operands)
        made.append((_ERRNO | rule.error, rule.call, compare))
    return _compile_filter(library, _ALLOW, made)


def _compile_filter(
    library: ctypes.CDLL, default: int, rules: Iterable[tuple[int, str, _Compare | None]]
) -> bytes:
    """Return a program with an action for each call; other calls get the default."""
    handle = library.seccomp_init(ctypes.c_uint32(default))
    if not handle:
        raise LaunchError(f"{LIBRARY} could not make a filter.")
    context = ctypes.c_void_p(handle)
    try:
        killed = ctypes.c_uint32(_KILL_PROCESS)
        _check(library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, killed), "attribute")
        # For speed only; older versions do not know it.
        library.seccomp_attr_set(context, _ATTRIBUTE_OPTIMIZE, ctypes.c_uint32(2))
        for action, name, compare in rules:
            number = library.seccomp_syscall_resolve_name(name.encode("ascii"))
            if number < 0:
                # Another architecture's (libseccomp returns negative numbers), or newer than the
                # library: the default applies, which is stricter.
                continue
            array = (_Compare * 1)(compare) if compare is not None else None
            wanted = ctypes.c_uint32(action), number, 0 if array is None else 1, array
            _check(library.seccomp_rule_add_array(context, *wanted), f"rule for {name}")
        descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
        try:
            _check(library.seccomp_export_bpf(context, descriptor), "export")
            # The kernel takes no longer program (BPF_MAXINSNS).
            program = os.pread(descriptor, 4096 * INSTRUCTION_BYTES, 0)
        finally:
            os.close(descriptor)
    finally:
        library.seccomp_release(context)
    if not program or len(program) % INSTRUCTION_BYTES:
        raise LaunchError(f"{LIBRARY} exported no usable filter.")
    return program


def _check(result: int, what: str) -> None:
    if result < 0:
        name = errno.errorcode.get(-result, str(result))
        raise LaunchError(f"{LIBRARY} refused the {what}: {name}.")


def _load(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        message = f"{name} is not on this machine, so no system call filter can be made."
        raise SandboxError(message, remedy=INSTALL_REMEDY, code="engine_not_found") from error
    library.seccomp_init.restype = ctypes.c_void_p
    return library
