"""Attempts operations that the sandbox must refuse, before any program runs.

No attempt has a permanent effect or can end the process. System calls of foreign architectures are
not tried, because a filter may kill. The host interprets the answers (`bridge.sandbox.layers`).
Imports nothing of the guest: a backend's probe sends this file alone.
"""

from __future__ import annotations

import _socket  # the core of `socket`, whose own import takes milliseconds
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict

ALLOWED = "allowed"  # The answer for an attempt that was not refused.


def read_only_root() -> None:
    """Remove a missing directory: a read-only file system refuses before it looks for it."""
    try:
        os.rmdir("/mcp-code-bridge-denied")
    except FileNotFoundError:
        return


def unprivileged_user() -> None:
    before = os.geteuid()
    os.seteuid(0)
    os.seteuid(before)


def no_network() -> None:
    """Look up a route to an outside address, without sending anything."""
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        # An address for documentation; connecting a datagram socket sends nothing to it.
        made.connect(("192.0.2.1", 9))
    finally:
        made.close()


def tmpfs_noexec() -> None:
    """Execute a file that is not a program: without `noexec`, the kernel refuses its format."""
    for directory in ("/tmp", "/workspace"):
        if not os.path.isdir(directory):
            continue
        path = "%s/.denied-%d" % (directory, os.getpid())
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        try:
            # Printable text, so that the kernel does not load a module for the format.
            os.write(place, b"no program\n")
            os.close(place)
            os.execv(path, [path])
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                continue
            return
        finally:
            os.unlink(path)
    # Refused in each directory.
    raise PermissionError(errno.EACCES, "not executed")


ATTEMPTS: Dict[str, Callable[[], object]] = {
    "read-only-root": read_only_root,
    "no-capabilities": lambda: os.setgroups(os.getgroups()),  # needs CAP_SETGID
    "unprivileged-user": unprivileged_user,
    "no-network": no_network,
    # Engines' own filters allow a file in memory, and ours refuses it.
    "own-seccomp": lambda: os.close(os.memfd_create("denied")),
    "sized-tmpfs-noexec": tmpfs_noexec,
    # File modes allow it, and bubblewrap's Landlock rules do not.
    "landlock": lambda: os.listdir("/dev"),
}


def denials(attempts: Dict[str, Callable[[], object]] = ATTEMPTS) -> Dict[str, str]:
    """Make every attempt that this Python supports; return layer to error name, or `ALLOWED`."""
    found = {}
    for layer, attempt in attempts.items():
        try:
            attempt()
            found[layer] = ALLOWED
        except OSError as error:
            if error.errno is not None:
                found[layer] = errno.errorcode.get(error.errno, str(error.errno))
        except (AttributeError, ValueError):
            continue  # This Python lacks the call.
    return found
