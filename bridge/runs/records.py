"""The record of each run: its program, its end and the start of its output, for a person to read.

Owns the files, one for each run, who may read them, and how long they stay. A run's calls are in
the audit log. A bridge holds a lock on the file of a run that is running, and the kernel releases
the lock however the bridge ends: a record that has neither an end nor a lock is of a lost run.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from bridge.errors import BridgeError, UnknownRunError
from bridge.gate.audit.records import when
from bridge.model import ApplyRequest, Json, RunRequest, RunResult
from bridge.offload import estimated_size, offload
from bridge.private_files import make_directory
from bridge.render.text import value_text
from bridge.settings import Settings
from bridge.store import owner_digest
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove

logger = logging.getLogger(__name__)

KEPT_BYTES = 4 * 1024  # Of each stream, of the value and of the error.
MAX_VALUE = 64 * 1024  # Estimated size of a value that is written out for its beginning.
MAX_DAYS = 14
MAX_ALL_BYTES = 200 * 1024**2
MAX_RECORDS = 20_000  # A list of so many takes a tenth of a second.
TIDY_BYTES = 10 * 1024**2  # One bridge writes so much before it removes what is old or too much.

_NAME = re.compile(r"(\d{13})\.([0-9A-Za-z_-]{1,40})\.([0-9a-f]{32})\.jsonl")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class _File(NamedTuple):
    """A record's file; they sort by the beginning of their runs, in milliseconds."""

    began: int
    run_id: str
    owner: str
    path: Path


class RunRecords:
    """The records of a state directory; several bridges may write there.

    Args:
        clear: Takes this machine's secrets out of a program and its names.
    """

    def __init__(self, settings: Settings, clear: Callable[[Json], Json] = lambda it: it) -> None:
        self.directory = settings.state_dir / "runs"
        self._writes = settings.run_records == "on"
        self._clear = clear
        self._untidy = TIDY_BYTES

    @asynccontextmanager
    async def recording(self, request: RunRequest | ApplyRequest) -> AsyncIterator[RunRecord]:
        """Record a run, from `RunRecord.begin` to the end of this context."""
        record = RunRecord(self, request)
        try:
            yield record
        except BridgeError as error:
            record.failed(error)
            raise
        except BaseException as error:
            reason = "engine" if isinstance(error, Exception) else "cancelled"
            record.write({"status": "error", "reason": reason})
            raise
        finally:
            record.close()
        if self._untidy >= TIDY_BYTES and record.is_kept:
            self._untidy = 0
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.tidy)

    async def opened(self, request: RunRequest | ApplyRequest) -> int | None:
        """Make the file of a run that begins, with its program; None if it cannot be kept."""
        if not self._writes:
            return None
        now = time.time()
        facts: dict[str, Json] = {
            "run": request.run_id,
            "time": when(now),
            "principal": request.principal,
            "owner": request.owner,
            "client": request.client,
        }
        if isinstance(request, ApplyRequest):
            facts["plan"] = request.plan_id
        else:
            facts |= {"mode": request.mode, "retryOf": request.retry_of}
            texts = {"name": request.name, "session": request.session, "program": request.code}
            facts |= await offload(request.code, lambda: self._clear(texts))
        name = f"{now * 1000:013.0f}.{request.run_id}.{owner_digest(request.owner)}.jsonl"
        descriptor = None
        try:
            make_directory(self.directory)
            descriptor = os.open(self.directory / name, _NEW, 0o600)
            # Before the first line: a reader ignores a file without one.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.append(descriptor, {key: value for key, value in facts.items() if value != ""})
        except OSError as error:
            logger.warning("a run is not recorded: %s", error)
            if descriptor is not None:
                os.close(descriptor)
            return None
        return descriptor

    def append(self, descriptor: int, facts: Mapping[str, Json]) -> None:
        data = json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        self._untidy += len(data)
        with open(descriptor, "ab", closefd=False) as file:
            file.write(data)

    def tidy(self) -> None:
        """Remove the records that are too old, and of those beyond the limits the oldest."""
        limits = RetentionLimits(
            total_bytes=MAX_ALL_BYTES - TIDY_BYTES,
            oldest=(time.time() - MAX_DAYS * 86_400) * 1000,
            entries=MAX_RECORDS,
            owner_entries=MAX_RECORDS,
        )
        items = []
        for file in self._files(None):
            with suppress(OSError):
                size = file.path.stat().st_size
                items.append(StoredItem(file.owner, str(file.path), file.began, file.run_id, size))
        for item in items_to_remove(items, limits) or ():
            with suppress(OSError):
                Path(item.id).unlink()

    # --- reading ----------------------------------------------------------------------------------

    def listed(self, owner: str | None, count: int) -> list[dict[str, Json]]:
        """Return an owner's last records, the newest first; for None, those of all owners."""
        found: list[dict[str, Json]] = []
        for file in self._files(owner):
            if len(found) < count and (record := _read(file.path)):
                found.append(record)
        return found

    def find(self, owner: str | None, wanted: str) -> dict[str, Json]:
        """Return the record of the one run whose id begins so.

        Raises:
            UnknownRunError: There is none for this owner, or there are several.
        """
        files = [file for file in self._files(owner) if file.run_id.startswith(wanted)]
        ids = sorted({file.run_id for file in files})
        if wanted and wanted not in ids and len(ids) > 1:
            several = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
            message = f"{len(ids):,} runs begin with {wanted!r:.80}: {several}."
            raise UnknownRunError(message, remedy="Give more of the id.")
        for file in files:
            if wanted and (file.run_id == wanted or len(ids) == 1) and (found := _read(file.path)):
                return found
        message = f"No run {wanted!r:.80} is recorded."
        remedy = f"`runs` lists them. Records are removed after {MAX_DAYS} days."
        raise UnknownRunError(message, remedy=remedy)

    def _files(self, owner: str | None) -> list[_File]:
        """Return the files of an owner or of all, the newest first."""
        whose, found = None if owner is None else owner_digest(owner), []
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.directory):
                name = _NAME.fullmatch(entry.name)
                if name and whose in (None, name[3]):
                    found.append(_File(int(name[1]), name[2], name[3], Path(entry.path)))
        return sorted(found, reverse=True)


