"""How a process of a lane gets namespaces of its own and shuts itself in there.

Owns the system calls for it, by `ctypes`: one `clone` into all namespaces at once, the mounts made
read-only with fresh directories in memory over the writable ones, the giving up of what that took,
Landlock and the system call filter. Any step that fails raises: nothing goes on half shut in.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import struct

from bridge.guest.lane_filter import NAMESPACE_FLAGS, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Sequence

NAMES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

_SIGCHLD = int(signal.SIGCHLD)
_CLONE_CALL = {"x86_64": 56, "aarch64": 220}
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE = 444
_LANDLOCK_ADD = 445
_LANDLOCK_RESTRICT = 446
_BENEATH = 1

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY = 1
_ATTR_NOSUID = 2

_MS_HARDENED = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_MS_RDONLY = 1
_MS_BIND = 4096
_MS_PRIVATE_ALL = (1 << 18) | 16384  # MS_PRIVATE, MS_REC

_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CLEAR_ALL = 4
_FILTER_MODE = 2

_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64

_EMPTY = b"size=4096,nr_inodes=2,mode=0555"

_libc = ctypes.CDLL(None, use_errno=True)
# Calls through it keep the interpreter's lock, so that a child made by one still holds it.
_held = ctypes.PyDLL(None, use_errno=True)
_clone = _held.syscall


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def current() -> Dict[str, str]:
    """Return the namespaces this process is in, by the kernel's names for them."""
    return {name: os.readlink("/proc/self/ns/" + name) for name in NAMES}


def fork() -> int:
    """Fork into new namespaces of every kind; return as `os.fork` does.

    The child is the first process of its pid namespace: its end is the end of all in it, and who
    waits for it has waited for them.

    The kernel is called directly, since `unshare` would take a second fork, which costs more than
    a millisecond. So neither the C library nor the interpreter know of it, who would tell their
    threads, locks and generators of random numbers. The child has one thread, as this process must
    have, and all locks as they were; it may do no more than fork again, in the usual way.

    Raises:
        OSError: The system refuses.
    """
    number = _CLONE_CALL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "no number of clone is known for " + os.uname().machine)
    pid = int(_clone(number, ctypes.c_ulong(NAMESPACE_FLAGS | _SIGCHLD), 0, 0, 0, 0))
    if pid < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, "clone: " + os.strerror(problem))
    return pid


def library_fork() -> int:
    """Fork by the C library, without the interpreter's knowing; for processes with one thread.

    Raises:
        OSError: The system refuses.
    """
    pid = int(_held.fork())
    if pid < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, "fork: " + os.strerror(problem))
    return pid


def keep_ids(uid: int, gid: int) -> None:
    """Give the new user namespace the one user and group that there were before."""
    # Groups could be given up to get around what is denied to them; the kernel insists.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", "%d %d 1" % (uid, uid)),
        ("gid_map", "%d %d 1" % (gid, gid)),
    ):
        place = os.open("/proc/self/" + name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(place, text.encode("ascii"))
        finally:
            os.close(place)


def freeze_mounts() -> None:
    """Make all that is mounted read-only, and its changes this namespace's own."""
    _check(_mount(b"none", b"/", b"", _MS_PRIVATE_ALL, b""), "making mounts private")
    _set_attributes("/", _AT_RECURSIVE, _ATTR_RDONLY | _ATTR_NOSUID, 0)
    try:
        # What a process may set about itself lies there, unless all of it was read-only before.
        _set_attributes("/proc", 0, 0, _ATTR_RDONLY)
    except PermissionError:
        return


def mount_memory(path: str, options: str) -> None:
    """Put an empty directory in memory at `path`."""
    done = _mount(b"tmpfs", path.encode(), b"tmpfs", _MS_HARDENED, options.encode())
    _check(done, "mounting " + path)


def mount_proc(masked: Sequence[Sequence[Any]]) -> None:
    """Mount the processes of the new namespace, with parts of it covered.

    Args:
        masked: Path, and whether it is a directory.

    Raises:
        PermissionError: The one there is is covered in parts already, and the kernel will not show
            what that hides.
    """
    _check(_mount(b"proc", b"/proc", b"proc", _MS_HARDENED, b""), "mounting /proc")
    for path, is_directory in masked:
        place = path.encode()
        if is_directory:
            flags = _MS_HARDENED | _MS_RDONLY
            _check(_mount(b"tmpfs", place, b"tmpfs", flags, _EMPTY), "covering " + path)
            continue
        _check(_mount(b"/dev/null", place, b"", _MS_BIND, b""), "covering " + path)


def drop_capabilities() -> None:
    """Give up every capability, for this process and for what it may execute."""
    for number in range(_MOST_CAPABILITIES):
        if _prctl(_PR_CAPBSET_DROP, number) < 0:
            break  # past the last one that this kernel knows
    _check(_prctl(_PR_CAP_AMBIENT, _CLEAR_ALL), "clearing ambient capabilities")
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, b"\0" * 24), "dropping capabilities")
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def restrict_files(rules: Mapping[str, Any]) -> None:
    """Put a Landlock ruleset in force; the files it names are those mounted by now."""
    # A kernel of an older version takes a shorter structure, provided that what it lacks is zero.
    attributes = struct.pack("=QQQ", rules["files"], rules["network"], rules["scopes"])
    size = ctypes.c_size_t(len(attributes))
    none = ctypes.c_uint32(0)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, size, none)
    _check(ruleset, "making a Landlock ruleset")
    try:
        for path, rights in rules["rules"]:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", rights, place)
            added = _libc.syscall(_LANDLOCK_ADD, ruleset, _BENEATH, rule, none)
            _check(added, "a Landlock rule for " + path)
            os.close(place)
        _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, none), "Landlock")
    finally:
        os.close(ruleset)


def filter_calls() -> None:
    """Give up the calls that all this took, for good."""
    made = _filter()
    _check(_prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(made)), "the system call filter")


@functools.lru_cache(maxsize=None)
def _filter() -> Any:
    instructions = program(os.uname().machine)
    return _Program(len(instructions) // 8, instructions)


def prepare() -> None:
    """Do once what every child would do: make the filter, and look functions up.

    Raises:
        UnknownMachineError: There is no filter for this machine.
    """
    _filter()
    for library, names in ((_libc, ("mount", "prctl", "capset", "syscall")), (_held, ("fork",))):
        for name in names:
            getattr(library, name)


def _mount(source: bytes, place: bytes, kind: bytes, flags: int, options: bytes) -> int:
    return int(_libc.mount(source, place, kind, ctypes.c_ulong(flags), options))


def _set_attributes(path: str, flags: int, added: int, removed: int) -> None:
    attributes = struct.pack("=QQQQ", added, removed, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(done, "making %s read-only" % path)


def _prctl(option: int, second: int, third: Any = 0) -> int:
    words: Any = [ctypes.c_ulong(second), third if third else ctypes.c_ulong(0)]
    return int(_libc.prctl(option, *words, ctypes.c_ulong(0), ctypes.c_ulong(0)))


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))
