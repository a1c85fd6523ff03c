"""Reads the files that a program wrote into `out` and next to it, and sends them to the host.

The program's processes may still write, rename and link there. So each name is opened once,
relative to an open directory, never through a link. Only regular files on the same file system are
read, piece by piece. This runs with the program's rights: the host does not trust it.
"""

from __future__ import annotations

import errno
import os
import stat
from time import monotonic, sleep, time

from bridge.guest.processes import file_version
from bridge.guest.protocol.wire import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping

    Send = Callable[[File], None]

OUT = "out"
TOP = "../"  # Prefix of files next to `out`: names are relative to `out`.

PIECE_BYTES = 256 * 1024  # Size of a piece, far below the limit on a frame.
MAX_DEPTH = 8  # Directories in each other: a program can nest any number, and each is held open.

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_LINK = "it is a symbolic link; only regular files are read"
_NO_FILE = "it is a pipe, a socket or a device; only regular files are read"


class FileCollector:
    """Sends the files in `out` and in the directory above after each run of a sandbox."""

    def __init__(self) -> None:
        self._seen: Dict[str, Any] = {}  # Path to `file_version`.

    def collect(
        self,
        send: Send,
        limits: Mapping[str, Any],
        more_runs: bool = False,
        root: str = ".",
        placed: Mapping[str, Any] = {},
    ) -> None:
        """Send the files.

        Args:
            send: Sends a frame; returns when there is room for the next.
            limits: The run's limits; `out_bytes` and `out_files` are used.
            more_runs: Whether more runs follow; each sends only new and changed files.
            placed: The files next to `out` before the run; name to version.
        """
        self._send = send
        self._more_runs = more_runs
        self._versions: Dict[str, Any] = {}
        self._bytes = self._all_bytes = int(limits.get("out_bytes", 64 * 1024 * 1024))
        self._files = self._all_files = int(limits.get("out_files", 100))
        # The host gives up a little later.
        self._deadline = monotonic() + 20.0
        self._stopped = False
        try:
            above = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._device = os.fstat(above).st_dev
                names = sorted(os.listdir(above))
                if OUT in names:
                    self._entry(above, OUT, "", 0)
                for name in names:
                    # Hidden files are caches and settings of libraries.
                    if name != OUT and not name.startswith((".", "__")) and not self._stopped:
                        self._beside(above, name, placed)
            finally:
                os.close(above)
        except OSError as error:
            self._problem(OUT, error)
        self._seen = self._versions

    def _beside(self, above: int, name: str, placed: Mapping[str, Any]) -> None:
        """Send a new or changed file next to `out`; report a new directory that is not empty."""
        try:
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                if placed.get(name, ()) not in (None, list(file_version(found))):
                    self._entry(above, name, TOP + name, 0)
            elif name not in placed:
                fd = open_below(above, name, _READ | os.O_DIRECTORY)
                try:
                    count = len(os.listdir(fd))
                finally:
                    os.close(fd)
                if count:
                    words = "a directory with %d names; write it below out/ to get it back"
                    self._problem(TOP + name, words % count)
        except OSError as error:
            self._problem(TOP + name, error)

    def _problem(self, path: str, problem: Any) -> None:
        if self._has_room():
            if isinstance(problem, FileNotFoundError):
                problem = "it was gone when it was to be read"
            elif isinstance(problem, OSError) and problem.errno == errno.ELOOP:
                problem = _LINK
            elif isinstance(problem, OSError):
                problem = "it cannot be read: %s" % (problem.strerror or problem)
            self._send(File(name=path or OUT, problem=problem))

    def _has_room(self) -> bool:
        """Count a name; return whether the run's limit allows it."""
        self._files -= 1
        if self._files < 0:
            words = "more than %d files: put them into one archive; the rest was left out"
            self._stop(words % self._all_files)
        return self._files >= 0

    def _stop(self, problem: str) -> None:
        if not self._stopped:
            self._stopped = True
            self._send(File(name="", problem=problem))

    def _entry(self, above: int, name: str, path: str, depth: int) -> None:
        """Send a file, or the files below a directory; `path` is empty for `out` itself."""
        if monotonic() >= self._deadline:
            self._stop("reading took too long; the rest was left out")
            return
        try:
            mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                # Opening a device or a pipe may have an effect.
                self._problem(path, _LINK if stat.S_ISLNK(mode) else _NO_FILE)
                return
            # The entry may be replaced now: opening does not block or follow a link, and the
            # descriptor is examined again.
            fd = open_below(above, name, _READ)
            try:
                self._examine(fd, path, depth)
            finally:
                os.close(fd)
        except OSError as error:
            self._problem(path, error)

    def _examine(self, fd: int, path: str, depth: int) -> None:
        found = os.fstat(fd)
        if found.st_dev != self._device:
            self._problem(path, "something else is mounted there")
        elif stat.S_ISDIR(found.st_mode):
            if depth > MAX_DEPTH:
                self._problem(path, "it is more than %d directories deep" % MAX_DEPTH)
                return
            for name in sorted(os.listdir(fd)):
                if self._stopped:
                    return
                self._entry(fd, name, "%s/%s" % (path, name) if path else name, depth + 1)
        elif stat.S_ISREG(found.st_mode) and path:
            self._file(fd, found, path)
        else:
            self._problem(path, _NO_FILE if path else "it is no directory")

    def _file(self, fd: int, found: os.stat_result, path: str) -> None:
        if self._seen.get(path) == file_version(found):
            self._versions[path] = file_version(found)
            return
        if found.st_size > self._bytes:
            words = "its {:,} bytes are too many: a run may leave {:,} bytes in all, of which {:,} "
            words += "were free"
            self._problem(path, words.format(found.st_size, self._all_bytes, self._bytes))
            return
        age = time() - found.st_ctime
        if self._more_runs and 0 <= age < 0.02:
            # The next change must show, and file times have steps of up to 20 ms.
            sleep(0.021 - age)
            found = os.fstat(fd)
        if not self._has_room():
            return
        left = min(found.st_size, self._bytes)
        more = True
        while more:
            piece = os.read(fd, min(left, PIECE_BYTES))
            left -= len(piece)
            self._bytes -= len(piece)
            more = left > 0
            problem = ""
            if more and monotonic() >= self._deadline:
                problem = "reading took too long"
            elif not piece if more else file_version(os.fstat(fd)) != file_version(found):
                problem = "it changed while it was read"
            if problem:
                self._send(File(name=path, problem=problem))
                return
            self._send(File(name=path, data=piece, size=found.st_size, more=more))
        self._versions[path] = file_version(found)


def open_below(above: int, name: str, flags: int) -> int:
    return os.open(name, flags, dir_fd=above)
