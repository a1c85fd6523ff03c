"""The audit log of one state directory. Each bridge writes its own files, without a lock.

A line is a record as canonical JSON that ends with `"hash"`, the SHA-256 of the rest. A file is a
hash chain, and its first record names the last records of earlier files.
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
from dataclasses import KW_ONLY, dataclass
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

CALL_KINDS = frozenset(get_args(CallKind))  # Each call of a program has one of these records.
ALWAYS_WRITTEN = frozenset({"outcome", "end", "policy"})  # The quota does not stop these few.
MAX_RECORD_BYTES = 32 * 1024  # A program sends arguments of any size.
ALIVE = ".live"  # Suffix of the file that each of several bridges locks while it runs.

_LINE = re.compile(rb'(.+),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)
_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}\.jsonl")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL


class Link(NamedTuple):
    seq: int  # The number of a record in its file, from 1.
    hash: str


def before_first(file: str) -> Link:
    """Return the start of a file's chain: the hash of its name, so that a renamed file is found."""
    return Link(0, hashlib.sha256(file.encode()).hexdigest())


def link_record(record: Mapping[str, Json], after: Link, time: str) -> tuple[bytes, Link]:
    """Return the line of a record, with large fields cut, and its link in the chain."""
    chain = {"seq": after.seq + 1, "prev": after.hash, "time": time}
    body = _text({**record, **chain})
    if not 0 < len(body) <= MAX_RECORD_BYTES:
        body = canonical({**cut_record(record), **chain})
    digest_hex = hashlib.sha256(body.encode("ascii")).hexdigest()
    return f'{body[:-1]},"hash":"{digest_hex}"}}\n'.encode("ascii"), Link(after.seq + 1, digest_hex)


def check_line(line: bytes) -> Mapping[str, Json]:
    """Return the record of a line with its newline, or an empty mapping if the hash is wrong."""
    match = _LINE.fullmatch(line)
    if match is None or hashlib.sha256(match[1] + b"}").hexdigest().encode("ascii") != match[2]:
        return {}
    record = parse_line(line)
    fits = type(record.get("seq")) is int and isinstance(record.get("prev"), str)
    return record if fits else {}


def parse_line(line: bytes) -> Mapping[str, Json]:
    """Return the unchecked record of a line, or an empty mapping for other text."""
    with suppress(ValueError, RecursionError):
        record: Json = json.loads(line)
        if isinstance(record, dict):
            return record
    return {}


def approval_fields(approval: Approval) -> Record:
    facts = {"holds": approval.holds, "earlier": approval.earlier, "note": approval.note}
    return without_empty({**facts, "waitedMs": approval.waited_ms or None})


def without_empty(facts: Mapping[str, Json]) -> Record:
    return {name: value for name, value in facts.items() if value not in (None, "", [])}


