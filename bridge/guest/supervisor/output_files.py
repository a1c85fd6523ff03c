"""Reads the files that a program wrote into `out` and beside it, and sends them to the host.

Owns which files are read. The program's processes may still write, rename and link there, and any
name may be something other than a file. So each name is opened once, relative to an open directory,
never through a link, and only regular files on the same file system are read. A file is read in
pieces; each is sent before the next is read.

This runs inside the sandbox with the program's rights. The host does not trust it and counts files
and bytes itself.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from bridge.guest.descriptors import file_version
from bridge.guest.protocol.wire import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Tuple

    Send = Callable[[File], None]
    # Inode, size, time of the last change of content and of anything.
    Version = Tuple[int, int, int, int]

OUT = "out"
TOP = "../"  # How names of files beside `out` begin: names are relative to `out`.

PIECE_BYTES = 256 * 1024  # Size of a piece, far below the limit on a frame.
MAX_DEPTH = 8  # Nested directories; each is kept open while its entries are read.
MAX_ENTRIES = 2000  # Names examined in all, files or not.
MAX_PROBLEMS = 20  # Problems reported one by one; the rest is counted.
MAX_SECONDS = 20.0  # After this no further file is read. The host gives up a little later.

SETTLE_SECONDS = 0.02
"""Resolution of file times. A file changed within this time may change again unseen,
so a session waits this long before it records the file's version."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = _READ | os.O_DIRECTORY

_KINDS = (
    (stat.S_ISLNK, "a symbolic link; only regular files are read"),
    (stat.S_ISFIFO, "a named pipe, not a regular file"),
    (stat.S_ISSOCK, "a socket, not a regular file"),
    (stat.S_ISCHR, "a device, not a regular file"),
    (stat.S_ISBLK, "a device, not a regular file"),
)


