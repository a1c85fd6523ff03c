"""The audit records of one run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import anyio

from bridge.errors import AuditError
from bridge.event_loop import estimated_size, offload
from bridge.gate.approval import Approval
from bridge.gate.audit.log import (
    MAX_RECORD_BYTES,
    AuditLog,
    CallKind,
    Kind,
    Record,
    approval_fields,
    cut_record,
    without_empty,
)
from bridge.gate.decision import CallFacts, Decision, Mask, Outcome, arguments_digest, no_mask
from bridge.model import Json, Provenance

logger = logging.getLogger(__name__)

UNREADABLE = "could not be searched for secrets, and so is not recorded"
SMALL = 2 * 1024  # Bytes of arguments that fit into a record even if every character is escaped.
MAX_SEARCHED = 2 * 1024 * 1024  # Bytes of arguments; a program sends more.
RUN_BYTES = 64 * 1024 * 1024  # Of a run's calls: three times the need of 10,000 `SMALL` ones.
WHOLE_RECORDS = 10  # Refused calls of one kind with their own record; further ones are counted.

_KIND_FIELDS = ("server", "tool", "decision", "rule", "why")
_OTHERS = ("", "", "", "others", "")  # The kind of all calls beyond the limit on kinds.


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
        await self._append(self._record(kind, facts))

    async def record_call(
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
            self.count_refusal(number, call, decision, error.code)
            raise
        allowed = None if approval is None else approval_fields(approval)
        more = {"approval": allowed, "changed": note}
        await self._append_call("call", number, call, decision, more)

    async def record_outcome(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record a call's outcome, now or before the next record: its result must not be lost."""
        facts = {"call": number, "outcome": outcome, "bytes": size, "ms": round(ms, 1)}
        await self._append_or_owe(self._record("outcome", facts))

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
        await self._append_call("refused", number, call, decision, more, most=3 * 1024)

    def count_refusal(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Count a refused call for the record of the run's end."""
        kind = self._refused_kind(call, decision, why)
        self._refused[kind] += 1
        self._counted[kind] = self._counted.get(kind, (0, 0))[0] + 1, number

    async def record_unsent(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None = None
    ) -> None:
        self._charge(call)
        await self._append_call(kind, number, call, decision, {})

    async def record_read(self, what: str, provenance: Provenance) -> None:
        """Record that the run read a kept thing, with its provenance."""
        self._charge()
        facts: Record = {
            "what": what,
            "savedBy": provenance.run_id,
            "labels": sorted(provenance.labels),
            "from": sorted(provenance.servers),
            "anything": provenance.anything or None,
        }
        await self.record_event("found", facts)

    async def record_command(self, facts: Mapping[str, Json], mask: Callable[[Json], Json]) -> None:
        """Record a command. `mask` removes the values of secret options from its words."""
        stages = facts.get("stages")
        masked = await offload(stages, partial(self.mask, stages, None))
        await self.record_event("command", {**facts, "stages": mask(masked)})

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
        refused = self._refused.total() or None
        await self._append_or_owe(self._record("end", {**facts, "refused": refused}))

    async def _append(self, record: Mapping[str, Json]) -> None:
        self.head = await self.log.append(record, owner=self.owner)

    async def _append_or_owe(self, record: Mapping[str, Json]) -> None:
        try:
            # The disk takes time, in which a cancellation must not lose the record.
            with anyio.CancelScope(shield=True) if self.log.sync else nullcontext():
                await self._append(record)
        except AuditError as error:
            self.log.later(record)
            logger.warning("an outcome or end is not recorded yet: %s", error)

    def _record(self, kind: Kind, facts: Mapping[str, Json]) -> Record:
        return {**without_empty(facts), "kind": kind, "run": self.run_id}

    def _charge(self, call: CallFacts | None = None) -> None:
        if self.log.directory is None:
            return
        if self._room <= 0:
            message = f"The calls of this run have used its {RUN_BYTES:,} bytes of the audit log."
            raise AuditError(message, code="audit_budget")
        size = estimated_size(None if call is None else call.arguments, MAX_RECORD_BYTES)
        self._room -= min(max(size, SMALL), MAX_RECORD_BYTES)

    async def _append_call(
        self,
        kind: CallKind,
        number: int,
        call: CallFacts,
        decision: Decision | None,
        more: Mapping[str, Json],
        most: int = MAX_RECORD_BYTES,
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
            # `link_record` cuts the few small records that need it.
            return (
                record if size <= SMALL and most == MAX_RECORD_BYTES else cut_record(record, most)
            )

        if self.log.directory is not None:
            await self._append(await offload(call.arguments, make))

    def _refused_kind(self, call: CallFacts, decision: Decision, why: str) -> tuple[str, ...]:
        parts = (call.server, call.tool, decision.action, decision.rule, why)
        kind = tuple(part if len(part) <= 100 else f"{part[:100]}…" for part in parts)
        # A program can invent any number of names.
        return kind if kind in self._refused or len(self._refused) < 50 else _OTHERS
