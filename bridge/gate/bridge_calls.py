"""Requests that the bridge answers itself and whose effect outlives a run: memories, skills.

Owns that they are journaled like calls to servers, so that a retry repeats none of them, and that
those which change something are decided on and recorded like a call. No server gets them: a
policy's defaults that ask do not apply, but rules that name them do, and so does what denies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio

from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    BridgeError,
    CallDeniedError,
    OutcomeUnknownError,
)
from bridge.gate.approval import Approval
from bridge.gate.context import GateContext
from bridge.gate.decision import CallFacts, Decision, strictest
from bridge.gate.journal import OWN
from bridge.gate.outcomes import Outcome
from bridge.gate.pipeline import Gate, denied
from bridge.gate.policy import DEFAULTS
from bridge.model import Effect, Json
from bridge.offload import offload


class BridgeCalls:
    """One run's requests to the bridge itself."""

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
        """Return the answer; if the run that this one retries has it recorded, that.

        Raises:
            OutcomeUnknownError: It was made in that run, and its outcome is not known.
        """
        journal, call = self._context.journal, CallFacts(server=OWN, tool=method)
        known = None
        if self._context.replay is not None:
            try:
                known = self._context.replay.answer(OWN, method, params, effect)
            except OutcomeUnknownError:
                self._tally.lose(call, "not repeated")
                raise
        entry = journal.sent(OWN, method, params, effect)
        if known is not None:
            journal.settle(entry, "ok", known)
            self._tally.replay(call)
            return known["answer"]
        try:
            found = await answer(params)
        except Exception:
            # A failure has changed nothing; a cancelled request is of unknown outcome.
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
        ask: Decision | None = None,
        fix: str = "",
    ) -> AsyncIterator[None]:
        """Permit and record a change, which is made inside this context.

        Args:
            arguments: Of the request, for rules, question and record.
            ask: A decision that applies beside the policy's, to ask or to deny.
            fix: Remedy where no person can be asked.

        Raises:
            RefusedError: It is not allowed, or cannot be recorded.
        """
        context = self._context
        self._gate.admit()
        number = self._gate.asked
        call = CallFacts(server=OWN, tool=method, arguments=arguments)
        base = await offload(dict(arguments), partial(context.policy.decide, call, effect))
        if base.rule in DEFAULTS.values() and base.action != "deny":
            base = replace(base, action="allow", rule="default for what programs keep")
        flow = context.flow.decide(context.flow_state, OWN, base.labels)
        found = [base, *(one for one in (flow, ask) if one is not None)]
        decision = strictest(*found)
        approval: Approval | None = None
        try:
            if decision.action == "deny":
                raise denied(call, decision, fix)
            wanted = [replace(one, effect=effect) for one in found if one.action == "ask"]
            if wanted:
                approval = await context.approver.approve(call, wanted)
        except (ApprovalNeededError, ApprovalRefusedError, CallDeniedError) as error:
            self._tally.refuse(call, f"{decision.action}: {decision.rule}")
            await context.audit.refused(number, call, decision, error.code)
            if ask is not None and fix and isinstance(error, ApprovalNeededError):
                message = (
                    f"{call} needs a person's approval ({decision.rule}: {decision.reason}), and "
                    "no user can be asked."
                )
                raise ApprovalNeededError(message, remedy=fix) from None
            raise
        await context.audit.calling(number, call, decision, approval, "")
        try:
            yield
        except BaseException as error:
            outcome: Outcome = "not-sent" if isinstance(error, BridgeError) else "unknown"
            with anyio.CancelScope(shield=True):
                await context.audit.called(number, outcome, size=0, ms=0)
            raise
        await context.audit.called(number, "ok", size=0, ms=0)
