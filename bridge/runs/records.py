"""A file for each run with its program, its end and the start of its output, for the user.

The audit log has the run's calls. A bridge locks the file of a running run, and the kernel releases
the lock however the bridge ends: a record without an end and without a lock is of a lost run.
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

import anyio.to_thread

from bridge.errors import BridgeError, UnknownError
from bridge.event_loop import count_metric, estimated_size, offload, utc_text
from bridge.model import ApplyRequest, Json, RunRequest, RunResult, owner_digest
from bridge.private_files import make_directory
from bridge.render.text import value_text
from bridge.settings import Settings
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove

logger = logging.getLogger(__name__)

KEPT_BYTES = 4 * 1024  # The start of each stream, of the value and of the error.
DAYS = 14
MAX_ALL_BYTES = 200 * 1024**2  # A client may start runs without end.

TIDY_BYTES = 10 * 1024**2  # A bridge removes old records after it has written this much.

_NAME = re.compile(r"(\d{13})\.([0-9A-Za-z_-]{1,40})\.([0-9a-f]{32})\.jsonl")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class RunRecords:
    """The record files of runs in a state directory, which several bridges may share.

    `clear` redacts this machine's secrets in a program and in the names of its run and session.
    """

    def __init__(self, settings: Settings, clear: Callable[[Json], Json] = lambda it: it) -> None:
        self.directory = settings.state_dir / "runs"
        self.are_kept = settings.run_records == "on"
        self.clear = clear
        self.untidy = TIDY_BYTES

    @asynccontextmanager
    async def recording(self, request: RunRequest | ApplyRequest) -> AsyncIterator[RunRecord]:
        record = RunRecord(self, request)
        try:
            yield record
        except BaseException as error:
            record.fail(error)
            raise
        finally:
            record.close()
        if self.untidy >= TIDY_BYTES and record.is_kept:
            self.untidy = 0
            await anyio.to_thread.run_sync(self.tidy)

    def tidy(self) -> None:
        """Remove records that are too old, and the oldest beyond the limits."""
        limits = RetentionLimits(
            total_bytes=MAX_ALL_BYTES - TIDY_BYTES,
            oldest=(time.time() - DAYS * 86_400) * 1000,
            entries=20_000,  # Listing this many takes a tenth of a second.
            owner_entries=20_000,
        )
        for item in items_to_remove(self._files(None), limits) or ():
            with suppress(OSError):
                Path(item.id).unlink()

    def listed(self, owner: str | None, count: int) -> list[dict[str, Json]]:
        """Return an owner's newest records first; None means all owners."""
        return [record for file in self._files(owner)[:count] if (record := _read(file.id))]

    def find(self, owner: str | None, wanted: str) -> dict[str, Json]:
        """Return the record of the run whose id begins with `wanted`.

        Raises:
            UnknownError: This owner has no such run, or several.
        """
        files = {file.digest: file for file in self._files(owner) if wanted}
        ids = [wanted] if wanted in files else sorted(i for i in files if i.startswith(wanted))
        if len(ids) > 1:
            several = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
            message = f"{len(ids):,} runs begin with {wanted!r:.80}: {several}."
            raise UnknownError(message, remedy="Give more of the id.", code="unknown_run")
        if ids and (record := _read(files[ids[0]].id)):
            return record
        remedy = f"`runs` lists them. Records are removed after {DAYS} days."
        raise UnknownError(f"No run {wanted!r:.80} is recorded.", remedy=remedy, code="unknown_run")

    def _files(self, owner: str | None) -> list[StoredItem]:
        """Return the files of an owner or of all owners, the newest first."""
        whose, found = None if owner is None else owner_digest(owner), []
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.directory):
                name = _NAME.fullmatch(entry.name)
                if name and whose in (None, name[3]):
                    with suppress(FileNotFoundError):
                        size = entry.stat(follow_symlinks=False).st_size
                        found.append(StoredItem(name[3], entry.path, int(name[1]), name[2], size))
        return sorted(found, key=lambda file: file.created, reverse=True)


