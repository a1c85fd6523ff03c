"""A run's private directory on the host's disk, for backends without a tmpfs. Everything blocks.

A program can leave files without permissions, links to anywhere and directories deeper than the
longest path. So removal follows no link and works by directory descriptor.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import LaunchError
from bridge.sandbox.ownership import Owner, is_dead
from bridge.sandbox.process import cgroups as group

logger = logging.getLogger(__name__)

FALLBACK = Path("/tmp")  # Where every user may make directories.


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The directories that one run may write to."""

    path: Path

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    def remove(self) -> bool:
        return remove(self.path)


def base_directory(wanted: str | None, *, as_nobody: bool) -> Path:
    """Return the parent of run directories: `wanted` if the run's user can enter it, or /tmp."""
    place = Path(wanted) if wanted else FALLBACK
    # Not `Path.is_dir`, which raises if a parent may not be entered.
    usable = place.is_absolute() and os.path.isdir(place)  # noqa: PTH112
    if usable and as_nobody:
        usable = all(p.stat().st_mode & stat.S_IXOTH for p in (place, *place.parents))
    return Path(os.path.realpath(place if usable else FALLBACK))


def make(base: Path, owner: Owner, uid: int | None) -> RunDirectory:
    """Make a directory that only the run and the bridge can read.

    Args:
        uid: The run's user; None for this one.

    Raises:
        LaunchError: The directory cannot be made; nothing of it is left.
    """
    made = RunDirectory(path=base / group.group_name(owner, secrets.token_hex(8)))
    try:
        made.path.mkdir(mode=0o700)
        for directory in (made.workspace, made.tmp):
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        if uid is not None:
            # The run's user may enter it but not list it.
            made.path.chmod(0o711)
    except OSError as error:
        remove(made.path)
        message = f"The run's directory cannot be made: {error}."
        raise LaunchError(message, remedy="Point TMPDIR to where there is room.") from error
    return made


def remove(path: Path) -> bool:
    """Remove an unused directory with its contents; return whether it is gone."""
    try:
        top = _open_directory(str(path), None)
        try:
            while names := os.listdir(top):  # noqa: PTH208 - by descriptor
                for name in names:
                    _remove_entry(top, name)
        finally:
            os.close(top)
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("the directory %s was not removed: %s", path, error)
        return False
    return True


def reap(base: Path, judge: Owner) -> int:
    """Remove the directories of this user's dead bridges; return their number."""
    count = 0
    with suppress(OSError):
        for entry in list(os.scandir(base)):
            owner = group.group_owner(entry.name)
            if owner is None or owner == judge or not entry.is_dir(follow_symlinks=False):
                continue
            # Anyone can use such a name in a shared directory.
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            if is_dead(owner, judge=judge):
                logger.info("removing the directory of a bridge that died: %s", entry.path)
                count += remove(Path(entry.path))
    return count


def _remove_entry(top: int, name: str) -> None:
    """Remove a file, or a directory after moving its directories up."""
    if not _is_directory(top, name):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = _open_directory(name, top)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208
            if not _is_directory(inner, entry):
                os.unlink(entry, dir_fd=inner)
                continue
            # Moving a directory needs write permission in it, since ".." changes.
            os.chmod(entry, 0o700, dir_fd=inner)
            os.rename(entry, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _is_directory(place: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)


def _open_directory(name: str, place: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
