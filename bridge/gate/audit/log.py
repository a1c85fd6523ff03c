"""The audit log of one state directory, and the records of runs in it.

Each bridge writes its own files, without a lock. A line is a record as canonical JSON that ends
with `"hash"`, the SHA-256 of the rest. A file is a hash chain, and its first record names the last
records of earlier files.
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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import anyio.to_thread

from bridge.errors import AuditError
from bridge.event_loop import estimated_size, offload, utc_text
from bridge.gate.approval import Approval
from bridge.gate.journal import Outcome, arguments_digest, canonical, digest
from bridge.gate.policy import CallFacts, Decision, Mask, no_mask
from bridge.model import PERSON_OWNERS, Json
from bridge.settings import Settings

logger = logging.getLogger(__name__)

Record = dict[str, Json]

CallKind = Literal["call", "refused", "held", "replayed"]  # A call has one of these records.
RunKind = Literal["run", "apply", "command", "end", "outcome", "found", "question", "plan", "skill"]
Kind = CallKind | RunKind | Literal["start", "approved", "policy", "retention"]

ALWAYS_WRITTEN = frozenset({"outcome", "end", "policy"})  # The quota does not stop these few.
MAX_RECORD_BYTES = 32 * 1024  # A program sends arguments of any size.
ALIVE = ".live"  # Suffix of the file that each of several bridges locks while it runs.

UNREADABLE = "could not be searched for secrets, and so is not recorded"
SMALL = 2 * 1024  # Bytes of arguments that fit into a record even if every character is escaped.
MAX_SEARCHED = 2 * 1024 * 1024  # Bytes of arguments; a program sends more.
RUN_BYTES = 64 * 1024 * 1024  # Of a run's calls: three times the need of 10,000 `SMALL` ones.
WHOLE_RECORDS = 10  # Refused calls of one kind with their own record; further ones are counted.

_KIND_FIELDS = ("server", "tool", "decision", "rule", "why")
_OTHERS = ("", "", "", "others", "")  # The kind of all calls beyond the limit on kinds.

_LINE = re.compile(rb'(.+),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)
_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}\.jsonl")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL


class ChainLink(NamedTuple):
    seq: int  # The number of a record in its file, from 1.
    hash: str


def before_first(file: str) -> ChainLink:
    """Return the start of a file's chain: the hash of its name, so that a renamed file is found."""
    return ChainLink(0, hashlib.sha256(file.encode()).hexdigest())


def link_record(record: Mapping[str, Json], after: ChainLink, time: str) -> tuple[bytes, ChainLink]:
    """Return the line of a record, with large fields cut, and its link in the chain."""
    chain = {"seq": after.seq + 1, "prev": after.hash, "time": time}
    body = _text({**record, **chain})
    if not 0 < len(body) <= MAX_RECORD_BYTES:
        body = canonical({**cut_record(record), **chain})
    link = ChainLink(after.seq + 1, hashlib.sha256(body.encode("ascii")).hexdigest())
    return f'{body[:-1]},"hash":"{link.hash}"}}\n'.encode("ascii"), link


def check_line(line: bytes) -> Mapping[str, Json]:
    """Return the record of a line with its newline, or an empty mapping if the hash is wrong."""
    match = _LINE.fullmatch(line)
    if match is None or hashlib.sha256(match[1] + b"}").hexdigest() != match[2].decode():
        return {}
    record = parse_line(line)
    return record if type(record.get("seq")) is int and type(record.get("prev")) is str else {}


def parse_line(line: bytes) -> Mapping[str, Json]:
    """Return the unchecked record of a line, or an empty mapping for other text."""
    with suppress(ValueError, RecursionError):
        record: Json = json.loads(line)
        if isinstance(record, dict):
            return record
    return {}


def without_empty(facts: Mapping[str, Json]) -> Record:
    return {name: value for name, value in facts.items() if value not in (None, "", [])}


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


def lines(folder: int, name: str, start: int = 0) -> Iterator[bytes]:
    with os.fdopen(_open_own(name, os.O_RDONLY, folder), "rb") as file:
        file.seek(start)
        yield from file


