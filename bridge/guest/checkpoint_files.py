"""The files of a session's workspace, as a part of its checkpoint.

Owns which are kept and how they are read and put back. Plain files only, nothing through links;
what is in `out` was handed over already.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

OUT = "out"

MAX_FILES = 2_000
MAX_LOOKED_AT = 20_000
"""Entries of directories; a program may have unpacked an archive."""

MAX_DEPTH = 32
"""Of directories below the workspace."""

_SKIPPED = ("__pycache__",)

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def gather(workspace: str, budget: int) -> Tuple[List[List[Any]], List[bytes], List[List[str]]]:
    """Read the files of a workspace, the smallest first.

    Returns:
        Path, mode and size of each; their contents; and what is not among them, and why.
    """
    lost: List[List[str]] = []
    found = sorted(_plain_files(workspace, lost))
    entries: List[List[Any]] = []
    contents: List[bytes] = []
    for size, path in found:
        if len(entries) >= MAX_FILES:
            lost.append(["file " + path, "there are more than %d files" % MAX_FILES])
            continue
        if size > budget:
            words = "it is larger (%s bytes) than what is left for files"
            lost.append(["file " + path, words % f"{size:,}"])
            continue
        try:
            mode, data = _read(os.path.join(workspace, path), budget)
        except OSError as error:
            lost.append(["file " + path, "it cannot be read: %s" % error.strerror])
            continue
        budget -= len(data)
        entries.append([path, mode, len(data)])
        contents.append(data)
    return entries, contents, lost


def put_back(workspace: str, path: str, mode: int, data: bytes) -> None:
    """Write a file that is not there; one that is there is newer, and stays.

    Raises:
        OSError: It cannot be written.
        ValueError: It would not be below the workspace.
    """
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        message = "it has no place below the workspace"
        raise ValueError(message)
    place = workspace
    for part in parts[:-1]:
        place = os.path.join(place, part)
        if not os.path.isdir(place):
            os.mkdir(place)
        if os.path.islink(place):
            message = "it has no place below the workspace"
            raise ValueError(message)
    try:
        descriptor = os.open(os.path.join(place, parts[-1]), _WRITE, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode & 0o777)


def _plain_files(workspace: str, lost: List[List[str]]) -> Iterator[Tuple[int, str]]:
    queue = [("", 0)]
    looked = 0
    while queue:
        below, depth = queue.pop()
        for entry in _listed(os.path.join(workspace, below)):
            path = "%s/%s" % (below, entry.name) if below else entry.name
            looked += 1
            if looked > MAX_LOOKED_AT:
                lost.append(["files", "there are more than %d in the workspace" % MAX_LOOKED_AT])
                return
            if entry.name in _SKIPPED or path == OUT:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if depth >= MAX_DEPTH:
                    lost.append(["file " + path, "its directory is nested too deeply"])
                else:
                    queue.append((path, depth + 1))
            elif stat.S_ISREG(status.st_mode):
                yield status.st_size, path
            else:
                lost.append(["file " + path, "it is %s" % _kind(status.st_mode)])


def _listed(directory: str) -> List[Any]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _kind(mode: int) -> str:
    kinds: Dict[int, str] = {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _read(path: str, budget: int) -> Tuple[int, bytes]:
    descriptor = os.open(path, _READ)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no plain file any more")
        data = file.read(budget + 1)
    if len(data) > budget:
        raise OSError(0, "it grew while it was read")
    return stat.S_IMODE(status.st_mode), data
