"""The files that a program left in `out`, read by the supervisor and sent to the host.

Owns what is read and what is left alone. The program may still have processes that write, rename
and link there, and may have put anything in place of a file: every name is looked up once, below a
directory that is held open, never through a link, and only what turns out to be a regular file of
the same file system is read. It is read in pieces, each of which is on its way before the next.

All of this runs inside the sandbox with no more rights than the program had. Nothing that is sent
is trusted by the host, which counts for itself.
"""

from __future__ import annotations

import binascii
import errno
import os
import stat
import time

from bridge.guest.protocol.wire import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Tuple

    Send = Callable[[File], None]
    # Inode, size, time of the last change of content and of anything.
    Version = Tuple[int, int, int, int]

OUT = "out"

PIECE_BYTES = 255 * 1024
"""Read and sent together; a multiple of three, so that no piece but the last is padded."""

MAX_FILES = 100
"""Unless the host says so: each costs a line in the result. More belong into an archive."""

MAX_BYTES = 64 * 1024 * 1024
"""Unless the host says so."""

MAX_DEPTH = 8
"""Directories in directories; each is held open while what is in it is read."""

MAX_ENTRIES = 2000
"""Names looked at in all, files or not."""

MAX_PROBLEMS = 20
"""Told of; of more only how many there were."""

MAX_SECONDS = 20.0
"""After which nothing more is begun. The host gives up a little later."""