class Collector:
    """Sends the files in `out` and in the directory above after each run of a sandbox.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: Dict[str, Version] = {}

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
            more_runs: Whether more runs follow; each sends only files that are new or changed.
            placed: What was beside `out` before the run; name to version.
        """
        self._send = send
        self._more_runs = more_runs
        self._versions: Dict[str, Version] = {}
        self._bytes = self._all_bytes = int(limits.get("out_bytes", 64 * 1024 * 1024))
        self._files = self._all_files = int(limits.get("out_files", 100))
        self._entries = MAX_ENTRIES
        self._problems = 0
        self._deadline = self._now() + MAX_SECONDS
        self._stopped = self._truncated = False
        try:
            above = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._device = os.fstat(above).st_dev
                self._directory(above, OUT, "", 0)
                self._beside(above, placed)
            finally:
                os.close(above)
        except OSError as error:
            self._problem(OUT, _reason(error))
        self._report_left_out()
        self._seen = self._versions

    def _beside(self, above: int, placed: Mapping[str, Any]) -> None:
        """Send the new and changed files beside `out`; report new directories with files."""
        for name in self._names(above):
            if self._stopped or name == OUT or name.startswith((".", "__")):
                # Hidden files are caches and settings of libraries.
                continue
            try:
                self._beside_entry(above, name, placed)
            except OSError as error:
                self._problem(TOP + name, _reason(error))

    def _beside_entry(self, above: int, name: str, placed: Mapping[str, Any]) -> None:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            if placed.get(name, ()) not in (None, list(file_version(found))):
                self._entry(above, name, TOP + name, 0)
        elif name not in placed:
            fd = open_below(above, name, _DIRECTORY)
            try:
                count = len(self._names(fd))
            finally:
                os.close(fd)
            if count:
                words = "a directory with %d names; write it below out/ to get it back"
                self._problem(TOP + name, words % count)

    def _report_left_out(self) -> None:
        if self._truncated:
            self._stop("there are more than %d names; the rest was not looked at" % MAX_ENTRIES)
        more = self._problems - MAX_PROBLEMS
        if more > 0:
            self._send(File(name="", problem="%d more could not be read" % more))

    def _problem(self, name: str, problem: str) -> None:
        self._problems += 1
        if self._problems <= MAX_PROBLEMS:
            self._send(File(name=name, problem=problem))

    def _stop(self, problem: str) -> None:
        """Stop reading and report why, once."""
        if not self._stopped:
            self._stopped = True
            self._send(File(name="", problem=problem))

    def _directory(self, above: int, own: str, path: str, depth: int) -> None:
        """Send the files of a directory and those below it.

        Args:
            above: Descriptor of the parent directory.
            own: The directory's name there.
            path: Its path relative to `out`; empty for `out`.
        """
        if depth > MAX_DEPTH:
            self._problem(path, "it is more than %d directories deep" % MAX_DEPTH)
            return
        try:
            fd = open_below(above, own, _DIRECTORY)
        except OSError as error:
            if depth or error.errno != errno.ENOENT:
                self._problem(path or OUT, _wrong_kind(above, own) or _reason(error))
            return
        try:
            if os.fstat(fd).st_dev != self._device:
                self._problem(path or OUT, "something else is mounted there")
                return
            for name in self._names(fd):
                if self._stopped:
                    return
                self._entry(fd, name, "%s/%s" % (path, name) if path else name, depth)
        except OSError as error:
            self._problem(path or OUT, _reason(error))
        finally:
            os.close(fd)

    def _names(self, fd: int) -> List[str]:
        """Return the sorted names in a directory, up to the limit on names."""
        names: List[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                if self._entries <= 0:
                    self._truncated = True
                    break
                self._entries -= 1
                names.append(entry.name)
        names.sort()
        return names

    def _entry(self, fd: int, name: str, path: str, depth: int) -> None:
        if self._now() >= self._deadline:
            self._stop("reading took more than %d s; the rest was left out" % MAX_SECONDS)
            return
        try:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        except OSError as error:
            self._problem(path, _reason(error))
            return
        if stat.S_ISDIR(mode):
            self._directory(fd, name, path, depth + 1)
        elif stat.S_ISREG(mode):
            self._file(fd, name, path)
        else:
            self._problem(path, "it is %s" % _kind(mode))

    def _file(self, above: int, name: str, path: str) -> None:
        try:
            # The entry may have been replaced since `stat`: opening does not block, and the
            # descriptor is examined again.
            fd = open_below(above, name, _READ)
        except OSError as error:
            self._problem(path, _wrong_kind(above, name) or _reason(error))
            return
        try:
            self._send_opened(fd, path)
        except OSError as error:
            self._problem(path, _reason(error))
        finally:
            os.close(fd)

    def _send_opened(self, fd: int, path: str) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            self._problem(path, "it is %s" % _kind(found.st_mode))
            return
        if found.st_dev != self._device:
            self._problem(path, "something else is mounted there")
            return
        if self._seen.get(path) == file_version(found):
            self._versions[path] = file_version(found)
            return
        if self._files <= 0:
            self._stop(
                "more than %d files: put them into one archive; the rest was left out"
                % self._all_files
            )
            return
        if found.st_size > self._bytes:
            self._problem(
                path,
                "its {:,} bytes are too many: a run may leave {:,} bytes in all, of which {:,} "
                "were free".format(found.st_size, self._all_bytes, self._bytes),
            )
            return
        if self._more_runs:
            found = _stat_settled(fd, found)
        self._read(fd, found, path)

    def _read(self, fd: int, found: os.stat_result, path: str) -> None:
        """Send a file's content, up to its size when it was opened."""
        self._files -= 1
        size = found.st_size
        left = min(size, self._bytes)
        while True:
            piece = _piece(fd, min(left, PIECE_BYTES))
            left -= len(piece)
            self._bytes -= len(piece)
            more = left > 0
            late = more and self._now() >= self._deadline
            changed = len(piece) == 0 and more
            if not more:
                changed = file_version(os.fstat(fd)) != file_version(found)
            if changed or late:
                why = "reading took too long" if late else "it changed while it was read"
                self._problem(path, why)
                return
            self._send(File(name=path, data=piece, size=size, more=more))
            if not more:
                break
        if time.time() - found.st_ctime >= SETTLE_SECONDS:
            self._versions[path] = file_version(found)


def open_below(above: int, name: str, flags: int) -> int:
    return os.open(name, flags, dir_fd=above)


def _piece(fd: int, size: int) -> bytes:
    """Return the next `size` bytes; fewer only at the file's end."""
    parts = []
    while size > 0:
        data = os.read(fd, size)
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _stat_settled(fd: int, found: os.stat_result) -> os.stat_result:
    """Return the file's `stat`, after a short wait if it has just changed."""
    age = time.time() - found.st_ctime
    if not 0 <= age < SETTLE_SECONDS:
        return found
    time.sleep(SETTLE_SECONDS - age + 0.001)
    return os.fstat(fd)


def _wrong_kind(above: int, name: str) -> str:
    """Return why a name has the wrong kind to be opened; empty if its kind is right."""
    try:
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except OSError:
        return ""
    if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and name != OUT):
        return ""
    return "it is %s" % _kind(mode)


def _kind(mode: int) -> str:
    for test, name in _KINDS:
        if test(mode):
            return name
    return "no directory" if stat.S_ISREG(mode) else "no regular file"


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "it was gone when it was to be read"
    return "it cannot be read: %s" % (error.strerror or error)
