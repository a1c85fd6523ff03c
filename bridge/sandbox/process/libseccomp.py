"""Compiles the system call list into seccomp filter programs.

Owns the calls into libseccomp through `ctypes`. libseccomp is maintained and on every distribution
that has bubblewrap (systemd, podman and docker use it). Its Python bindings are no choice: the one
on PyPI is such a `ctypes` wrapper too, unchanged since January 2021, and the distributions' own is
bound to their interpreter. Eight functions are needed.

Enforces: calls of another architecture's table (i386, x32) kill the process. A name that libseccomp
does not know gets the default, ENOSYS, which is the stricter answer.

Verified: `tests/sandbox/test_syscalls.py` and `tests/security/test_surface.py`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from bridge.errors import EngineNotFoundError, LaunchError
from bridge.sandbox.syscalls import (
    ALLOWED,
    ARGUMENTS,
    REFUSED,
    REFUSED_ERRNO,
    UNKNOWN_ERRNO,
    Comparison,
    Refusal,
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
    """Return two filter programs; both must be installed, and the stricter answer applies.

    The first refuses calls by argument, the second is the allow-list. One program cannot be both:
    a rule without arguments overrides those with arguments.

    Args:
        name: The library's file, as the loader finds it.

    Raises:
        SandboxError: There is no libseccomp, or it fails.
    """
    library = _load(name)
    return _arguments(library, ARGUMENTS), _list(library)


@cache
def refusal_filter(rules: tuple[Refusal, ...], name: str = LIBRARY) -> bytes:
    """Return a program that refuses calls by argument, to be installed with `filters`."""
    return _arguments(_load(name), rules)


def numbers(names: Iterable[str]) -> dict[str, int]:
    """Return the system calls' numbers on this architecture; it may lack some."""
    library = _load(LIBRARY)
    found = {name: library.seccomp_syscall_resolve_name(name.encode("ascii")) for name in names}
    return {name: number for name, number in found.items() if number >= 0}


def _list(library: ctypes.CDLL) -> bytes:
    with _filter(library, default=_ERRNO | UNKNOWN_ERRNO) as made:
        for name in ALLOWED:
            made.add(_ALLOW, name)
        for name in REFUSED:
            made.add(_ERRNO | REFUSED_ERRNO, name)
        return made.export()


def _arguments(library: ctypes.CDLL, rules: tuple[Refusal, ...]) -> bytes:
    with _filter(library, default=_ALLOW) as made:
        for rule in rules:
            first, second = rule.value, 0
            if rule.comparison == "masked_eq":
                first, second = rule.mask, rule.value
            compare = _Compare(rule.argument, _COMPARISONS[rule.comparison], first, second)
            made.add(_ERRNO | rule.error, rule.call, compare)
        return made.export()


@contextmanager
def _filter(library: ctypes.CDLL, *, default: int) -> Iterator[_Filter]:
    handle = library.seccomp_init(ctypes.c_uint32(default))
    if not handle:
        raise LaunchError(f"{LIBRARY} could not make a filter.")
    context = ctypes.c_void_p(handle)
    try:
        killed = ctypes.c_uint32(_KILL_PROCESS)
        if library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, killed) < 0:
            raise LaunchError(f"{LIBRARY} refused to kill calls of other architectures.")
        # For speed only; older versions do not know it.
        library.seccomp_attr_set(context, _ATTRIBUTE_OPTIMIZE, ctypes.c_uint32(2))
        yield _Filter(library, context)
    finally:
        library.seccomp_release(context)


class _Filter:
    """One libseccomp context."""

    def __init__(self, library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
        self._library = library
        self._context = context

    def add(self, action: int, name: str, compare: _Compare | None = None) -> None:
        number = self._library.seccomp_syscall_resolve_name(name.encode("ascii"))
        if number < 0:
            # Another architecture's (libseccomp returns negative numbers), or newer than the
            # library: the default applies, which is stricter.
            return
        rules = (_Compare * 1)(compare) if compare is not None else None
        done = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, 1 if rules is not None else 0, rules
        )
        self._check(done, f"rule for {name}")

    def export(self) -> bytes:
        descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
        try:
            self._check(self._library.seccomp_export_bpf(self._context, descriptor), "export")
            # The kernel takes no longer program (BPF_MAXINSNS).
            program = os.pread(descriptor, 4096 * INSTRUCTION_BYTES, 0)
        finally:
            os.close(descriptor)
        if not program or len(program) % INSTRUCTION_BYTES:
            raise LaunchError(f"{LIBRARY} exported no usable filter.")
        return program

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            name = errno.errorcode.get(-result, str(result))
            raise LaunchError(f"{LIBRARY} refused the {what}: {name}.")


def _load(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        message = f"{name} is not on this machine, so no system call filter can be made."
        raise EngineNotFoundError(message, remedy=INSTALL_REMEDY) from error
    library.seccomp_init.restype = ctypes.c_void_p
    return library
