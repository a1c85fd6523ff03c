"""The records of one run, in the order in which things happen to it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio

from bridge.aside import VALUE, aside, burden
from bridge.errors import AuditBudgetError, AuditError
from bridge.gate.approval import Approval
from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.records import (
    MAX_RECORD_BYTES,
    Kind,
    Record,
    approval_fields,
    call_record,
    fitted,
)
from bridge.gate.audit.refusals import Refusals, capped, refused_kind
from bridge.gate.canonical import canonical
from bridge.gate.decision import CallFacts, Decision, Mask, unmasked
from bridge.gate.outcomes import Outcome
from bridge.model import Json, Provenance
from bridge.text import unlike

logger = logging.getLogger(__name__)

UNREADABLE = "could not be searched for secrets, and so is not recorded"
"""In place of arguments that are nested too deeply to be masked."""


SMALL = 2 * 1024
"""Of arguments that fit into a record however their characters are escaped."""


MAX_SEARCHED = 2 * 1024 * 1024
"""Of arguments, as `burden` counts, that are searched for secrets; of what is larger only so much
is, and recorded. Few of them are kept in a record in any case."""

LONGEST_SEARCHED = 128 * 1024
"""Characters of one text, in those. What a record keeps of it is far from where it is cut, so that
no half of a secret is left."""

RUN_BYTES = 64 * 1024 * 1024
"""Of records of one run's calls, refused ones apart: three times what the 10,000 calls that it may
make take with `SMALL` arguments. No call is made beyond, for none is made unrecorded."""


def _beginning(value: Json, room: list[int]) -> Json:
    """Return what there is room for, with the length of what is left out."""
    room[0] -= VALUE
    if isinstance(value, str):
        kept = min(len(value), LONGEST_SEARCHED)
        if kept > room[0]:
            return f"… ({len(value)} characters, not searched for secrets)"
        room[0] -= kept
        return value if kept == len(value) else f"{value[:kept]}… ({len(value)} in all)"
    if not isinstance(value, dict | list):
        return value
    found: Json
    if isinstance(value, list):
        found = []
        for item in value:
            if room[0] <= 0:
                return [*found, f"… {len(value) - len(found)} more"]
            found.append(_beginning(item, room))
        return found
    found = {}
    for key, item in value.items():
        if room[0] <= 0:
            return {**found, "…": f"{len(value) - len(found)} more"}
        # The name has room before what stands under it.
        name = unlike(_beginning(key, room), found)
        found[name] = _beginning(item, room)
    return found


def _size(record: Record) -> int:
    try:
        return min(len(canonical(record)), MAX_RECORD_BYTES)
    except RecursionError:
        return MAX_RECORD_BYTES


class RunAudit:
    """The records of one run.

    Args:
        mask: Takes out of arguments what must not be written down.
        policy: Digest of the policy in force; empty if there is none.

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
    ) -> None:
        self._log = log or AuditLog()
        self._run_id = run_id
        self._mask = mask
        self._policy = policy
        self.head = ""
        self._refusals = Refusals()
        self._room = RUN_BYTES

    async def began(self, facts: Mapping[str, Json]) -> None:
        """Record a run's beginning: principal, client's name, mode, digest of the code, servers.

        Raises:
            AuditError: It could not be; the run must not begin.
        """
        await self._append(self._event("run", {"policy": self._policy, **facts}))

    async def calling(
        self, number: int, call: CallFacts, decision: Decision, approval: Approval | None
    ) -> None:
        """Record a call that goes out next.

        Raises:
            AuditError: It could not be; the call must not be made.
        """
        if not self._log.recording:
            return
        try:
            record = await self._charged("call", number, call, decision)
        except AuditBudgetError as error:
            self.count_refused(number, call, decision, error.code)
            raise
        if approval is not None:
            record["approval"] = approval_fields(approval)
        head = self._log.append_now(record)
        if head is not None:
            self.head = head
            return
        # If the disk fails once the record is written, the call stands there and is not made.
        undone = self._outcome(number, "not-sent", size=0, ms=0)
        self.head = await self._log.append(record, undone)

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record what became of it.

        Never fails: the call has been made, and its result must not be lost for the log's sake.
        What cannot be written is owed, and until it is written no other call goes out.
        """
        if not self._log.recording:
            return
        record = self._outcome(number, outcome, size=size, ms=ms)
        try:
            head = self._log.append_now(record)
            if head is not None:
                self.head = head
                return
            with anyio.CancelScope(shield=True):
                self.head = await self._log.append(record)
        except AuditError:
            self._log.later(record)

    async def refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Record a call that is not made; of many equal ones, how many they were.

        Args:
            why: The code of the error that the program gets.

        Raises:
            AuditError: It could not be.
        """
        if not self._log.recording:
            return
        kind = refused_kind(call, decision, why)
        if self._refusals.count(kind, number):
            made = await self._call("refused", number, call, decision)
            record = capped(made | {"why": why})
            self._refusals.spend(record)
            await self._append(record)
            return
        summary = self._refusals.due(kind)
        if summary is not None:
            await self._append(self._event("refused", summary))

    def count_refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Have a call that is not made in the counts that the run's end is recorded with."""
        self._refusals.count(refused_kind(call, decision, why), number, whole=False)

    async def held(self, number: int, call: CallFacts, decision: Decision) -> None:
        """Record a call that a plan holds back.

        Raises:
            AuditError: It could not be.
        """
        if self._log.recording:
            await self._append(await self._charged("held", number, call, decision))

    async def replayed(self, number: int, call: CallFacts) -> None:
        """Record a call that was answered from a journal.

        Raises:
            AuditError: It could not be; the answer must not be used.
        """
        if self._log.recording:
            await self._append(await self._charged("replayed", number, call, None))

    async def found(self, what: str, provenance: Provenance) -> None:
        """Record that the run got something kept, and with it what flow rules did not know of it.

        Raises:
            AuditError: It could not be; the program must not get it.
        """
        if self._log.recording:
            self._insist_on_room()
            self._room -= SMALL
            facts: dict[str, Json] = {
                "what": what,
                "savedBy": provenance.run_id,
                "labels": sorted(provenance.labels),
                "from": sorted(provenance.servers),
                "anything": provenance.anything or None,
            }
            await self._append(self._event("found", facts))

    async def asked(self, facts: Mapping[str, Json]) -> None:
        """Record a server's question: server, what it asks, digest, beginning, what became of it.

        Raises:
            AuditError: It could not be; the server must not get an answer.
        """
        if self._log.recording:
            await self._append(self._event("question", facts))

    async def planned(self, plan_id: str, facts: Mapping[str, Json]) -> None:
        """Record a plan that the run made: owner, how many calls, for how long it can be applied.

        Raises:
            AuditError: It could not be; nobody must be given the plan.
        """
        await self._append(self._event("plan", {**facts, "plan": plan_id}))

    async def applying(self, plan_id: str, facts: Mapping[str, Json]) -> None:
        """Record, as this run's beginning, that a plan is applied: principal, owner, approval.

        Raises:
            AuditError: It could not be; no call of the plan must be made.
        """
        known = {"policy": self._policy, **facts, "plan": plan_id}
        await self._append(self._event("apply", known))

    async def commanded(self, facts: Mapping[str, Json], mask: Callable[[Json], Json]) -> None:
        """Record, as this run's beginning, a command: principal, profile, words.

        Args:
            mask: Takes out of the words what only options name as secret, after all else.

        Raises:
            AuditError: It could not be; the command must not run.
        """
        stages = facts.get("stages")
        shown = await aside(stages, partial(self._mask, stages, None))
        await self._append(self._event("command", {**facts, "stages": mask(shown)}))

    async def ended(self, facts: Mapping[str, Json]) -> None:
        """Record a run's end: status, reason, counts, times.

        Raises:
            AuditError: It could not be; it is owed.
        """
        # Written together with the end.
        for summary in self._refusals.rest():
            self._log.later(self._event("refused", summary))
        record = self._event("end", {**facts, "refused": self._refusals.total or None})
        try:
            await self._append(record)
        except AuditError:
            self._log.later(record)
            raise

    @asynccontextmanager
    async def until_end(self) -> AsyncIterator[Callable[[Mapping[str, Json]], None]]:
        """Record the end of what has begun, however that comes.

        Yields:
            What takes how it ended; "lost" if nobody says.
        """
        endings: list[Mapping[str, Json]] = [{"status": "lost"}]
        try:
            yield endings.append
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self.ended(endings[-1])
                except AuditError as error:
                    # It is owed, and written before anything else.
                    logger.warning("the end of a run could not be recorded: %s", error)

    async def _append(self, record: Record) -> None:
        self.head = await self._log.append(record)

    def _event(self, kind: Kind, facts: Mapping[str, Json]) -> Record:
        # What is empty says nothing, and would stand in every record.
        found = {name: value for name, value in facts.items() if value not in ("", None, [])}
        return {**found, "kind": kind, "run": self._run_id}

    def _insist_on_room(self) -> None:
        if self._room <= 0:
            raise AuditBudgetError(RUN_BYTES)

    async def _charged(
        self, kind: Kind, number: int, call: CallFacts, decision: Decision | None
    ) -> Record:
        """Return a call's record, taken from what the run may have recorded.

        Raises:
            AuditBudgetError: That is used up.
        """
        self._insist_on_room()
        record = await self._call(kind, number, call, decision)
        small = burden(call.arguments, SMALL) <= SMALL
        self._room -= SMALL if small else _size(record)
        return record

    async def _call(
        self, kind: Kind, number: int, call: CallFacts, decision: Decision | None
    ) -> Record:
        if burden(call.arguments, SMALL) <= SMALL:
            # As nearly all are; they need no thread, and are recorded whole.
            try:
                shown = self._mask(dict(call.arguments), call.schema)
            except RecursionError:
                shown = UNREADABLE
            return call_record(kind, self._run_id, number, call, shown, decision)
        return await aside(call.arguments, partial(self._large, kind, number, call, decision))

    def _large(self, kind: Kind, number: int, call: CallFacts, decision: Decision | None) -> Record:
        arguments, cut = self._shown(call)
        record = call_record(kind, self._run_id, number, call, arguments, decision)
        return record | {"cut": cut} if cut else record

    def _shown(self, call: CallFacts) -> tuple[Json, Json]:
        """Return arguments as they are recorded, and what is said of what was cut of them."""
        told: Json = dict(call.arguments)
        try:
            if burden(told, MAX_SEARCHED) > MAX_SEARCHED:
                told = _beginning(told, [MAX_SEARCHED])
            shown = self._mask(told, call.schema)
        except RecursionError:
            return UNREADABLE, None
        try:
            if burden(shown, SMALL) <= SMALL or len(canonical(shown)) <= MAX_RECORD_BYTES:
                return shown, None
        except RecursionError:
            return shown, None
        # Here, where it may be done in a thread; under the lock everybody waits for it.
        record = fitted({"arguments": shown})
        return record["arguments"], record.get("cut")

    def _outcome(self, number: int, outcome: Outcome, *, size: int, ms: float) -> Record:
        return {
            "kind": "outcome",
            "run": self._run_id,
            "call": number,
            "outcome": outcome,
            "bytes": size,
            "ms": round(ms, 1),
        }
