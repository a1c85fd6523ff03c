"""The audit records of one run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial

import anyio

from bridge.errors import AuditError
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
from bridge.gate.decision import CallFacts, Decision, Mask, Outcome, arguments_digest, unmasked
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

_RefusedKind = tuple[str, ...]
_KIND_FIELDS = ("server", "tool", "decision", "rule", "why")  # What equal refused calls share.
_OTHERS = ("", "", "", "others", "")  # The kind of calls beyond the bound on kinds.


class RunAudit:
    """The records of one run.

    Each method but `called` raises `AuditError` if its record cannot be written; what it records
    must not happen then. `head` is the hash of the last record; empty where nothing is recorded.
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
        self._refused: Counter[_RefusedKind] = Counter()
        # How many have no record of their own, and the number of the last of them.
        self._counted: dict[_RefusedKind, tuple[int, int]] = {}

    async def began(self, facts: Mapping[str, Json], kind: Kind = "run") -> None:
        await self.event(kind, {"policy": self._policy, **facts})

    async def event(self, kind: Kind, facts: Mapping[str, Json]) -> None:
        """Record something other than a call: a server's question, a plan."""
        await self._append(self._record(kind, facts))

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
        allowed = None if approval is None else approval_fields(approval)
        more = {"approval": allowed, "changed": note}
        await self._append_call("call", number, call, decision, more)

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record the outcome of a call.

        Never fails: the call has been made, and its result must not be lost. A record that cannot
        be written is written later, and until then no other call is made.
        """
        facts = {"call": number, "outcome": outcome, "bytes": size, "ms": round(ms, 1)}
        await self._append_or_owe(self._record("outcome", facts))

    async def refused(
        self, number: int, call: CallFacts, decision: Decision, why: str, *, waited_ms: int = 0
    ) -> None:
        """Record a call that is not made, and its error's code; many equal ones are counted."""
        kind = self._refused_kind(call, decision, why)
        if kind == _OTHERS or self._refused[kind] >= WHOLE_RECORDS:
            self.count_refused(number, call, decision, why)
            return
        self._refused[kind] += 1
        more = {**dict(zip(_KIND_FIELDS, kind, strict=True)), "waitedMs": waited_ms or None}
        await self._append_call("refused", number, call, decision, more, most=3 * 1024)

    def count_refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Count a call that is not made, for the record of the run's end."""
        kind = self._refused_kind(call, decision, why)
        self._refused[kind] += 1
        self._counted[kind] = self._counted.get(kind, (0, 0))[0] + 1, number

    async def unsent(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None = None
    ) -> None:
        self._charge(call)
        await self._append_call(kind, number, call, decision, {})

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
        """Record a command; `mask` takes values of options known to be secret out of its words."""
        stages = facts.get("stages")
        shown = await offload(stages, partial(self._mask, stages, None))
        await self.event("command", {**facts, "stages": mask(shown)})

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[Callable[[Mapping[str, Json]], None]]:
        """Record the end of a run when this context ends; without facts its status is "lost"."""
        endings: list[Mapping[str, Json]] = [{"status": "lost"}]
        try:
            yield endings.append
        except anyio.get_cancelled_exc_class():
            endings.append({"status": "error", "reason": "cancelled"})
            raise
        finally:
            await self.ended(endings[-1])

    async def ended(self, facts: Mapping[str, Json]) -> None:
        """Record a run's end: status, reason, counts, times; if that fails, later."""
        # Written together with the record of the end.
        for kind, (times, last) in self._counted.items():
            same = dict(zip(_KIND_FIELDS, kind, strict=True))
            self._log.later(self._record("refused", {"call": last, "times": times, **same}))
        self._counted.clear()
        refused = self._refused.total() or None
        await self._append_or_owe(self._record("end", {**facts, "refused": refused}))

    async def _append(self, record: Mapping[str, Json]) -> None:
        self.head = await self._log.append(record, owner=self._owner)

    async def _append_or_owe(self, record: Mapping[str, Json]) -> None:
        """Record what has happened: now, also if this is cancelled, or before anything else."""
        try:
            with anyio.CancelScope(shield=True) if self._log.sync else nullcontext():
                await self._append(record)
        except AuditError as error:
            self._log.later(record)
            logger.warning("an outcome or end is not recorded yet: %s", error)

    def _record(self, kind: Kind, facts: Mapping[str, Json]) -> Record:
        return {**without_empty(facts), "kind": kind, "run": self._run_id}

    def _charge(self, call: CallFacts | None = None) -> None:
        if self._log.directory is None:
            return
        if self._room <= 0:
            raise AuditError(
                f"The calls of this run have filled the {RUN_BYTES:,} bytes that the audit log has "
                "for one run, and no call is made unrecorded.",
                code="audit_budget",
            )
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
        """Write a call's record, made and cut in a thread if the arguments are large."""
        facts: Record = {"call": number, "server": call.server, "tool": call.tool}
        if decision is not None:
            facts |= {"decision": decision.action, "rule": decision.rule}
            facts |= {"effect": decision.effect, "reason": decision.reason}
            facts["led"] = list(decision.led)

        def make() -> Mapping[str, Json]:
            arguments: Json = UNREADABLE
            if estimated_size(call.arguments, MAX_SEARCHED) <= MAX_SEARCHED:
                with suppress(RecursionError):
                    arguments = self._mask(dict(call.arguments), call.schema)
            whole = arguments_digest(call.arguments) if call.arguments else ""
            record = self._record(kind, {**facts, "arguments": arguments, "digest": whole, **more})
            # What is small is cut where it is written, if at all.
            small = estimated_size(call.arguments, SMALL) <= SMALL
            return record if small and most == MAX_RECORD_BYTES else cut_record(record, most)

        if self._log.directory is not None:
            await self._append(await offload(call.arguments, make))

    def _refused_kind(self, call: CallFacts, decision: Decision, why: str) -> _RefusedKind:
        parts = (call.server, call.tool, decision.action, decision.rule, why)
        kind = tuple(part if len(part) <= 100 else f"{part[:100]}…" for part in parts)
        # A program makes up names without end.
        return kind if kind in self._refused or len(self._refused) < 50 else _OTHERS
