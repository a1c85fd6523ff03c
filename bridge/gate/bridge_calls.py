"""Requests of a program that the bridge answers itself and that last: memories, skills.

Owns that they are in a run's journal as calls to servers are, so that a retry does none of them
twice; and that what changes something is decided on and recorded like a call. They go to nobody, so
that the defaults of a policy, which are about servers, ask nothing about them; rules that name them
decide, and so do a default and a flow rule that deny.
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

UNDECIDED = "default for what programs keep"
"""The rule where none of the policy's speaks of it."""


class BridgeCalls:
    """One run's requests of that kind."""

    def __init__(self, oversight: GateContext, gate: Gate) -> None:
        self._seen = oversight
        self._gate = gate
        self._tally = gate.tally

    async def make(
        self,
        method: str,
        params: Mapping[str, Json],
        effect: Effect,
        answer: Callable[[Mapping[str, Json]], Awaitable[Json]],
    ) -> Json:
        """Return the answer, from the run that this one retries if it was made there.

        Raises:
            OutcomeUnknownError: It was made there, and nobody knows what became of it.
        """
        journal, call = self._seen.journal, CallFacts(server=OWN, tool=method)
        known = None
        if self._seen.replay is not None:
            try:
                known = self._seen.replay.answer(OWN, method, params, effect)
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
            # What fails here has changed nothing; of what is cut off nobody knows.
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
        """Change something within, as far as policy and person allow it, with a record of it.

        Args:
            arguments: As rules, the question and the record have them.
            ask: What is to be asked, or refused, whatever the policy allows.
            fix: What a program can do where nobody can be asked.

        Raises:
            RefusedError: It is not allowed, or cannot be recorded.
        """
        seen = self._seen
        self._gate.admit()
        number = self._gate.asked
        call = CallFacts(server=OWN, tool=method, arguments=arguments)
        base = await offload(dict(arguments), partial(seen.policy.decide, call, effect))
        if base.rule in DEFAULTS.values() and base.action != "deny":
            base = replace(base, action="allow", rule=UNDECIDED)
        flow = seen.flow.decide(seen.flow_state, OWN, base.labels)
        found = [base, *(one for one in (flow, ask) if one is not None)]
        decision = strictest(*found)
        approval: Approval | None = None
        try:
            if decision.action == "deny":
                raise denied(call, decision, fix)
            wanted = [replace(one, effect=effect) for one in found if one.action == "ask"]
            if wanted:
                approval = await seen.approver.approve(call, wanted)
        except (ApprovalNeededError, ApprovalRefusedError, CallDeniedError) as error:
            self._tally.refuse(call, f"{decision.action}: {decision.rule}")
            await seen.audit.refused(number, call, decision, error.code)
            if ask is not None and fix and isinstance(error, ApprovalNeededError):
                message = (
                    f"{call} needs a person's approval ({decision.rule}: {decision.reason}), and "
                    "nobody can be asked."
                )
                raise ApprovalNeededError(message, remedy=fix) from None
            raise
        await seen.audit.calling(number, call, decision, approval)
        try:
            yield
        except BaseException as error:
            outcome: Outcome = "not-sent" if isinstance(error, BridgeError) else "unknown"
            with anyio.CancelScope(shield=True):
                await seen.audit.called(number, outcome, size=0, ms=0)
            raise
        await seen.audit.called(number, "ok", size=0, ms=0)
