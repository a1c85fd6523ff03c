"""The audit log of one state directory; each bridge writes files of its own, without a lock.

A line is a record as canonical JSON with `"hash"` put last, the SHA-256 of the line without it.
Each file is a chain of hashes, and its first record says how the files before it ended. Only what
is this user's own is opened, never through a link. docs/reference/audit.md has the fields.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import anyio
import anyio.to_thread

from bridge.errors import AuditError
from bridge.gate.approval import Approval
from bridge.gate.decision import canonical, digest
from bridge.model import PERSON_OWNERS, Json
from bridge.settings import Settings

logger = logging.getLogger(__name__)

Record = dict[str, Json]

CallKind = Literal["call", "refused", "held", "replayed"]
RunKind = Literal["run", "apply", "command", "end", "outcome", "found", "question", "plan", "skill"]
Kind = CallKind | RunKind | Literal["start", "approved", "policy", "retention"]

CALL_KINDS = frozenset(get_args(CallKind))
"""Kinds of records that each call of a program has one of."""

ALWAYS_WRITTEN = frozenset({"outcome", "end", "policy"})
"""Kinds of records that are written beyond the quota: few, and about what began before."""

MAX_RECORD_BYTES = 32 * 1024  # Of a record as JSON: a program sends arguments of any size.

ALIVE = ".live"  # Suffix of the file that one of several bridges locks while it lives.

_LINE = re.compile(rb'(.+),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(\d{6,})\.jsonl")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL


class Link(NamedTuple):
    """A record's number in its file, from 1, and its hash."""

    seq: int
    hash: str


def before_first(file: str) -> Link:
    """Return what the first record of a file follows: its name, so that it can get no other."""
    return Link(0, hashlib.sha256(file.encode()).hexdigest())


def link_record(record: Mapping[str, Json], after: Link, time: str) -> tuple[bytes, Link]:
    """Return a record's line, cut where it is too large, and its place in its file's chain."""
    chain = {"seq": after.seq + 1, "prev": after.hash, "time": time}
    body = _text({**record, **chain})
    if not 0 < len(body) <= MAX_RECORD_BYTES:
        body = canonical({**cut_record(record), **chain})
    found = hashlib.sha256(body.encode("ascii")).hexdigest()
    return f'{body[:-1]},"hash":"{found}"}}\n'.encode("ascii"), Link(after.seq + 1, found)


def check_line(line: bytes) -> Mapping[str, Json]:
    """Return the record of a line (with its newline); empty if it is not as it was written."""
    found = _LINE.fullmatch(line)
    if found is None or hashlib.sha256(found[1] + b"}").hexdigest().encode("ascii") != found[2]:
        return {}
    record = parse_line(line)
    fits = type(record.get("seq")) is int and isinstance(record.get("prev"), str)
    return record if fits else {}


def parse_line(line: bytes) -> Mapping[str, Json]:
    """Return the record in a line, unchecked; empty if it is none."""
    with suppress(ValueError, RecursionError):
        record: Json = json.loads(line)
        if isinstance(record, dict):
            return record
    return {}


def approval_fields(approval: Approval) -> Record:
    facts = {"holds": approval.holds, "earlier": approval.earlier, "note": approval.note}
    return without_empty({**facts, "waitedMs": approval.waited_ms or None})


def without_empty(facts: Mapping[str, Json]) -> Record:
    """Return facts without what is empty, which says nothing and would stand in every record."""
    return {name: value for name, value in facts.items() if value not in (None, "", [])}


