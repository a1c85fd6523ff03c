"""The audit log of one state directory, as one bridge writes it: files of its own, one at a time.

Owns that only what is this user's own is opened, never through a link; the one `write` for each
record, and what happens when that fails; the change to another file, what all files may take and
how old they become; and what is owed to the log because it could not be written in time. Bridges do
not wait for each other: each file is a chain of hashes of its own, and its first record says how
the files before it ended at that moment.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from bridge.errors import AuditError
from bridge.gate.audit.records import (
    MAX_RECORD_BYTES,
    Link,
    Record,
    before_first,
    linked,
    read_line,
    when,
    without_empty,
)
from bridge.model import PERSON_OWNERS, Json
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.gate.audit.orphans import Presence

logger = logging.getLogger(__name__)

ALWAYS_WRITTEN = frozenset({"outcome", "end", "policy"})
"""Kinds of records that are written beyond the quota: few, and about what began before."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(\d{6,})\.jsonl")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogFile(NamedTuple):
    """A file of the log with its size when it was listed; files sort in the order of beginning.

    `number` is that of the file in its day.
    """

    day: str
    number: int
    name: str
    size: int


def _open(path: Path | str, flags: int, folder: int | None = None) -> int:
    """Open the directory, or a file in it, if it is this user's alone; links are not followed."""
    what = "it" if folder is None else f"{path} in it"
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.EPERM, f"{what} is a link or no directory") from error
        raise
    status, wrong = os.fstat(descriptor), ""
    if folder is not None and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
        wrong = "is no plain file, or has other names elsewhere"
    elif status.st_uid != os.geteuid():
        wrong = "belongs to another user"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "may be written by other users"
    if wrong:
        os.close(descriptor)
        raise OSError(errno.EPERM, f"{what} {wrong}")
    return descriptor


@contextmanager
def opened(directory: Path) -> Iterator[tuple[int, list[LogFile]]]:
    """Open the directory and list its files in the order in which they were begun."""
    folder, files = _open(directory, os.O_RDONLY | os.O_DIRECTORY), []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Another bridge may be removing old ones.
                with suppress(FileNotFoundError):
                    if name := _NAME.fullmatch(entry.name):
                        size = entry.stat(follow_symlinks=False).st_size
                        files.append(LogFile(name[1], int(name[2]), entry.name, size))
        yield folder, sorted(files)
    finally:
        os.close(folder)