def last_lines(folder: int, name: str, count: int) -> int:
    """Return the offset of the last `count` lines of a file."""
    portion = 4 * MAX_RECORD_BYTES
    with os.fdopen(_open_own(name, os.O_RDONLY, folder), "rb") as file:
        size = file.seek(0, os.SEEK_END)
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
    """The file that this bridge writes."""

    path: Path
    descriptor: int
    last: ChainLink
    previous: Record  # The last records of the files that existed before it.
    others: int  # The bytes of these files.
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

    A bridge counts the files of others when it starts a file, so that each bridge may exceed the
    quota by `largest` bytes.
    """

    directory: Path | None = None  # None records nothing.
    _: KW_ONLY
    sync: bool = False  # Whether `append` waits until the record is on the disk.
    days: int = 90
    quota: int = 4 * 1024**3  # Bytes of all files: some eight million calls.
    now: Callable[[], float] = time.time
    largest: int = 16 * 1024 * 1024  # Bytes after which the bridge starts another file.
    replica: str = ""  # The name of this bridge, if bridges end the runs of dead ones.

    def __post_init__(self) -> None:
        self._process = secrets.token_hex(8)
        signature = {"replica": self.replica, "process": self._process}
        self._signature = signature if self.replica else {}  # Fields of each record.
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
            raise self._error(
                f"The audit log cannot be written ({error.strerror or error})",
                "Make room on its disk, and let only this user write it (mode 0700, files 0600), "
                "or set MCP_BRIDGE_STATE_DIR elsewhere. The bridge need not start again.",
            ) from error
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
            for name in list(files)[-8:]:
                with suppress(FileNotFoundError):
                    last = lines(folder, name, last_lines(folder, name, 1))
                    # The last complete record; None if its hash is wrong.
                    whole = [line for line in last if line.endswith(b"\n")]
                    record = check_line(whole[-1]) if whole else {}
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
        if not owner or used < half:
            return
        share = half // len({*self._taken, owner})
        spent = self._taken[owner] >= share or used >= half + half // 2
        if owner not in PERSON_OWNERS and spent:
            message = (
                f"This caller has used up its share of the audit log: {share:,} bytes. Callers "
                f"over HTTP have {half:,} of its {self.quota:,} bytes"
            )
        elif used >= self.quota:
            message = f"The audit log has reached its limit of {self.quota:,} bytes"
        else:
            return
        raise self._error(
            message,
            "Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, which removes what is "
            "older, and start the bridge again.",
        )

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


@dataclass(eq=False)
class RunAudit:
    """The records of one run.

    Each method except `record_outcome` raises `AuditError` if it cannot write its record. The
    caller must then not do what it wanted to record. `head` is the hash of the last record.
    """

    log: AuditLog = field(default_factory=AuditLog)
    run_id: str = ""
    _: KW_ONLY
    mask: Mask = no_mask
    policy: str = ""
    owner: str = "stdio"

    def __post_init__(self) -> None:
        self.head = ""
        self._room = RUN_BYTES
        self._refused: Counter[tuple[str, ...]] = Counter()
        # The number of calls without their own record, and the number of the last of them.
        self._counted: dict[tuple[str, ...], tuple[int, int]] = {}

    async def record_start(self, facts: Mapping[str, Json], kind: Kind = "run") -> None:
        await self.record_event(kind, {"policy": self.policy, **facts})

    async def record_event(self, kind: Kind, facts: Mapping[str, Json]) -> None:
        self.head = await self.log.append(self._record(kind, facts), owner=self.owner)

    async def record_call(
        self,
        number: int,
        call: CallFacts,
        decision: Decision | None,
        approval: Approval | None = None,
        note: str = "",
        *,
        kind: CallKind = "call",
    ) -> None:
        """Record a call that is sent, held or replayed next."""
        try:
            self.charge(call.arguments)
        except AuditError as error:
            if decision is not None:
                self.count_refusal(number, call, decision, error.code)
            raise
        more = {"approval": approval and approval.fields, "changed": note}
        await self._append_call(kind, number, call, decision, more)

    async def record_outcome(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record a call's outcome, now or before the next record: its result must not be lost."""
        facts = {"call": number, "outcome": outcome, "bytes": size, "ms": round(ms, 1)}
        await self._append_or_owe("outcome", facts)

    async def record_refusal(
        self, number: int, call: CallFacts, decision: Decision, why: str, *, waited_ms: int = 0
    ) -> None:
        """Record a refused call and its error code, or count it after many equal calls."""
        kind = self._refused_kind(call, decision, why)
        if kind == _OTHERS or self._refused[kind] >= WHOLE_RECORDS:
            self.count_refusal(number, call, decision, why)
            return
        self._refused[kind] += 1
        more = {**dict(zip(_KIND_FIELDS, kind, strict=True)), "waitedMs": waited_ms or None}
        await self._append_call("refused", number, call, decision, more)

    def count_refusal(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Count a refused call for the record of the run's end."""
        kind = self._refused_kind(call, decision, why)
        self._refused[kind] += 1
        self._counted[kind] = self._counted.get(kind, (0, 0))[0] + 1, number

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[Callable[[Mapping[str, Json]], None]]:
        """Record the end of the run at the end of this context, without facts as "lost"."""
        endings: list[Mapping[str, Json]] = [{"status": "lost"}]
        try:
            yield endings.append
        except anyio.get_cancelled_exc_class():
            endings.append({"status": "error", "reason": "cancelled"})
            raise
        finally:
            await self.record_end(endings[-1])

    async def record_end(self, facts: Mapping[str, Json]) -> None:
        for kind, (times, last) in self._counted.items():
            same = dict(zip(_KIND_FIELDS, kind, strict=True))
            self.log.later(self._record("refused", {"call": last, "times": times, **same}))
        self._counted.clear()
        await self._append_or_owe("end", {**facts, "refused": self._refused.total() or None})

    async def _append_or_owe(self, kind: Kind, facts: Mapping[str, Json]) -> None:
        try:
            # The disk takes time, in which a cancellation must not lose the record.
            with anyio.CancelScope(shield=True) if self.log.sync else nullcontext():
                await self.record_event(kind, facts)
        except AuditError as error:
            self.log.later(self._record(kind, facts))
            logger.warning("an outcome or end is not recorded yet: %s", error)

    def _record(self, kind: Kind, facts: Mapping[str, Json]) -> Record:
        return {**without_empty(facts), "kind": kind, "run": self.run_id}

    def charge(self, facts: Json = None) -> None:
        """Take the room of a record from the run's share, or raise `AuditError`."""
        if self.log.directory is None:
            return
        if self._room <= 0:
            message = f"The calls of this run have used its {RUN_BYTES:,} bytes of the audit log."
            raise AuditError(message, code="audit_budget")
        self._room -= min(max(estimated_size(facts, MAX_RECORD_BYTES), SMALL), MAX_RECORD_BYTES)

    async def _append_call(
        self,
        kind: CallKind,
        number: int,
        call: CallFacts,
        decision: Decision | None,
        more: Mapping[str, Json],
    ) -> None:
        facts: Record = {"call": number, "server": call.server, "tool": call.tool}
        if decision is not None:
            facts |= {"decision": decision.action, "rule": decision.rule}
            facts |= {"effect": decision.effect, "reason": decision.reason}
            facts["led"] = list(decision.led)

        def make() -> Mapping[str, Json]:
            arguments: Json = UNREADABLE
            size = estimated_size(call.arguments, MAX_SEARCHED)
            if size <= MAX_SEARCHED:
                with suppress(RecursionError):
                    arguments = self.mask(dict(call.arguments), call.schema)
            whole = arguments_digest(call.arguments) if call.arguments else ""
            record = self._record(kind, {**facts, "arguments": arguments, "digest": whole, **more})
            if kind == "refused":
                return cut_record(record, 3 * 1024)
            # `link_record` cuts the few small records that need it.
            return record if size <= SMALL else cut_record(record)

        if self.log.directory is not None:
            record = await offload(call.arguments, make)
            self.head = await self.log.append(record, owner=self.owner)

    def _refused_kind(self, call: CallFacts, decision: Decision, why: str) -> tuple[str, ...]:
        parts = (call.server, call.tool, decision.action, decision.rule, why)
        kind = tuple(part if len(part) <= 100 else f"{part[:100]}…" for part in parts)
        # A program can invent any number of names.
        return kind if kind in self._refused or len(self._refused) < 50 else _OTHERS
