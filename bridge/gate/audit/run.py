"""The audit records of one run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import anyio

from bridge.errors import AuditError
from bridge.gate.approval import Approval
from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.records import (
    MAX_RECORD_BYTES,
    CallKind,
    Kind,
    Record,
    approval_fields,
    bounded,
    without_empty,
)
from bridge.gate.canonical import arguments_digest
from bridge.gate.decision import CallFacts, Decision, Mask, unmasked
from bridge.gate.outcomes import Outcome
from bridge.model import Json, Provenance
from bridge.offload import estimated_size, offload

logger = logging.getLogger(__name__)

UNREADABLE = "could not be searched for secrets, and so is not recorded"
"""In place of arguments that are too large, or nested too deeply."""

SMALL = 2 * 1024  # Bytes of arguments that fit into a record however their characters are escaped.

MAX_SEARCHED = 2 * 1024 * 1024
"""Bytes of arguments that are searched for secrets. A program sends more; that is not recorded."""

RUN_BYTES = 64 * 1024 * 1024
"""Bytes of the records of one run's calls, without refused ones: three times what 10,000 calls with
`SMALL` arguments take. Beyond, no call is made, since none is made unrecorded."""

WHOLE_RECORDS = 10  # Refused calls of one kind with a record each; those after them are counted.


class _RefusedKind(NamedTuple):
    """What equal refused calls have in common."""

    server: str
    tool: str
    decision: str
    rule: str
    why: str


_OTHERS = _RefusedKind("", "", "", "others", "")  # The kind of calls beyond the bound on kinds.


@dataclass(kw_only=True)
class _Count:
    """The calls of one kind: all, those without a record yet, and the last one's number."""

    total: int = 0
    pending: int = 0
    last: int = 0