def lines(folder: int, name: str, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file with their newlines, and the offset at which each ends."""
    with os.fdopen(_open(name, os.O_RDONLY, folder), "rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            yield line, start


def last_lines(folder: int, file: LogFile, count: int) -> int:
    """Return the offset at which the last lines of a file begin."""
    size = 4 * MAX_RECORD_BYTES
    with os.fdopen(_open(file.name, os.O_RDONLY, folder), "rb") as opened_file:
        while True:
            start = opened_file.seek(max(0, file.size - size))
            before, *rest = opened_file.read(size).rsplit(b"\n", count + 1)
            if len(rest) == count + 1:
                return start + len(before) + 1
            if not start:
                return 0
            size *= 4


def _last_link(folder: int, file: LogFile) -> Link | None:
    """Return the place of a file's last whole record; None if it is not as it was written."""
    link = None
    for data, _ in lines(folder, file.name, last_lines(folder, file, 1)):
        if data.endswith(b"\n"):
            line = read_line(data)
            link = None if line is None else line.link
    return link


@dataclass(kw_only=True)
class _File:
    """The file that is being written.

    Attributes:
        last: Its last record.
        previous: How the files before it ended when it was begun.
        others: Bytes of all other files at that time.
        expired: Files to remove once that is recorded.
    """

    path: Path
    day: str
    descriptor: int
    last: Link
    previous: Record
    others: int
    expired: list[str]
    size: int = 0

    def is_there(self) -> bool:
        """Return whether the file is in its place, and as it was written."""
        try:
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - for each record
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self.descriptor)) and found.st_size == self.size

    def put(self, records: Sequence[Mapping[str, Json]], time_text: str) -> None:
        """Write records in one piece, or nothing."""
        last, data = self.last, b""
        for record in records:
            first = {} if last.seq else without_empty({"previous": self.previous or None})
            line, last = linked({**record, **first}, last, time_text)
            data += line
        try:
            if os.write(self.descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # If this fails as well, the file stays, and a new one is begun.
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.last = last
        self.size += len(data)


class AuditLog:
    """Appends records, each written before `append` returns.

    Several bridges may share a directory. Entering is not needed; `close` when done.

    Args:
        directory: None records nothing.
        sync: Whether each record is on the disk before anything else is done.
        days: How long files are kept.
        quota: Bytes of all files together.
        now: Seconds since 1970.
        largest: Bytes after which a file is followed by another. What other bridges have written
            counts from then on, so together they may exceed the quota by so much.
        presence: Of one of several bridges: says that it lives, and signs its records.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        sync: bool = False,
        days: int = 90,
        quota: int = 4 * 1024**3,  # some eight million calls
        now: Callable[[], float] = time.time,
        largest: int = 16 * 1024 * 1024,
        presence: Presence | None = None,
    ) -> None:
        self.directory = directory
        self.sync = sync
        self._days = days
        self._quota = quota
        self._now = now
        self._largest = largest
        self._presence = presence
        self._file: _File | None = None
        self._left: Record = {}
        self._owed: list[Mapping[str, Json]] = []
        self._taken: Counter[str] = Counter()  # Bytes by caller over HTTP, since the start.

    async def append(
        self,
        record: Mapping[str, Json],
        otherwise: Mapping[str, Json] | None = None,
        *,
        owner: str = "terminal",
    ) -> str:
        """Write one record, after all that is owed, and return its hash.

        Args:
            otherwise: What is owed if the record is written, and this fails or is cancelled all
                the same, because of the disk.
            owner: Whose share it is written in; see `RunRequest`.

        Raises:
            AuditError: It could not be written, or is not known to be on the disk.
        """
        if self.directory is None:
            return ""
        always = record.get("kind") in ALWAYS_WRITTEN
        if not always and owner not in PERSON_OWNERS:
            self._require_share(self.directory, owner)
        before = self._file
        size = before.size if before is not None else 0
        file = self._write(self.directory, [record], always=always)
        head = file.last.hash
        if owner not in PERSON_OWNERS:
            self._taken[owner] += file.size - (size if file is before else 0)
        if self.sync:
            try:
                await self._to_disk(file.descriptor)
            except BaseException:
                if otherwise is not None:
                    self.later(otherwise)
                raise
        return head

    def _require_share(self, directory: Path, owner: str) -> None:
        """Refuse what a caller over HTTP writes beyond its share.

        Together these callers have half of the quota. Beyond it, one that has written less than an
        equal share of that half continues, up to three quarters; the rest is for stdio and the
        terminal.
        """
        file, used = self._file, 0
        if file is not None:
            used = file.others + file.size
        else:
            with suppress(OSError), opened(directory) as (_, files):
                used = sum(each.size for each in files)
        half = self._quota // 2
        share = half // len({*self._taken, owner})
        if used >= half and (self._taken[owner] >= share or used >= half + half // 2):
            raise AuditError(
                f"This caller has used up its share of the audit log: {share:,} bytes. Callers "
                f"over HTTP have {half:,} of its {self._quota:,} bytes, and no call is made "
                "without it.",
                remedy="Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, and start "
                "the bridge again.",
            )

    def later(self, record: Mapping[str, Json]) -> None:
        """Queue a record before the next one; if it cannot be written, neither is the next."""
        # Bounded by the calls and runs that were under way when the log failed.
        if self.directory is not None:
            self._owed.append(record)

    def close(self) -> None:
        """Write what is owed, and close the file. Idempotent; a later record begins another."""
        if self.directory is not None and self._owed:
            try:
                self._write(self.directory, [], always=True)
            except AuditError as error:
                logger.warning("the audit log lacks outcomes of calls: %s", error)
        self._leave()
        if self._presence is not None:
            self._presence.leave()

    def _write(
        self, directory: Path, records: Sequence[Mapping[str, Json]], *, always: bool
    ) -> _File:
        """Write what is owed, and records; if `always`, beyond the quota as well."""
        try:
            moment = when(self._now())
            file = self._current(directory, moment[:10], always=always)
            due = [*self._owed, *records]
            if file.expired:
                removal = {"days": self._days, "before": self._oldest(), "files": file.expired}
                due.insert(0, {"kind": "retention", **removal})
            if self._presence is not None:
                due = [{**each, **self._presence.signature} for each in due]
            file.put(due, moment)
        except OSError as error:
            raise self._failed(error) from error
        self._owed.clear()
        while file.expired:
            with suppress(OSError):
                (directory / file.expired.pop()).unlink()
        return file

    def _current(self, directory: Path, today: str, *, always: bool) -> _File:
        """Return the file to write to, if there is room."""
        file = self._file
        if file is not None and not file.is_there():
            self._leave()
        elif file is not None and file.size <= self._largest and file.day >= today:
            self._require_room(file.others + file.size, always=always)
            return file
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        if self._presence is not None:
            self._presence.enter()
        with opened(directory) as (folder, files):
            expired = [each.name for each in files if each.day < self._oldest()]
            others = sum(each.size for each in files[len(expired) :])
            self._require_room(others, always=always)
            self._leave()
            previous: Record = {}
            for other in files[-8:]:
                with suppress(FileNotFoundError):
                    previous[other.name] = _last_link(folder, other)
            # The last in order, also where the clock was put back.
            day, number = max([(today, 0), *(each[:2] for each in files)])
            name, descriptor = "", None
            while descriptor is None:
                number += 1
                name = f"{day}-{number:06d}.jsonl"
                with suppress(FileExistsError):
                    descriptor = _open(name, _NEW, folder)
            if self.sync:
                os.fsync(folder)
        self._file = _File(
            path=directory / name,
            day=day,
            descriptor=descriptor,
            last=before_first(name),
            previous=previous | self._left,
            others=others,
            expired=expired,
        )
        return self._file

    def _oldest(self) -> str:
        """Return the first day whose files are kept."""
        return (date.fromisoformat(when(self._now())[:10]) - timedelta(days=self._days)).isoformat()

    def _leave(self) -> None:
        """Close the file, remembering how it ended."""
        file, self._file = self._file, None
        if file is not None:
            if file.last.seq:
                self._left = {file.path.name: file.last}
            os.close(file.descriptor)

    async def _to_disk(self, descriptor: int) -> None:
        # A copy: another task may go on to a new file meanwhile.
        descriptor = os.dup(descriptor)
        try:
            # macOS has no fdatasync.
            await anyio.to_thread.run_sync(getattr(os, "fdatasync", os.fsync), descriptor)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(descriptor)

    def _require_room(self, used: int, *, always: bool) -> None:
        if always or used < self._quota:
            return
        raise AuditError(
            f"The audit log has the {self._quota:,} bytes that it may have, and no call is made "
            "without it.",
            host_detail=f"It is in {self.directory}.",
            remedy="Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, which removes "
            "what is older, and start the bridge again.",
        )

    def _failed(self, error: OSError) -> AuditError:
        remedy = "See that this user can write there, or set MCP_BRIDGE_STATE_DIR elsewhere."
        if error.errno == errno.EPERM:
            remedy = "Make it this user's own, with mode 0700 and files of mode 0600."
        elif error.errno in _NO_ROOM:
            remedy = "Make room on its disk; nothing has to be started again."
        reason = error.strerror or str(error)
        message = f"The audit log cannot be written ({reason}), and no call is made without it."
        return AuditError(message, host_detail=f"It is in {self.directory}.", remedy=remedy)


def audit_log(settings: Settings) -> AuditLog:
    directory = None if settings.audit == "off" else settings.state_dir / "audit"
    presence: Presence | None = None
    if settings.replica and directory is not None:
        # Imported here: a bridge that is alone does without.
        from bridge.gate.audit.orphans import Presence

        presence = Presence(directory, settings.replica)
    return AuditLog(
        directory,
        sync=settings.audit == "sync",
        days=settings.audit_days,
        quota=settings.audit_bytes,
        presence=presence,
    )
