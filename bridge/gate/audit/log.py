"""The audit log of one state directory, as the rest of a bridge uses it.

Owns the waits (for another bridge's lock, for the disk), what is owed to the log because it could
not be written when it happened, and the errors that all of that ends in.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from bridge.errors import AuditError
from bridge.gate.audit.files import MAX_FILE_BYTES, Files
from bridge.gate.audit.folder import UnsafeError
from bridge.gate.audit.records import Record, when
from bridge.gate.audit.resuming import Name
from bridge.gate.audit.retaining import find_expired, remove
from bridge.gate.audit.tracing import PlanTrace, RunTrace, find_plan, find_run
from bridge.model import Json

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_SECONDS = 5.0
"""Longest wait for another bridge's lock. It holds it for some microseconds, unless its process has
been stopped, or its disk does not answer."""

FIRST_PAUSE_SECONDS = 0.0002
LONGEST_PAUSE_SECONDS = 0.05
"""Between tries; `flock` cannot be waited for without a thread that cannot be cancelled."""

MAX_OWED = 10_000
"""Records kept for later: outcomes of calls that were under way when the log could not be written
any more. No further calls go out until they are written, so there are hardly ever so many."""

AUDIT_BYTES = 4 * 1024**3
"""Of all files together, unless set otherwise: some eight million calls."""

ALWAYS_WRITTEN = frozenset({"outcome", "end", "policy", "retention", "torn", "resumed", "lost"})
"""Kinds of records that are written beyond the quota as well. They are few, and about what began
before, or about the log itself."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class AuditLog:
    """Appends records, each written before `append` returns.

    Several bridges may share a directory. Entering is not needed; `close` when done.

    Args:
        directory: None records nothing.
        sync: Whether each record is on the disk before anything else is done.
        days: How long files are kept.
        quota: Bytes of all files together.
        now: Seconds since 1970.
        largest: Bytes of a file.
        patience: Seconds to wait for another bridge.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        sync: bool = False,
        days: int = 90,
        quota: int = AUDIT_BYTES,
        now: Callable[[], float] = time.time,
        largest: int = MAX_FILE_BYTES,
        patience: float = LOCK_SECONDS,
    ) -> None:
        self._directory = directory
        self._sync = sync
        self._days = days
        self._quota = quota
        self._now = now
        self._patience = patience
        self._files: Files | None = None
        if directory is not None:
            self._files = Files(directory, now=now, largest=largest, durable=sync)
        self._owed: deque[Mapping[str, Json]] = deque()
        self._dropped = 0
        self._tidied: Name | None = None

    @property
    def recording(self) -> bool:
        """Whether anything is recorded at all."""
        return self._files is not None

    @property
    def directory(self) -> Path | None:
        """Where the files are."""
        return self._directory

    async def append(
        self, record: Mapping[str, Json], otherwise: Mapping[str, Json] | None = None
    ) -> str:
        """Write one record, after all that is owed, and return its hash.

        Args:
            otherwise: What is owed if the record is written, and this fails or is cancelled all
                the same, because of the disk.

        Raises:
            AuditError: It could not be written, or is not known to be on the disk.
        """
        files = self._files
        if files is None:
            return ""
        if self._is_full(files, record):
            raise self._full()
        found = self._write(files, record)
        if found is None:
            found = await self._wait(files, record)
        if self._sync or self._tidied != files.name:
            try:
                await self._settle(files)
            except BaseException:
                if otherwise is not None:
                    self.later(otherwise)
                raise
        return found

    def append_now(self, record: Mapping[str, Json]) -> str | None:
        """Do what `append` does if nothing has to be waited for; return None otherwise.

        Raises:
            AuditError: It could not be written.
        """
        files = self._files
        if files is None or self._sync or self._tidied is None or self._tidied != files.name:
            return None
        if self._is_full(files, record):
            return None
        return self._write(files, record)

    def later(self, record: Mapping[str, Json]) -> None:
        """Have a record written before the next one; until it can be, there is no next one."""
        if self._files is None:
            return
        if len(self._owed) >= MAX_OWED:
            self._dropped += 1
            return
        self._owed.append(record)

    async def flush(self) -> None:
        """Write what is owed.

        Raises:
            AuditError: It could not be written.
        """
        if self._owed:
            record = self._owed.pop()
            try:
                await self.append(record)
            except BaseException:
                self._owed.append(record)
                raise

    async def find_run(self, run_id: str, owner: str | None = None) -> RunTrace | None:
        """Return what the last days' files know of a run; None if nothing.

        Args:
            owner: Whose run it has to be; None for anybody's.

        Raises:
            AuditError: They cannot be read.
        """
        return await self._read(partial(find_run, run_id=run_id, owner=owner))

    async def find_plan(self, plan_id: str, owner: str | None = None) -> PlanTrace | None:
        """Return what the last days' files know of a plan and its application; None if nothing.

        Args:
            owner: Whose plan it has to be; None for anybody's.

        Raises:
            AuditError: They cannot be read.
        """
        return await self._read(partial(find_plan, plan_id=plan_id, owner=owner))

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._files is None:
            return
        if self._owed:
            try:
                written = self._write(self._files, self._owed.pop())
            except AuditError as error:
                logger.warning("the audit log lacks outcomes of calls: %s", error)
            else:
                if written is None:
                    logger.warning("the audit log lacks outcomes of calls: it is locked")
        self._files.close()

    async def _read(self, find: Callable[[Path], T | None]) -> T | None:
        directory = self._directory
        if directory is None:
            return None
        try:
            return await anyio.to_thread.run_sync(find, directory)
        except FileNotFoundError:
            # Nothing was recorded yet, or it was removed for its age just now.
            return None
        except (OSError, UnsafeError) as error:
            raise self._error(error, "read") from error

    def _write(self, files: Files, record: Mapping[str, Json]) -> str | None:
        """Write what is owed and a record; None if another bridge has the lock."""
        try:
            if not files.lock():
                return None
            try:
                owed = self._due()
                link = files.append([*owed, record])
            finally:
                files.unlock()
        except (OSError, UnsafeError) as error:
            raise self._error(error, "written") from error
        if owed:
            self._owed.clear()
            self._dropped = 0
        return link.hash

    def _due(self) -> list[Mapping[str, Json]]:
        if not self._dropped:
            return list(self._owed)
        lost: Record = {"kind": "lost", "records": self._dropped}
        return [*self._owed, lost]

    async def _wait(self, files: Files, record: Mapping[str, Json]) -> str:
        pause = FIRST_PAUSE_SECONDS
        with anyio.move_on_after(self._patience):
            while True:
                await anyio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                found = self._write(files, record)
                if found is not None:
                    return found
        message = "The audit log is locked by another bridge that does not go on."
        raise AuditError(
            message,
            host_detail=f"It is in {self._directory}.",
            remedy="Look for a stopped mcp-code-bridge process and end it or have it go on.",
        )

    def _is_full(self, files: Files, record: Mapping[str, Json]) -> bool:
        """Tell whether there is no room for a record; the first of a day has it always.

        After that one, what is too old is removed. Nothing else is removed to make room: whoever
        floods the log must not get rid of what it knows.
        """
        if files.total_bytes < self._quota or record.get("kind") in ALWAYS_WRITTEN:
            return False
        return files.name is not None and files.name.day >= when(self._now())[:10]

    def _full(self) -> AuditError:
        message = (
            f"The audit log has the {self._quota:,} bytes that it may have, and no call is made "
            "without it."
        )
        return AuditError(
            message,
            host_detail=f"It is in {self._directory}.",
            remedy="Raise MCP_BRIDGE_AUDIT_BYTES, or lower MCP_BRIDGE_AUDIT_DAYS, which removes "
            "what is older, and start the bridge again.",
        )

    async def _settle(self, files: Files) -> None:
        """Do what comes after a write: wait for the disk, and remove old files once a file."""
        if self._sync:
            # A copy: another task may go on to a new file meanwhile.
            descriptor = os.dup(files.descriptor)
            try:
                await anyio.to_thread.run_sync(_to_disk, descriptor)
            except OSError as error:
                raise self._error(error, "written") from error
            finally:
                os.close(descriptor)
        if self._tidied != files.name:
            self._tidied = files.name
            await self._tidy(files)

    async def _tidy(self, files: Files) -> None:
        """Remove what is too old. What goes wrong here keeps no call from being made."""
        try:
            if not files.lock():
                return
            try:
                assert files.name is not None
                removal = find_expired(
                    files.folder, files.name, today=when(self._now())[:10], days=self._days
                )
                if removal is None:
                    return
                files.append([removal.record])
                folder = os.dup(files.folder)
            finally:
                files.unlock()
            try:
                await anyio.to_thread.run_sync(remove, folder, removal.names)
            finally:
                os.close(folder)
                files.recount()
        except (OSError, UnsafeError) as error:
            logger.warning("old files of the audit log could not be removed: %s", error)

    def _error(self, error: OSError | UnsafeError, what: str) -> AuditError:
        reason = str(error) if isinstance(error, UnsafeError) else error.strerror or str(error)
        message = f"The audit log cannot be {what} ({reason}), and no call is made without it."
        if what == "read":
            message = f"The audit log cannot be read ({reason})."
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            remedy = "Make room on its disk; nothing has to be started again."
        elif isinstance(error, UnsafeError):
            remedy = "Make it this user's own, with mode 0700 and files of mode 0600."
        else:
            remedy = "See that this user can write there, or set MCP_BRIDGE_STATE_DIR elsewhere."
        return AuditError(message, host_detail=f"It is in {self._directory}.", remedy=remedy)


def _to_disk(descriptor: int) -> None:
    # macOS has no fdatasync.
    getattr(os, "fdatasync", os.fsync)(descriptor)
