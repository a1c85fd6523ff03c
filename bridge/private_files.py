"""Makes private directories, and checks that no other user can change a file or directory.

A user who can write to any directory on the way to a file can replace the file.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MODE = 0o700  # Mode of the bridge's directories, independent of the umask.


def make_directory(path: Path) -> None:
    """Make a directory, and the parents that are missing, with mode 0700. Existing ones stay.

    Raises:
        OSError: It cannot be made, or something else is in its place.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=MODE)
    except FileExistsError:
        # Another bridge was faster. A file in the way is an error.
        if not path.is_dir():
            raise
        return
    path.chmod(MODE)


@contextmanager
def in_use(directory: Path, *, alone: bool = False, wait: bool = False) -> Iterator[bool]:
    """Hold a lock on a directory; yield whether it was free.

    Args:
        alone: Whether no other process may hold it; otherwise several do.
        wait: Whether to wait for others, rather than to yield False. Blocks.

    Raises:
        OSError: It is not there.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        free = True
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def open_below(root: int, names: Iterable[str], *, mode: int = 0o777) -> int:
    """Open a directory below an open one, never through a link; make those that are missing.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        OSError: It cannot be made or opened, or a link or file is on the way.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
    fd = os.dup(root)
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=fd)
            try:
                deeper = os.open(name, flags, dir_fd=fd)
            except NotADirectoryError:
                message = f"`{name}` is there, and is a link or no directory"
                raise NotADirectoryError(0, message) from None
            os.close(fd)
            fd = deeper
    except BaseException:
        os.close(fd)
        raise
    return fd


def exposure(path: Path) -> tuple[str, str]:
    """Return why other users could change a path, and a remedy; both empty if they cannot.

    Checks the existing file or directory, all directories above it, and the same for the targets of
    symbolic links. Root may change everything and is ignored. Root's own directory may lie below
    another user's, who can put nothing in its place that looks like root's.
    """
    real = Path(os.path.realpath(path))
    own = path.lstat() if real == path and os.access(path, os.F_OK) else None
    roots_own = own and (os.geteuid(), own.st_uid, own.st_mode) == (0, 0, stat.S_IFDIR | MODE)
    for place in _paths_on_the_way(path):
        try:
            found = place.lstat()
        except OSError:
            continue
        if stat.S_ISLNK(found.st_mode):
            continue
        itself = place in (path, real)
        reason = exposure_reason(found, "it" if itself else str(place), sticky_counts=not itself)
        if reason and (itself or not roots_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            return reason, _remedy(found.st_uid, place)
    return "", ""


def _remedy(owner: int, place: Path) -> str:
    if owner not in (os.geteuid(), 0):
        return f"Have {place} belong to you (chown)."
    sudo = "" if owner == os.geteuid() else "sudo "
    return f"Run: {sudo}chmod go-w {shlex.quote(str(place))}"


def exposure_reason(found: os.stat_result, what: str = "it", *, sticky_counts: bool = False) -> str:
    """Return why others may change a file or directory with this status; empty if they may not.

    Args:
        sticky_counts: Whether the sticky bit protects what lies in the directory, as in `/tmp`.
    """
    owner = found.st_uid
    if owner not in (os.geteuid(), 0) and not _is_unmapped(owner):
        return f"{what} belongs to another user ({_user_name(owner)})"
    if sticky_counts and found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return f"every user can write to {what}"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(owner, found.st_gid):
        return f"other users of its group can write to {what}"
    return ""


def _paths_on_the_way(path: Path) -> Iterator[Path]:
    """Yield a path, its parents, and the same for the targets of links among them."""
    pending = [path.absolute(), Path(os.path.realpath(path))]
    seen: set[Path] = set()
    while pending and len(seen) < 1000:  # Loops of links end here.
        way = pending.pop()
        for place in (way, *way.parents):
            if place in seen:
                continue
            seen.add(place)
            yield place
            with suppress(OSError):
                pending.append(place.parent / place.readlink())


def _is_own_group(owner: int, group: int) -> bool:
    with suppress(KeyError):
        user, found = pwd.getpwuid(owner), grp.getgrgid(group)
        return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
    return False


def _is_unmapped(owner: int) -> bool:
    """Return whether an owner is a user of the host that this user namespace does not have.

    In a container the system's directories have this owner, which no process in here can be.
    """
    try:
        overflow = int(Path("/proc/sys/fs/overflowuid").read_text("ascii"))
        lines = Path("/proc/self/uid_map").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return owner == overflow and not any(
        first <= owner < first + count for first, _, count in ranges
    )


def _user_name(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"