def utc_text(seconds: float) -> str:
    """Return a Unix time in UTC with milliseconds, as records have it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def cut_record(record: Mapping[str, Json], most: int = MAX_RECORD_BYTES) -> Mapping[str, Json]:
    """Return a record with at most `most` bytes of JSON. Its "cut" has digests of cut fields."""
    texts = {name: _text(value) for name, value in record.items()}
    if sum(map(len, texts.values())) <= most * 7 // 8 and all(texts.values()):
        return record
    fields, cut = dict(record), dict(record.get("cut", {}))
    room = most // 16  # No record has more fields.
    for name, text in texts.items():
        if name != "cut" and not 0 < len(text) <= room:
            fields[name] = f"{text[: room // 2]}… ({len(text):,} characters of JSON)"
            cut.setdefault(name, digest(text.encode("ascii")) if text else "")
    return {**fields, "cut": cut}


def _text(value: Json) -> str:
    with suppress(RecursionError):
        return canonical(value)
    return ""


def _open_own(path: Path | str, flags: int, folder: int | None = None) -> int:
    """Open the directory, or a plain file in it, if it is no link and only this user can write."""
    what = "it" if folder is None else f"{path} in it"
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.EPERM, f"{what} is a link or no directory") from error
        raise
    status = os.fstat(descriptor)
    plain = folder is None or (stat.S_ISREG(status.st_mode) and status.st_nlink <= 1)
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if plain and status.st_uid == os.geteuid() and not others_write:
        return descriptor
    os.close(descriptor)
    wrong = "may be written by other users" if others_write else "is not this user's plain file"
    raise OSError(errno.EPERM, f"{what} {wrong}")


@contextmanager
def opened(directory: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """Open the directory, and yield it with its files in order: names to bytes."""
    folder, files = _open_own(directory, os.O_RDONLY | os.O_DIRECTORY), dict[str, int]()
    try:
        for name in filter(_NAME.fullmatch, sorted(os.listdir(folder))):  # noqa: PTH208 - a descriptor
            # Another bridge may remove old files now.
            with suppress(FileNotFoundError):
                files[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        yield folder, files
    finally:
        os.close(folder)


def lines(folder: int, name: str, start: int = 0) -> Iterator[tuple[bytes, int]]:
    with os.fdopen(_open_own(name, os.O_RDONLY, folder), "rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            yield line, start


def last_lines(folder: int, name: str, size: int, count: int) -> int:
    """Return the offset of the last `count` lines of a file."""
    portion = 4 * MAX_RECORD_BYTES
    with os.fdopen(_open_own(name, os.O_RDONLY, folder), "rb") as file:
        while True:
            start = file.seek(max(0, size - portion))
            before, *rest = file.read(portion).rsplit(b"\n", count + 1)
            if len(rest) == count + 1:
                return start + len(before) + 1
            if not start:
                return 0
            portion *= 4


@dataclass(kw_only=True)
class _OpenFile:
    """The file that this bridge writes.

    `previous` has the last records of the files that existed before it, and `others` their bytes.
    """

    path: Path
    descriptor: int
    last: Link
    previous: Record
    others: int
    size: int = 0

    def is_intact(self) -> bool:
        try:
            status = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - for each record
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self.descriptor)) and status.st_size == self.size

    def put(self, records: list[Mapping[str, Json]], time_text: str) -> int:
        """Write all records or none, and return the bytes written."""
        last, data = self.last, b""
        for record in records:
            first = {"previous": self.previous} if self.previous and not last.seq else {}
            line, last = link_record({**record, **first}, last, time_text)
            data += line
        try:
            if os.write(self.descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # If this fails too, the next record starts a new file.
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.last = last
        self.size += len(data)
        return len(data)


@dataclass(eq=False)
class AuditLog:
    """The audit log as one bridge writes it. Several bridges may share a directory.

    Args:
        directory: None records nothing.
        sync: Whether `append` waits until the record is on the disk.
        quota: Bytes of all files. A bridge counts the files of others when it starts a file, so
            that each bridge may exceed the quota by `largest` bytes.
        largest: Bytes after which the bridge starts another file.
        replica: The name of this bridge, if bridges end the runs of dead ones.
    """

    directory: Path | None = None
    _: KW_ONLY
    sync: bool = False
    days: int = 90
    quota: int = 4 * 1024**3  # Some eight million calls.
    now: Callable[[], float] = time.time
    largest: int = 16 * 1024 * 1024
    replica: str = ""

    def __post_init__(self) -> None:
        self._process = secrets.token_hex(8)
        signature = {"replica": self.replica, "process": self._process}
        self._signature = signature if self.replica else {}
        self._lock: int | None = None
        self._file: _OpenFile | None = None
        self._left: Record = {}
        self._owed: list[Mapping[str, Json]] = []
        self._expired: list[str] = []  # Files to remove after the record of their removal.
        self._turn = anyio.Lock()
        self._taken: Counter[str] = Counter()  # Bytes by caller over HTTP, since the start.

    async def append(self, record: Mapping[str, Json], *, owner: str = "terminal") -> str:
        """Write the queued records and this one, in an owner's share, and return its hash."""
        if self.directory is None:
            return ""
        if not self.sync:
            return self._write(self.directory, [record], owner)
        # A cancelled caller waits for this thread.
        async with self._turn:
            return await anyio.to_thread.run_sync(self._write, self.directory, [record], owner)

    def later(self, record: Mapping[str, Json]) -> None:
        """Queue a record. The log writes no other record before it."""
        # The calls and runs that were active when the log failed bound this list.
        if self.directory is not None:
            self._owed.append(record)

    def close(self) -> None:
        """Write the queued records and close the file. A later record starts another file."""
        if self.directory is None:
            return
        if self._owed:
            try:
                self._write(self.directory, [], "terminal")
            except AuditError as error:
                logger.warning("the audit log lacks outcomes of calls: %s", error)
        self._leave()
        if self._lock is not None:
            # No run is left for another bridge to end.
            (self.directory / f"{self._process}{ALIVE}").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _write(self, directory: Path, records: list[Mapping[str, Json]], owner: str) -> str:
        try:
            moment = utc_text(self.now())
            always = all(each.get("kind") in ALWAYS_WRITTEN for each in records)
            file = self._current(directory, moment[:10], "" if always else owner)
            owed = self._owed.copy()
            written = file.put([{**each, **self._signature} for each in (*owed, *records)], moment)
        except OSError as error:
            message = f"The audit log cannot be written ({error.strerror or error})"
            remedy = (
                "Make room on its disk, and let only this user write it (mode 0700, files 0600), "
                "or set MCP_BRIDGE_STATE_DIR elsewhere. The bridge need not start again."
            )
            raise self._error(message, remedy) from error
        if owner not in PERSON_OWNERS:
            self._taken[owner] += written
        # With `sync` this is a thread, and the event loop may have queued more records.
        del self._owed[: len(owed)]
        while self._expired:
            with suppress(OSError):
                (directory / self._expired.pop()).unlink()
        return file.last.hash

    def _current(self, directory: Path, today: str, owner: str) -> _OpenFile:
        """Return the file to write to if the quota has room for the owner; `""` is not limited."""
        file = self._file
        if file is not None and not file.is_intact():
            self._leave()
        elif file is not None and file.size <= self.largest and file.path.name >= today:
            self._require_room(file.others + file.size, owner)
            return file
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        if self._signature and self._lock is None:
            # Locked before it has its name, so that no other bridge gets the lock first.
            unnamed = directory / f"{self._process}.new"
            self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unnamed.rename(unnamed.with_suffix(ALIVE))
        oldest = (date.fromisoformat(today) - timedelta(days=self.days)).isoformat()
        with opened(directory) as (folder, files):
            expired = [name for name in files if name < oldest]
            others = sum(files.values()) - sum(files[name] for name in expired)
            self._require_room(others, owner)
            self._leave()
            previous: Record = {}
            for name, size in list(files.items())[-8:]:
                with suppress(FileNotFoundError):
                    last = list(lines(folder, name, last_lines(folder, name, size, 1)))
                    # The last complete record; None if its hash is wrong.
                    whole = next((line for line, _ in reversed(last) if line[-1:] == b"\n"), b"")
                    record = check_line(whole)
                    previous[name] = [record["seq"], record["hash"]] if record else None
            # The new file is the last in order, even if the clock was set back.
            newest = max([f"{today}-000000", *files])
            day, number, descriptor = newest[:10], int(newest[11:17]), None
            flags = _NEW | os.O_DSYNC if self.sync else _NEW
            while descriptor is None:
                number += 1
                name = f"{day}-{number:06d}.jsonl"
                with suppress(FileExistsError):
                    descriptor = _open_own(name, flags, folder)
            if self.sync:
                os.fsync(folder)
        if expired:
            removal: Record = {"days": self.days, "before": oldest, "files": expired.copy()}
            self._owed.insert(0, {"kind": "retention", **removal})
            self._expired = expired
        self._file = _OpenFile(
            path=directory / name,
            descriptor=descriptor,
            last=before_first(name),
            previous=previous | self._left,
            others=others,
        )
        return self._file

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            if file.last.seq:
                self._left = {file.path.name: file.last}
            os.close(file.descriptor)

    def _require_room(self, used: int, owner: str) -> None:
        """Raise if the log has no room for an owner.

        Callers over HTTP have half of the quota. Beyond that half, a caller below its equal share
        of it may write until three quarters are full. The rest is for stdio and the terminal.
        """
        half = self.quota // 2
        share = half // len({*self._taken, owner})
        spent = self._taken[owner] >= share or used >= half + half // 2
        if owner and owner not in PERSON_OWNERS and used >= half and spent:
            message = (
                f"This caller has used up its share of the audit log: {share:,} bytes. Callers "
                f"over HTTP have {half:,} of its {self.quota:,} bytes"
            )
        elif owner and used >= self.quota:
            message = f"The audit log has reached its limit of {self.quota:,} bytes"
        else:
            return
        remedy = (
            "Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, which removes what is "
            "older, and start the bridge again."
        )
        raise self._error(message, remedy)

    def _error(self, message: str, remedy: str) -> AuditError:
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
