"""Requests that the bridge answers itself and that outlive a run: memories, skills.

They are journaled, judged and recorded like calls. Default rules that ask do not apply to them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio

from bridge.errors import ApprovalNeededError, BridgeError, RefusedError
from bridge.event_loop import offload
from bridge.gate.journal import OWN, Outcome
from bridge.gate.pipeline import Gate, PendingCall, denial
from bridge.gate.policy import DEFAULTS, CallFacts, Decision, strictest
from bridge.gate.services import GateContext
from bridge.model import Effect, Json, Provenance
from bridge.text import clip, valid_text, visible


class BridgeCalls:
    def __init__(self, context: GateContext, gate: Gate) -> None:
        self._context = context
        self._gate = gate
        self._tally = gate.tally

    async def make(
        self,
        method: str,
        params: Mapping[str, Json],
        effect: Effect,
        answer: Callable[[Mapping[str, Json]], Awaitable[Json]],
    ) -> Json:
        """Return the answer, or the recorded one of the run that this run retries."""
        journal = self._context.journal
        call = CallFacts(server=OWN, tool=method, arguments=params)
        known = None
        if self._context.replay is not None:
            try:
                known = self._context.replay.answer(call, effect)
            except RefusedError:
                self._tally.count("unknown", call, "not repeated")
                raise
        entry = journal.sent(call, effect)
        if known is not None:
            journal.settle(entry, "ok", known)
            self._tally.count("replayed", call)
            return known["answer"]
        try:
            if self._context.fate is not None:
                await self._context.fate.sending(entry)
            found = await answer(params)
        except Exception:
            # A failed request changed nothing. A cancelled one is unknown.
            journal.settle(entry, "not-sent", None)
            raise
        journal.settle(entry, "ok", {"answer": found})
        return found

    @asynccontextmanager
    async def permitted(
        self,
        method: str,
        arguments: Mapping[str, Json],
        effect: Effect,
        ask: Decision | None = None,  # In addition to the policy's decision.
        fix: str = "",  # The remedy if no person can be asked.
    ) -> AsyncIterator[None]:
        """Permit and record a change that the body of this context makes."""
        context = self._context
        self._gate.admit()
        number = self._gate.requests
        call = CallFacts(server=OWN, tool=method, arguments=arguments)
        base = await offload(dict(arguments), partial(context.policy.decide, call, effect))
        if base.rule in DEFAULTS.values() and base.action != "deny":
            base = replace(base, action="allow", rule="default for what programs keep")
        flow = context.flow.decide(context.flow_state, OWN, base.labels)
        found = [base, *(one for one in (flow, ask) if one is not None)]
        decision = strictest(*found)
        if decision.action == "deny":
            refusal = denial(call, decision, fix)
            raise await self._gate.record_refusal(number, call, decision, refusal)
        try:
            approval = await self._gate.ask(PendingCall(number, call, call, found, base, decision))
        except ApprovalNeededError:
            if ask is None or not fix:
                raise
            why = f"({decision.rule}: {decision.reason}), and no user can be asked."
            message = f"{call} needs a person's approval {why}"
            raise ApprovalNeededError(message, remedy=fix) from None
        await context.audit.record_call(number, call, decision, approval)
        try:
            yield
        except BaseException as error:
            outcome: Outcome = "not-sent" if isinstance(error, BridgeError) else "unknown"
            with anyio.CancelScope(shield=True):
                await context.audit.record_outcome(number, outcome, size=0, ms=0)
            raise
        await context.audit.record_outcome(number, "ok", size=0, ms=0)


class ProvenanceTracker:
    """The provenance of the things that one run reads and keeps.

    Raises `AuditError` if it cannot record a read. The program must then not get the thing.
    """

    def __init__(self, context: GateContext) -> None:
        self._context = context

    def provenance(self) -> Provenance | None:
        """Return the provenance of things that the run keeps; None if no flow rule could apply."""
        context = self._context
        found = context.flow_state.provenance(context.journal.run_id)
        if found is None or context.policy.spec.present or found.labels or found.anything:
            return found
        # Only labels matter without a policy: they may come from an earlier one.
        return None

    async def add(self, what: str, provenance: Provenance | None) -> None:
        """Count a kept thing as read before the program gets it ("memory 'notes'")."""
        if provenance is None:
            return
        by = f"run {provenance.run_id}" if provenance.run_id else "an unknown run"
        # A program chooses the name. The URI of a run's output has 54 characters.
        shown = clip(visible(valid_text(what[:61]), keep=""), 60)
        await self._note(f"{shown} (saved by {by})", shown, provenance)

    async def add_store(self, what: str, provenance: Provenance | None) -> None:
        """Count a store's things as read, unless this run has read them."""
        if provenance is not None and not self._context.flow_state.knows(provenance):
            await self.add(what, provenance)

    async def add_labels(self, what: str, labels: frozenset[str]) -> None:
        if labels:
            await self._note(what, what, Provenance(labels=labels))

    async def _note(self, name: str, what: str, provenance: Provenance) -> None:
        context = self._context
        # Recorded once for equal provenance, so that a program cannot fill a log. Recorded first,
        # so that a second try does not return an unrecorded thing.
        if not context.flow_state.knows(provenance):
            facts: dict[str, Json] = {
                "what": what,
                "savedBy": provenance.run_id,
                "labels": sorted(provenance.labels),
                "from": sorted(provenance.servers),
                "anything": provenance.anything or None,
            }
            context.audit.charge(facts)
            await context.audit.record_event("found", facts)
        context.flow_state.add_provenance(name, provenance)
