"""Appending to the audit log's files.

Owns the one lock, the one `write` per record, the `head` file, the change to a new file, and what
happens when a write does not succeed: the file is as it was before. Synchronous: nothing here waits
for anybody, and a lock that somebody else has is reported as such.

Every append holds a `flock` on the `head` file, which is never replaced. Whether somebody else has
written since is seen from that file and from the size of the log's own; only then is the end of the
log read again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.gate.audit.chain import GENESIS, Link, linked
from bridge.gate.audit.folder import file_end, list_files, open_file, open_folder, read_tail
from bridge.gate.audit.records import MAX_RECORD_BYTES, Record, fitted, when
from bridge.gate.audit.resuming import (
    HEAD_BYTES,
    HEAD_FILE,
    Head,
    Name,
    head_bytes,
    parse_head,
    resume,
)
from bridge.model import Json

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A file that would grow beyond is followed by another part of the same day."""

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_TRIES = 3
"""To lock a `head` file that is still there once it is locked."""


@dataclass(kw_only=True)
class _File:
    """The file that is being written.

    Attributes:
        text: Its name as it is on the disk.
    """

    name: Name
    text: str
    descriptor: int
    inode: int
    size: int


class Files:
    """The files of one directory, as one bridge writes them. Opens nothing before it is used.

    Args:
        now: Seconds since 1970.
        largest: Bytes of a file.
        durable: Whether new names in the directory have to survive a power cut.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now: Callable[[], float] = time.time,
        largest: int = MAX_FILE_BYTES,
        durable: bool = False,
    ) -> None:
        self.directory = directory
        self._now = now
        self._largest = largest
        self._durable = durable
        self._folder = -1
        self._head = -1
        self._head_data = b""
        self._file: _File | None = None
        self._others: tuple[Name, int] | None = None
        self._link: Link | None = None

    def lock(self) -> bool:
        """Take the lock, opening what has to be open; tell whether nobody else has it.

        Raises:
            UnsafeError: Something in the way is not ours.
            OSError: The directory or the lock cannot be used.
        """
        for _ in range(_TRIES):
            if self._head < 0:
                self._open()
            try:
                fcntl.flock(self._head, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if os.fstat(self._head).st_nlink == 1:
                return True
            # Taken away, perhaps with the whole directory.
            self._close_descriptors()
        message = "it is taken away again and again"
        raise OSError(errno.ENOENT, message)

    def unlock(self) -> None:
        """Let go of the lock."""
        if self._head >= 0:
            fcntl.flock(self._head, fcntl.LOCK_UN)

    def append(self, records: Sequence[Mapping[str, Json]]) -> Link:
        """Write records, in one piece, and return the last one's place. Under the lock.

        Raises:
            UnsafeError: Something in the way is not ours.
            OSError: They could not be written; the log is as it was.
        """
        try:
            found, ending = self._current()
            return self._write([*found, *records], ending)
        except BaseException:
            # Whatever it is, nothing is known any more but the last record.
            self._forget_file()
            raise

    @property
    def descriptor(self) -> int:
        """The file that was written last."""
        assert self._file is not None
        return self._file.descriptor

    @property
    def total_bytes(self) -> int:
        """What all files have; 0 before the first is open. The others are looked at once a file."""
        file = self._file
        if file is None:
            return 0
        if self._others is None or self._others[0] != file.name:
            others = [each for each in list_files(self._folder) if each.name != file.name]
            self._others = (file.name, sum(each.size for each in others))
        return self._others[1] + file.size

    def recount(self) -> None:
        """Look at the other files again, some of which are gone."""
        self._others = None

    @property
    def folder(self) -> int:
        """The directory. Under the lock."""
        return self._folder

    @property
    def name(self) -> Name | None:
        """The name of the file that was written last."""
        return None if self._file is None else self._file.name

    def close(self) -> None:
        """Close everything. Idempotent; what comes later opens it again."""
        self._close_descriptors()

    def _open(self) -> None:
        self._folder = open_folder(self.directory, create=True)
        try:
            self._head = open_file(self._folder, HEAD_FILE, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self._close_descriptors()
            raise

    def _close_descriptors(self) -> None:
        self._forget_file()
        for descriptor in (self._head, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._head = self._folder = -1

    def _forget_file(self) -> None:
        self._head_data = b""
        if self._file is not None:
            os.close(self._file.descriptor)
            self._file = None

    def _current(self) -> tuple[Sequence[Record], bytes]:
        """Have the file that is to be written open, and the last record known.

        Returns:
            What has to be recorded first, and what ends the file's last line first.
        """
        file = self._file
        if file is not None and os.pread(self._head, HEAD_BYTES + 1, 0) == self._head_data:
            try:
                # By its name: a file that was moved away must not be written any longer.
                found = os.stat(file.text, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                found = None
            if found is not None and (found.st_ino, found.st_size) == (file.inode, file.size):
                return (), b""
        return self._catch_up()

    def _catch_up(self) -> tuple[Sequence[Record], bytes]:
        self._forget_file()
        data = os.pread(self._head, HEAD_BYTES + 1, 0)
        head = parse_head(data)
        if head is not None and self._goes_on(head):
            return (), b""
        known = [link for link in (None if head is None else head.link, self._link) if link]
        tail = read_tail(self._folder)
        if not data and tail is None and not known:
            known = [GENESIS]
        resumption = resume(max(known, key=lambda link: link.seq) if known else None, tail)
        self._link = resumption.after
        if tail is not None and resumption.lacks_newline:
            self._use(tail.name)
            self._put(b"\n")
        # An empty file was made by somebody who was killed before the first record.
        names = [file.name for file in list_files(self._folder)]
        name = names[-1] if names else Name(when(self._now())[:10])
        self._use(name)
        ending = resumption.ending if tail is not None and tail.name == name else b""
        return resumption.records, ending

    def _goes_on(self, head: Head) -> bool:
        """Go on where the head says, if that is where the log ends; else do nothing.

        That is how it is when another bridge has written, and costs a tenth of looking at all.
        """
        if head.name is None or (self._link is not None and self._link.seq > head.link.seq):
            return False
        try:
            last, rest = file_end(self._folder, head.name)
        except FileNotFoundError:
            return False
        if last is None or rest or last.link != head.link:
            return False
        self._link = head.link
        self._use(head.name)
        return True

    def _use(self, name: Name) -> None:
        """Open a file, and have the head name it before anything is written to it."""
        assert self._link is not None
        descriptor = open_file(self._folder, str(name), _APPEND)
        found = os.fstat(descriptor)
        previous, self._file = (
            self._file,
            _File(
                name=name,
                text=str(name),
                descriptor=descriptor,
                inode=found.st_ino,
                size=found.st_size,
            ),
        )
        if previous is not None:
            os.close(previous.descriptor)
        self._write_head(self._link)
        if self._durable and not found.st_size:
            os.fsync(self._head)
            os.fsync(self._folder)

    def _write_head(self, link: Link) -> None:
        assert self._file is not None
        data = head_bytes(link, self._file.text)
        if os.pwrite(self._head, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._head_data = data

    def _write(self, records: Sequence[Mapping[str, Json]], ending: bytes) -> Link:
        assert self._file is not None
        assert self._link is not None
        time_text = when(self._now())
        if self._file.name.day < time_text[:10]:
            self._use(Name(time_text[:10]))
            ending = b""
        lines, link = self._lines(records, time_text)
        if self._file.size and self._file.size + len(lines) > self._largest:
            self._use(self._file.name.next)
            ending = b""
        self._put(ending + lines)
        try:
            self._write_head(link)
        except OSError:
            self._cut_back()
            raise
        self._file.size += len(ending) + len(lines)
        self._link = link
        return link

    def _lines(self, records: Sequence[Mapping[str, Json]], time_text: str) -> tuple[bytes, Link]:
        assert self._link is not None
        link, lines = self._link, []
        for record in records:
            line, after = _line(record, link, time_text)
            lines.append(line)
            link = after
        return b"".join(lines), link

    def _put(self, data: bytes) -> None:
        """Write all of `data` to the file, or nothing."""
        assert self._file is not None
        try:
            written = os.write(self._file.descriptor, data)
        except OSError:
            self._cut_back()
            raise
        if written != len(data):
            self._cut_back()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _cut_back(self) -> None:
        """Take away what was written last. Where that fails, the next writer records the rest."""
        assert self._file is not None
        with suppress(OSError):
            os.ftruncate(self._file.descriptor, self._file.size)


def _line(record: Mapping[str, Json], after: Link, time: str) -> tuple[bytes, Link]:
    """Return a record's line, cut where it is too large."""
    try:
        line, link = linked(record, after, time)
        if len(line) <= MAX_RECORD_BYTES:
            return line, link
    except RecursionError:
        pass
    return linked(fitted(record), after, time)