class RunAudit:
    """The records of one run.

    Each method but `called` raises `AuditError` if its record cannot be written; what it records
    must not happen then.

    Args:
        mask: Takes secrets out of arguments.
        policy: Digest of the policy in force; empty if there is none.
        owner: Whose run it is; see `RunRequest`.

    Attributes:
        head: Hash of the last record; empty where nothing is recorded.
    """

    def __init__(
        self,
        log: AuditLog | None = None,
        run_id: str = "",
        *,
        mask: Mask = unmasked,
        policy: str = "",
        owner: str = "stdio",
    ) -> None:
        self._owner = owner
        self._log = log or AuditLog()
        self._run_id = run_id
        self._mask = mask
        self._policy = policy
        self.head = ""
        self._room = RUN_BYTES
        self._refused: dict[_RefusedKind, _Count] = {}

    async def began(self, facts: Mapping[str, Json], kind: Kind = "run") -> None:
        """Record the beginning of a run, or of a plan that is applied."""
        await self.event(kind, {"policy": self._policy, **facts})

    async def event(self, kind: Kind, facts: Mapping[str, Json]) -> None:
        """Record something other than a call: a server's question, a plan."""
        await self._append(self._event(kind, facts))

    async def calling(
        self,
        number: int,
        call: CallFacts,
        decision: Decision,
        approval: Approval | None,
        note: str = "",
    ) -> None:
        try:
            self._charge(call)
        except AuditError as error:
            self.count_refused(number, call, decision, error.code)
            raise
        record = await self._call("call", number, call, decision)
        if approval is not None:
            record["approval"] = approval_fields(approval)
        if note:
            record["changed"] = note
        # If the disk fails after the record is written, the call is recorded and not made.
        await self._append(record, self._outcome(number, "not-sent", size=0, ms=0))

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record the outcome of a call.

        Never fails: the call has been made, and its result must not be lost. A record that cannot
        be written is written later, and until then no other call is made.
        """
        record = self._outcome(number, outcome, size=size, ms=ms)
        try:
            with anyio.CancelScope(shield=True) if self._log.sync else nullcontext():
                await self._append(record)
        except AuditError:
            self._log.later(record)

    async def refused(
        self, number: int, call: CallFacts, decision: Decision, why: str, *, waited_ms: int = 0
    ) -> None:
        """Record a call that is not made; many equal ones are counted instead.

        Args:
            why: The code of the error that the program gets.
            waited_ms: How long it waited for a person's answer.
        """
        kind, count = self._counted(number, call, decision, why)
        if kind == _OTHERS or count.total > WHOLE_RECORDS:
            return
        count.pending -= 1
        record = await self._call("refused", number, call, decision)
        more = without_empty({**kind._asdict(), "waitedMs": waited_ms or None})
        await self._append(dict(bounded(record | more, 3 * 1024)))

    def count_refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Count a call that is not made, for the record of the run's end."""
        self._counted(number, call, decision, why)

    async def unsent(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None = None
    ) -> None:
        """Record a call that a plan holds back, or that is answered from a journal."""
        self._charge(call)
        await self._append(await self._call(kind, number, call, decision))

    async def found(self, what: str, provenance: Provenance) -> None:
        """Record that the run read something that was kept, and its provenance."""
        self._charge()
        facts: Record = {
            "what": what,
            "savedBy": provenance.run_id,
            "labels": sorted(provenance.labels),
            "from": sorted(provenance.servers),
            "anything": provenance.anything or None,
        }
        await self.event("found", facts)

    async def commanded(self, facts: Mapping[str, Json], mask: Callable[[Json], Json]) -> None:
        """Record a command as this run's beginning: principal, profile, words.

        Args:
            mask: Takes out of the words the values of options that are known to be secret.
        """
        stages = facts.get("stages")
        shown = await offload(stages, partial(self._mask, stages, None))
        await self.event("command", {**facts, "stages": mask(shown)})

    async def ended(self, facts: Mapping[str, Json]) -> None:
        """Record a run's end: status, reason, counts, times; if that fails, later."""
        # Written together with the record of the end.
        for kind, count in self._refused.items():
            if count.pending:
                counted = {"call": count.last, "times": count.pending, **kind._asdict()}
                self._log.later(self._event("refused", counted))
                count.pending = 0
        refused = sum(count.total for count in self._refused.values())
        record = self._event("end", {**facts, "refused": refused or None})
        try:
            await self._append(record)
        except AuditError:
            self._log.later(record)
            raise

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[Callable[[Mapping[str, Json]], None]]:
        """Record the end of a run when this context ends, also by an error.

        Yields:
            Takes the facts of the end; without them its status is "lost".
        """
        endings: list[Mapping[str, Json]] = [{"status": "lost"}]
        try:
            yield endings.append
        except anyio.get_cancelled_exc_class():
            endings.append({"status": "error", "reason": "cancelled"})
            raise
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self.ended(endings[-1])
                except AuditError as error:
                    # It is written later, before anything else.
                    logger.warning("the end of a run could not be recorded: %s", error)

    async def _append(self, record: Record, otherwise: Record | None = None) -> None:
        self.head = await self._log.append(record, otherwise, owner=self._owner)

    def _event(self, kind: Kind, facts: Mapping[str, Json]) -> Record:
        return {**without_empty(facts), "kind": kind, "run": self._run_id}

    def _charge(self, call: CallFacts | None = None) -> None:
        """Charge a record to the run, by the size of its call's arguments."""
        if self._log.directory is None:
            return
        if self._room <= 0:
            raise AuditError(
                f"The calls of this run have filled the {RUN_BYTES:,} bytes that the audit log has "
                "for one run, and no call is made unrecorded.",
                code="audit_budget",
            )
        arguments = None if call is None else call.arguments
        size = estimated_size(arguments, MAX_RECORD_BYTES)
        self._room -= min(max(size, SMALL), MAX_RECORD_BYTES)

    async def _call(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None
    ) -> Record:
        """Return a call's record, made and cut in a thread if the arguments are large."""
        if self._log.directory is None:
            return {}
        make = partial(self._made, kind, number, call, decision)
        if estimated_size(call.arguments, SMALL) <= SMALL:
            return make()
        return await offload(call.arguments, lambda: dict(bounded(make())))

    def _made(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None
    ) -> Record:
        shown: Json = UNREADABLE
        if estimated_size(call.arguments, MAX_SEARCHED) <= MAX_SEARCHED:
            with suppress(RecursionError):
                shown = self._mask(dict(call.arguments), call.schema)
        facts = {"call": number, "server": call.server, "tool": call.tool, "arguments": shown}
        record = self._event(kind, facts)
        if call.arguments:
            record["digest"] = arguments_digest(call.arguments)
        if decision is not None:
            record |= {"decision": decision.action, "rule": decision.rule}
            record |= without_empty({"effect": decision.effect, "reason": decision.reason})
            record |= without_empty({"led": list(decision.led)})
        return record

    def _outcome(self, number: int, outcome: Outcome, *, size: int, ms: float) -> Record:
        facts = {"call": number, "outcome": outcome, "bytes": size, "ms": round(ms, 1)}
        return self._event("outcome", facts)

    def _counted(
        self, number: int, call: CallFacts, decision: Decision, why: str
    ) -> tuple[_RefusedKind, _Count]:
        """Count a refused call as one without a record."""
        parts = (call.server, call.tool, decision.action, decision.rule, why)
        kind = _RefusedKind(*(part if len(part) <= 100 else f"{part[:100]}…" for part in parts))
        if kind not in self._refused and len(self._refused) >= 50:
            # A program makes up names without end.
            kind = _OTHERS
        count = self._refused.setdefault(kind, _Count())
        count.total += 1
        count.pending += 1
        count.last = number
        return kind, count