def when(seconds: float) -> str:
    """Return a time as records have it: UTC, in milliseconds."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def cut_record(record: Mapping[str, Json], most: int = MAX_RECORD_BYTES) -> Mapping[str, Json]:
    """Return a record of at most so many bytes as JSON; "cut" has the digests of cut fields."""
    texts = {name: _text(value) for name, value in record.items()}
    if sum(map(len, texts.values())) <= most * 7 // 8 and all(texts.values()):
        return record
    found, cut = dict(record), dict(record.get("cut", {}))
    room = most // 16  # No record has more fields.
    for name, text in texts.items():
        if name != "cut" and not 0 < len(text) <= room:
            found[name] = f"{text[: room // 2]}… ({len(text):,} characters of JSON)"
            cut.setdefault(name, digest(text.encode("ascii")) if text else "")
    return {**found, "cut": cut}


def _text(value: Json) -> str:
    with suppress(RecursionError):
        return canonical(value)
    return ""


class LogFile(NamedTuple):
    """A file of the log with its size when it was listed; files sort in the order of beginning."""

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
    with os.fdopen(_open(name, os.O_RDONLY, folder), "rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            yield line, start


def last_lines(folder: int, file: LogFile, count: int) -> int:
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


@dataclass(kw_only=True)
class _OpenFile:
    """The file that is being written.

    When it was begun, `previous` had the last records of earlier files, and `others` their bytes.
    """

    path: Path
    day: str
    descriptor: int
    last: Link
    previous: Record
    others: int
    size: int = 0

    def is_there(self) -> bool:
        """Return whether the file is in its place, and as it was written."""
        try:
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - for each record
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self.descriptor)) and found.st_size == self.size

    def put(self, records: list[Mapping[str, Json]], time_text: str) -> int:
        """Write records in one piece, or nothing; return their bytes."""
        last, data = self.last, b""
        for record in records:
            first = {"previous": self.previous} if self.previous and not last.seq else {}
            line, last = link_record({**record, **first}, last, time_text)
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
        return len(data)


class AuditLog:
    """Appends records, each written before `append` returns; several bridges may share a directory.

    Args:
        directory: None records nothing.
        sync: Whether each record is on the disk before anything else is done.
        quota: Bytes of all files together. What other bridges wrote counts from the next file on,
            so that together they may exceed it by `largest` bytes each.
        largest: Bytes after which a file is followed by another.
        replica: The name of this bridge among several, each of which locks a file while it lives.
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
        replica: str = "",
    ) -> None:
        self.directory = directory
        self.sync = sync
        self._days = days
        self._quota = quota
        self._now = now
        self._largest = largest
        self._process = secrets.token_hex(8)
        self._signature = {"replica": replica, "process": self._process} if replica else {}
        self._lock: int | None = None
        self._file: _OpenFile | None = None
        self._left: Record = {}
        self._owed: list[Mapping[str, Json]] = []
        self._expired: list[str] = []  # Files to remove once that is recorded.
        self._turn = anyio.Lock()
        self._taken: Counter[str] = Counter()  # Bytes by caller over HTTP, since the start.

    async def append(self, record: Mapping[str, Json], *, owner: str = "terminal") -> str:
        """Write one record, after all that is owed, in an owner's share; return its hash."""
        if self.directory is None:
            return ""
        if not self.sync:
            return self._write(self.directory, [record], owner)
        # Waits for the disk, and is waited for if it is cancelled.
        async with self._turn:
            return await anyio.to_thread.run_sync(self._write, self.directory, [record], owner)

    def later(self, record: Mapping[str, Json]) -> None:
        """Queue a record before the next one; if it cannot be written, neither is the next."""
        # Bounded by the calls and runs that were under way when the log failed.
        if self.directory is not None:
            self._owed.append(record)

    def close(self) -> None:
        """Write what is owed, and close the file. Idempotent; a later record begins another."""
        if self.directory is None:
            return
        if self._owed:
            try:
                self._write(self.directory, [], "terminal")
            except AuditError as error:
                logger.warning("the audit log lacks outcomes of calls: %s", error)
        self._leave()
        if self._lock is not None:
            # There is nothing that another would have to end.
            (self.directory / f"{self._process}{ALIVE}").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _write(self, directory: Path, records: list[Mapping[str, Json]], owner: str) -> str:
        """Write what is owed, and records; return the last one's hash."""
        try:
            moment = when(self._now())
            always = all(each.get("kind") in ALWAYS_WRITTEN for each in records)
            file = self._current(directory, moment[:10], "" if always else owner)
            owed = self._owed.copy()
            written = file.put([{**each, **self._signature} for each in (*owed, *records)], moment)
        except OSError as error:
            raise self._write_error(error) from error
        if owner not in PERSON_OWNERS:
            self._taken[owner] += written
        # With `sync` this is in a thread: more may have been owed since.
        del self._owed[: len(owed)]
        while self._expired:
            with suppress(OSError):
                (directory / self._expired.pop()).unlink()
        return file.last.hash

    def _current(self, directory: Path, today: str, owner: str) -> _OpenFile:
        """Return the file to write to, if an owner has room in it; empty: beyond the quota."""
        file = self._file
        if file is not None and not file.is_there():
            self._leave()
        elif file is not None and file.size <= self._largest and file.day >= today:
            self._require_room(file.others + file.size, owner)
            return file
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        if self._signature and self._lock is None:
            self._enter(directory)
        oldest = (date.fromisoformat(today) - timedelta(days=self._days)).isoformat()
        with opened(directory) as (folder, files):
            expired = [each.name for each in files if each.day < oldest]
            others = sum(each.size for each in files[len(expired) :])
            self._require_room(others, owner)
            self._leave()
            previous: Record = {}
            for other in files[-8:]:
                with suppress(FileNotFoundError):
                    last = list(lines(folder, other.name, last_lines(folder, other, 1)))
                    # The last whole record; None if it is not as it was written.
                    whole = next((line for line, _ in reversed(last) if line[-1:] == b"\n"), b"")
                    record = check_line(whole)
                    previous[other.name] = [record["seq"], record["hash"]] if record else None
            # The last in order, also where the clock was put back.
            day, number = max([(today, 0), *(each[:2] for each in files)])
            name, descriptor = "", None
            flags = _NEW | os.O_DSYNC if self.sync else _NEW
            while descriptor is None:
                number += 1
                name = f"{day}-{number:06d}.jsonl"
                with suppress(FileExistsError):
                    descriptor = _open(name, flags, folder)
            if self.sync:
                os.fsync(folder)
        if expired:
            removal: Record = {"days": self._days, "before": oldest, "files": expired.copy()}
            self._owed.insert(0, {"kind": "retention", **removal})
            self._expired = expired
        self._file = _OpenFile(
            path=directory / name,
            day=day,
            descriptor=descriptor,
            last=before_first(name),
            previous=previous | self._left,
            others=others,
        )
        return self._file

    def _enter(self, directory: Path) -> None:
        """Lock a file of this bridge's own, so that others see that it lives."""
        path = directory / f"{self._process}{ALIVE}"
        # No other bridge gets the lock between the file's beginning and this.
        unlocked = path.with_suffix(".new")
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(path)

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            if file.last.seq:
                self._left = {file.path.name: file.last}
            os.close(file.descriptor)

    def _require_room(self, used: int, owner: str) -> None:
        """Refuse what is beyond the quota, or is beyond the share of a caller over HTTP.

        Together these callers have half of the quota. Beyond it, one that has written less than an
        equal share of that half continues, up to three quarters; the rest is for stdio and the
        terminal.
        """
        half = self._quota // 2
        share = half // len({*self._taken, owner})
        spent = self._taken[owner] >= share or used >= half + half // 2
        if owner and owner not in PERSON_OWNERS and used >= half and spent:
            message = (
                f"This caller has used up its share of the audit log: {share:,} bytes. Callers "
                f"over HTTP have {half:,} of its {self._quota:,} bytes"
            )
        elif owner and used >= self._quota:
            message = f"The audit log has the {self._quota:,} bytes that it may have"
        else:
            return
        remedy = (
            "Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, which removes what is "
            "older, and start the bridge again."
        )
        raise self._refusal(message, remedy)

    def _write_error(self, error: OSError) -> AuditError:
        remedy = "See that this user can write there, or set MCP_BRIDGE_STATE_DIR elsewhere."
        if error.errno == errno.EPERM:
            remedy = "Make it this user's own, with mode 0700 and files of mode 0600."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "Make room on its disk; nothing has to be started again."
        reason = error.strerror or str(error)
        return self._refusal(f"The audit log cannot be written ({reason})", remedy)

    def _refusal(self, message: str, remedy: str) -> AuditError:
        message += ", and no call is made without it."
        return AuditError(message, host_detail=f"It is in {self.directory}.", remedy=remedy)


def audit_log(settings: Settings) -> AuditLog:
    return AuditLog(
        None if settings.audit == "off" else settings.state_dir / "audit",
        sync=settings.audit == "sync",
        days=settings.audit_days,
        quota=settings.audit_bytes,
        replica=settings.replica,
    )