class RunRecord:
    """The record of one running run; `is_kept` if its file was made."""

    def __init__(self, records: RunRecords, request: RunRequest | ApplyRequest) -> None:
        self._records = records
        self._request = request
        self._descriptor: int | None = None
        self._began: float | None = None
        self.is_kept = False

    async def begin(self) -> None:
        request, records, now = self._request, self._records, time.time()
        self._began = time.monotonic()
        if not records.are_kept:
            return
        facts: dict[str, Json] = {
            "run": request.run_id,
            "time": utc_text(now),
            "owner": request.owner,
            "client": request.client,
        }
        if isinstance(request, ApplyRequest):
            facts["plan"] = request.plan_id
        else:
            facts |= {"mode": request.mode, "retryOf": request.retry_of}
            texts = {"name": request.name, "session": request.session, "program": request.code}
            facts |= await offload(request.code, lambda: records.clear(texts))
        name = f"{now * 1000:013.0f}.{request.run_id}.{owner_digest(request.owner)}.jsonl"
        path = records.directory / name
        try:
            try:
                self._descriptor = os.open(path, _NEW, 0o600)
            except FileNotFoundError:
                make_directory(records.directory)
                self._descriptor = os.open(path, _NEW, 0o600)
            # Before the first line: a reader ignores a file without one.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("a run is not recorded: %s", error)
            return
        self.is_kept = self._write(facts)

    def end(self, result: RunResult) -> RunResult:
        """Record how the run ended, and return its result, which names the record."""
        value = result.result_repr
        if result.has_result:
            large = estimated_size(result.result, 64 * 1024) > 64 * 1024
            value = "(a large value)" if large else value_text(result.result)
        texts = {"stdout": result.stdout, "stderr": result.stderr, "value": value}
        self._write(
            {
                "status": result.status,
                "reason": result.reason,
                "calls": result.usage.tool_calls,
                "refused": sum(each.count for each in result.refused),
                "wallMs": result.usage.wall_ms,
                "waitingMs": 0 if result.receipt is None else result.receipt.waiting_ms,
                "plan": "" if result.plan is None else result.plan.plan_id,
                **{name: _head(text) for name, text in texts.items()},
                "error": _head(result.error),
                "ended": utc_text(time.time()),
            }
        )
        return replace(result, recorded=self.is_kept)

    def fail(self, error: BaseException) -> None:
        reason, text = "engine" if isinstance(error, Exception) else "cancelled", ""
        if isinstance(error, BridgeError):
            reason, text = error.code, _head(str(error))
            error.run_id = self._request.run_id if self.is_kept else ""
        end = utc_text(time.time())
        self._write({"status": "error", "reason": reason, "error": text, "ended": end})

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _write(self, facts: Mapping[str, Json]) -> bool:
        if "status" in facts and self._began is not None:
            count_metric("runs_total", status=facts["status"], reason=facts["reason"] or "")
            count_metric("run_seconds", time.monotonic() - self._began)
        told = {name: value for name, value in facts.items() if value not in (None, "", 0)}
        data = json.dumps(told, separators=(",", ":")).encode("ascii") + b"\n"
        self._records.untidy += len(data)
        try:
            return self._descriptor is not None and os.write(self._descriptor, data) == len(data)
        except OSError as error:
            logger.warning("a run is not recorded: %s", error)
            return False


def _head(text: str) -> str:
    return text.encode("utf-8", "replace")[:KEPT_BYTES].decode("utf-8", "ignore")


def _read(path: str) -> dict[str, Json]:
    """Return a record with the status of its run; empty if the file is no record."""
    try:
        with Path(path).open("rb") as file:
            record: dict[str, Json] = {"status": "lost"}
            # The lock is tested first, since the run may end while its lines are read.
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                record["status"] = "running"
            for line in file:
                record |= json.loads(line) if line.endswith(b"\n") else {}
    except (OSError, ValueError):
        return {}
    return record if "run" in record else {}
