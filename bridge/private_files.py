"""Makes private directories, and checks that no other user can change a file or directory.

A user who can write to any directory on a file's path can replace the file.
"""

from __future__ import annotations

import errno
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
    """Make a directory and its missing parents with mode 0700. Existing ones are unchanged.

    Raises:
        OSError: It cannot be created, or the path is a file.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=MODE)
    except FileExistsError:
        # Another bridge may have created it meanwhile.
        if not path.is_dir():
            raise
        return
    path.chmod(MODE)


def restrict(path: Path, kind: int = stat.S_IFDIR, *, follow: bool = False) -> None:
    """Take the rights of other users to a directory or file.

    Raises:
        OSError: It is a link or not of this kind, or belongs to another user.
    """
    status = path.stat(follow_symlinks=follow)
    if stat.S_IFMT(status.st_mode) != kind:
        raise OSError(errno.EINVAL, f"{path.name} is a link or no {_KINDS[kind]}")
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{path.name} belongs to another user")
    if status.st_mode & 0o077:
        path.chmod(status.st_mode & 0o700)


_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "plain file"}


@contextmanager
def in_use(directory: Path, *, alone: bool = False, wait: bool = False) -> Iterator[bool]:
    """Lock a directory within the context; yield whether the lock was free.

    Args:
        alone: Take an exclusive rather than a shared lock.
        wait: Wait for other processes rather than yield False. Blocks.

    Raises:
        OSError: The directory does not exist.
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
    """Open a directory below an open one without following links; create missing ones.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        OSError: It cannot be created or opened, or a link or file is in its path.
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

    Checks the file or directory, its parents and those of link targets. Root is trusted. Root's own
    directory with mode 0700 may lie below another user's directory: that user cannot forge it.
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
    """Return why other users may change a file with this status; empty if they may not.

    Args:
        sticky_counts: Whether a sticky bit protects the directory's entries, as in `/tmp`.
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
    pending = [path.absolute(), Path(os.path.realpath(path))]
    seen: set[Path] = set()
    while pending and len(seen) < 1000:  # Ends a loop of links.
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
    """Return whether an owner is a host user outside this user namespace.

    In a container, system directories have this owner, and no process inside can be this user.
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