class RunRecord:
    """The record of one run, while it is running.

    Attributes:
        is_kept: Whether its file was made.
    """

    def __init__(self, records: RunRecords, request: RunRequest | ApplyRequest) -> None:
        self._records = records
        self._request = request
        self._descriptor: int | None = None
        self.is_kept = False

    async def begin(self) -> None:
        """Record the program, once the secrets of the servers are known."""
        self._descriptor = await self._records.opened(self._request)
        self.is_kept = self._descriptor is not None

    def ended(self, result: RunResult) -> RunResult:
        """Record how the run ended, and return its result, which names the record."""
        receipt = result.receipt
        value = result.result_repr
        if result.has_result:
            large = estimated_size(result.result, MAX_VALUE) > MAX_VALUE
            value = "(a large value)" if large else value_text(result.result)
        self.write(
            {
                "status": result.status,
                "reason": result.reason,
                "summary": result.summary,
                "calls": result.usage.tool_calls,
                "refused": sum(each.count for each in result.refused),
                "wallMs": result.usage.wall_ms,
                "waitingMs": 0 if receipt is None else receipt.waiting_ms,
                "plan": result.plan.plan_id if result.plan is not None else None,
                "stdout": _beginning(result.stdout),
                "stderr": _beginning(result.stderr),
                "value": _beginning(value),
                "error": _beginning(result.error),
            }
        )
        return replace(result, recorded=self.is_kept)

    def failed(self, error: BridgeError) -> None:
        """Record the error that kept the program from running or ended its run."""
        if self.is_kept:
            error.run_id = self._request.run_id
        self.write({"status": "error", "reason": error.code, "error": _beginning(str(error))})

    def write(self, end: Mapping[str, Json]) -> None:
        """Record the run's end."""
        if self._descriptor is not None:
            facts = {key: value for key, value in end.items() if value not in (None, "", 0)}
            try:
                self._records.append(self._descriptor, {**facts, "ended": when(time.time())})
            except OSError as error:
                logger.warning("the end of a run is not recorded: %s", error)

    def close(self) -> None:
        """Release the record's lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _beginning(text: str) -> str:
    return text.encode("utf-8", "replace")[:KEPT_BYTES].decode("utf-8", "ignore")


def _read(path: Path) -> dict[str, Json]:
    """Return a record with the status of its run; empty if it is none."""
    try:
        with path.open("rb") as file:
            # First: a run may end before its lines are read.
            status = "running" if _is_locked(file.fileno()) else "lost"
            record: dict[str, Json] = {"status": status}
            for line in file:
                record |= json.loads(line) if line.endswith(b"\n") else {}
    except (OSError, ValueError):
        return {}
    return record if "run" in record else {}


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