SETTLE_SECONDS = 0.02
"""Times of files stand still for as long. A file that changed just now may change again without
being seen to have, so that a session waits for that moment to pass before it remembers one."""

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
    """Collects after each run of a sandbox, of which a session's has many.

    Args:
        now: Seconds from any moment.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: Dict[str, Version] = {}

    def collect(
        self, send: Send, limits: Mapping[str, Any], again: bool = False, root: str = "."
    ) -> None:
        """Send what is there.

        Args:
            send: Takes a frame, and returns when there is room for the next.
            limits: `out_bytes` and `out_files` of the run.
            again: Whether other runs follow here: each gets what is new or changed since the last.
        """
        round_ = _Round(send, limits, self._seen, again, self._now)
        try:
            round_.collect(root)
        finally:
            round_.end()
        self._seen = round_.versions


class _Round:
    """One collecting."""

    def __init__(
        self,
        send: Send,
        limits: Mapping[str, Any],
        seen: Dict[str, Version],
        again: bool,
        now: Callable[[], float],
    ) -> None:
        self._send = send
        self._seen = seen
        self._again = again
        self.versions: Dict[str, Version] = {}
        self._bytes = self._all_bytes = int(limits.get("out_bytes", MAX_BYTES))
        self._files = self._all_files = int(limits.get("out_files", MAX_FILES))
        self._entries = MAX_ENTRIES
        self._problems = 0
        self._device = 0
        self._now = now
        self._until = now() + MAX_SECONDS
        self._over = False
        self._cut = False

    def collect(self, root: str) -> None:
        """Read `out`."""
        try:
            above = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._problem(OUT, _words(error))
            return
        try:
            self._device = os.fstat(above).st_dev
            self._directory(above, OUT, "", 0)
        finally:
            os.close(above)

    def end(self) -> None:
        """Tell of what there was no room for."""
        if self._cut:
            self._stop("there are more than %d names; the rest was not looked at" % MAX_ENTRIES)
        more = self._problems - MAX_PROBLEMS
        if more > 0:
            self._send(File(name="", problem="%d more could not be read" % more))

    def _problem(self, name: str, problem: str) -> None:
        self._problems += 1
        if self._problems <= MAX_PROBLEMS:
            self._send(File(name=name, problem=problem))

    def _stop(self, problem: str) -> None:
        """Read nothing more."""
        if not self._over:
            self._over = True
            self._send(File(name="", problem=problem))

    def _directory(self, above: int, own: str, path: str, depth: int) -> None:
        """Send what is in a directory.

        Args:
            own: Its name in the one `above`.
            path: What its files' names begin with, without the last "/".
        """
        if depth > MAX_DEPTH:
            self._problem(path, "it is more than %d directories deep" % MAX_DEPTH)
            return
        try:
            fd = open_below(above, own, _DIRECTORY)
        except OSError as error:
            if depth or error.errno != errno.ENOENT:
                self._problem(path or OUT, _instead(above, own) or _words(error))
            return
        try:
            if os.fstat(fd).st_dev != self._device:
                self._problem(path or OUT, "something else is mounted there")
                return
            for name in self._names(fd):
                if self._over:
                    return
                self._entry(fd, name, "%s/%s" % (path, name) if path else name, depth)
        except OSError as error:
            self._problem(path or OUT, _words(error))
        finally:
            os.close(fd)

    def _names(self, fd: int) -> List[str]:
        """Return the names in a directory, as many as may be looked at, in order."""
        names: List[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                if self._entries <= 0:
                    self._cut = True
                    break
                self._entries -= 1
                names.append(entry.name)
        names.sort()
        return names

    def _entry(self, fd: int, name: str, path: str, depth: int) -> None:
        if self._now() >= self._until:
            self._stop("reading took more than %d s; the rest was left out" % MAX_SECONDS)
            return
        try:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        except OSError as error:
            self._problem(path, _words(error))
            return
        if stat.S_ISDIR(mode):
            self._directory(fd, name, path, depth + 1)
        elif stat.S_ISREG(mode):
            self._file(fd, name, path)
        else:
            self._problem(path, "it is %s" % _kind(mode))

    def _file(self, above: int, name: str, path: str) -> None:
        try:
            # What it is may have changed since it was looked at: this waits for nobody, and the
            # descriptor is looked at again.
            fd = open_below(above, name, _READ)
        except OSError as error:
            self._problem(path, _instead(above, name) or _words(error))
            return
        try:
            self._opened(fd, path)
        except OSError as error:
            self._problem(path, _words(error))
        finally:
            os.close(fd)

    def _opened(self, fd: int, path: str) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            self._problem(path, "it is %s" % _kind(found.st_mode))
            return
        if found.st_dev != self._device:
            self._problem(path, "something else is mounted there")
            return
        if self._seen.get(path) == _version(found):
            self.versions[path] = _version(found)
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
        if self._again:
            found = _settled(fd, found)
        self._read(fd, found, path)

    def _read(self, fd: int, found: os.stat_result, path: str) -> None:
        """Send a file's content, as much as it had when it was opened."""
        self._files -= 1
        size = found.st_size
        left = min(size, self._bytes)
        while True:
            piece = _piece(fd, min(left, PIECE_BYTES))
            left -= len(piece)
            self._bytes -= len(piece)
            more = left > 0
            late = more and self._now() >= self._until
            changed = len(piece) == 0 and more
            if not more:
                changed = _version(os.fstat(fd)) != _version(found)
            if changed or late:
                why = "reading took too long" if late else "it changed while it was read"
                self._problem(path, why)
                return
            data = binascii.b2a_base64(piece, newline=False).decode("ascii")
            self._send(File(name=path, data=data, size=size, more=more))
            if not more:
                break
        if time.time() - found.st_ctime >= SETTLE_SECONDS:
            self.versions[path] = _version(found)


def open_below(above: int, name: str, flags: int) -> int:
    """Open what has a name in a directory that is open."""
    return os.open(name, flags, dir_fd=above)


def _piece(fd: int, size: int) -> bytes:
    """Return the next bytes, fewer only at the end."""
    parts = []
    while size > 0:
        data = os.read(fd, size)
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _settled(fd: int, found: os.stat_result) -> os.stat_result:
    """Return what is known of a file, a moment later if it has just changed."""
    age = time.time() - found.st_ctime
    if not 0 <= age < SETTLE_SECONDS:
        return found
    time.sleep(SETTLE_SECONDS - age + 0.001)
    return os.fstat(fd)


def _version(found: os.stat_result) -> Version:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _instead(above: int, name: str) -> str:
    """Return what is there that cannot be opened as it was meant; empty for nothing special."""
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


def _words(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "it was gone when it was to be read"
    return "it cannot be read: %s" % (error.strerror or error)
