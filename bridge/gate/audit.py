"""The record of what runs did, written before it is done.

Owns the records' shapes, their order and hashes, and the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bridge.gate.approval import Approval
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.outcomes import Outcome
from bridge.model import Json


class AuditLog:
    """The files of one state directory; None for `directory` records nothing.

    Args:
        sync: Whether each record is on the disk before anything else is done.
        days: How long files are kept.
    """

    def __init__(self, directory: Path | None = None, *, sync: bool = False, days: int = 90):
        self._directory = directory
        self._sync = sync
        self._days = days

    async def append(self, record: Mapping[str, Json]) -> str:
        """Write one record and return its hash.

        Raises:
            AuditError: It could not be written; nothing of it was.
        """
        return ""


class RunAudit:
    """The records of one run.

    Attributes:
        head: Hash of the last record; empty where nothing is recorded.
    """

    def __init__(self, log: AuditLog | None = None, run_id: str = "") -> None:
        self._log = log or AuditLog()
        self._run_id = run_id
        self.head = ""

    async def began(self, facts: Mapping[str, Json]) -> None:
        """Record a run's beginning: principal, client, mode, digest of the code, servers."""

    async def calling(
        self, number: int, call: CallFacts, decision: Decision, approval: Approval | None
    ) -> None:
        """Record a call that goes out next.

        Raises:
            AuditError: It could not be; the call must not be made.
        """

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record what became of it."""

    async def refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Record a call that is not made."""

    async def held(self, number: int, call: CallFacts, decision: Decision) -> None:
        """Record a call that a plan holds back."""

    async def replayed(self, number: int, call: CallFacts) -> None:
        """Record a call that was answered from a journal."""

    async def ended(self, facts: Mapping[str, Json]) -> None:
        """Record a run's end: status, reason, counts, times."""
