"""What a sandbox answers to what it must refuse, tried out before any program runs.

Owns one attempt for each layer that can be tried cheaply, in this process, without lasting effect
should it be let through. Which answer means what is the host's business (`bridge.sandbox.layers`).

Nothing here can end the process: calls of foreign instruction sets, for which a filter may kill,
are not tried. Imports nothing of the guest: a backend's probe sends this file by itself.
"""

from __future__ import annotations

import _socket  # what `socket` is made of, without what takes milliseconds to import
import contextlib
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict

ALLOWED = "allowed"
"""What stands for an attempt that nothing refused."""

_NOBODY_THERE = ("192.0.2.1", 9)
"""An address set apart for documentation. Connecting a datagram socket sends nothing to it."""

_NOT_THERE = "/mcp-code-bridge-denied"

_WRITABLE = ("/tmp", "/workspace")


def read_only_root() -> None:
    """Remove a directory that is not there: a read-only file system says so before it looks."""
    try:
        os.rmdir(_NOT_THERE)
    except FileNotFoundError:
        return


def no_capabilities() -> None:
    """Set the groups that are set already, which takes CAP_SETGID all the same."""
    os.setgroups(os.getgroups())


def unprivileged_user() -> None:
    """Become root for a moment."""
    before = os.geteuid()
    os.seteuid(0)
    os.seteuid(before)


def no_network() -> None:
    """Find a way out of here, without taking it."""
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        made.connect(_NOBODY_THERE)
    finally:
        made.close()


def own_seccomp() -> None:
    """Make a file in memory. Kernels have done that since 3.17 and engines' own filters allow it.

    Ours does not know it, so that the answer tells the two filters apart.
    """
    os.close(os.memfd_create("denied"))


def tmpfs_noexec() -> None:
    """Execute files that are no programs: where execution is allowed, the format is refused."""
    for directory in _WRITABLE:
        if not os.path.isdir(directory):
            continue
        path = "%s/.denied-%d" % (directory, os.getpid())
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        try:
            # Printable, so that the kernel does not go looking for a module that knows the format.
            os.write(place, b"no program\n")
            os.close(place)
            os.execv(path, [path])
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                continue
            return
        finally:
            os.unlink(path)
    # Refused in each.
    raise PermissionError(errno.EACCES, "not executed")


def landlock() -> None:
    """List the devices, which file modes allow and bubblewrap's Landlock rules do not."""
    os.listdir("/dev")


ATTEMPTS: Dict[str, Callable[[], None]] = {
    "read-only-root": read_only_root,
    "no-capabilities": no_capabilities,
    "unprivileged-user": unprivileged_user,
    "no-network": no_network,
    "own-seccomp": own_seccomp,
    "sized-tmpfs-noexec": tmpfs_noexec,
    "landlock": landlock,
}


def denials(attempts: Dict[str, Callable[[], None]] = ATTEMPTS) -> Dict[str, str]:
    """Try everything; return layer to the error's name, or `ALLOWED`.

    A layer is left out where this Python cannot try it.
    """
    found = {}
    for layer, attempt in attempts.items():
        # A Python without that call, or a system that answers with no error number.
        with contextlib.suppress(AttributeError, ValueError):
            found[layer] = _answer(attempt)
    return found


def _answer(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except OSError as error:
        if error.errno is None:
            raise ValueError from error
        return errno.errorcode.get(error.errno, str(error.errno))
    return ALLOWED
