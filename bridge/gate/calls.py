"""The path every request of a program to a server takes.

Owns the order in which a call is decided on, recorded, made and recorded again. Each run has its
own `Gate`, made with what that run is allowed; nothing a guest sends can widen it. What decides and
what records are parts of their own; see `bridge.gate.oversight`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import anyio

from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    BridgeError,
    CallBudgetError,
    CallDeniedError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from bridge.gate.approval import Approval
from bridge.gate.decision import CallFacts, Decision, strictest
from bridge.gate.journal import Entry
from bridge.gate.outcomes import Outcome, outcome_after, outcome_of
from bridge.gate.oversight import Oversight
from bridge.gate.tally import Tally
from bridge.model import Json

LARGE_CHARACTERS = 64 * 1024
"""A text from here on is not counted as JSON, with what that escapes, but as it is."""

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
"""What rules call the requests that are no tools; by the protocol both only read."""

_TEXT = json.JSONEncoder(ensure_ascii=False)

Request = Callable[[], Awaitable[dict[str, Json]]]

CallTool = Callable[[str, str, Mapping[str, Json]], Awaitable[dict[str, Json]]]


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one run may do. `servers` is None when it may use every discovered server."""

    servers: frozenset[str] | None
    calls: int


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """A request on its way.

    Attributes:
        call: As the program made it, with tokens in place of personal data.
        real: As the server gets it.
    """

    number: int
    call: CallFacts
    real: CallFacts


class Gate:
    """Decides, records, counts and makes the calls of one run."""

    def __init__(
        self, grant: Grant, call_tool: CallTool, oversight: Oversight | None = None
    ) -> None:
        self._grant = grant
        self._call_tool = call_tool
        self._seen = oversight or Oversight()
        self._asked = 0
        self.tally = Tally()
        self.calls = 0
        self.result_bytes = 0

    def may_use(self, server: str) -> bool:
        """Whether the run was given this server."""
        return self._grant.servers is None or server in self._grant.servers

    def admit(self, server: str | None = None) -> None:
        """Count one question of the program's, on a server if it names one.

        Raises:
            CallDeniedError: The run was not given this server.
            CallBudgetError: The run has asked all that it may.
        """
        if self._asked >= self._grant.calls:
            message = f"This run has made all of the {self._grant.calls:,} calls it may make."
            raise CallBudgetError(message)
        # What is refused counts too, so that a run can fill no log with refusals.
        self._asked += 1
        if server is not None and not self.may_use(server):
            allowed = ", ".join(sorted(self._grant.servers or ())) or "none"
            message = f"This run may not use the server {server!r}. It may use: {allowed}."
            raise CallDeniedError(message)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """Make the call and return the raw `CallToolResult`, or the shape of a placeholder.

        Raises:
            RefusedError: The call is not allowed, or cannot be recorded.
            UpstreamError: The server could not do it.
        """
        await self._enter(server, tool, arguments)
        seen = self._seen
        number = self._asked
        call = CallFacts(
            server=server,
            tool=tool,
            arguments=arguments,
            definition=await seen.define(server, tool),
        )
        real = replace(call, arguments=seen.vault.reveal(server, dict(arguments)))
        request = partial(self._call_tool, server, tool, real.arguments)
        wish = _Wish(number=number, call=call, real=real)
        base = seen.policy.decide(real)
        if call.definition is None and seen.policy.spec.present and seen.lists(server):
            # A server may take names for a tool that no rule knows it by.
            base = replace(
                base, action="deny", rule="unlisted tool", reason=f"{server} lists no such tool"
            )
        return await self._pass(wish, base, request, "content")

    async def obtain(
        self, server: str, method: str, params: Mapping[str, Json], request: Request, part: str
    ) -> dict[str, Json]:
        """Make a request that is no call of a tool; it counts and is judged like one that reads.

        Args:
            method: `READ_RESOURCE` or `GET_PROMPT`: what rules know it by.
            params: What it is made with: what rules know as its arguments.
            part: Where in the answer is what it would have put into a conversation.

        Raises:
            RefusedError: It is not allowed, or cannot be recorded.
            UpstreamError: The server could not do it.
        """
        await self._enter(server, method, params)
        call = CallFacts(server=server, tool=method, arguments=params)
        wish = _Wish(number=self._asked, call=call, real=call)
        base = self._seen.policy.decide(call, "read")
        return await self._pass(wish, base, request, part)

    async def _enter(self, server: str, tool: str, arguments: Mapping[str, Json]) -> None:
        """Admit a call, or record that it was not."""
        try:
            self.admit(server)
        except CallBudgetError:
            # Not recorded: there is no end to what a program can ask for.
            self.tally.refuse(CallFacts(server=server, tool=tool), "limit of calls")
            raise
        except CallDeniedError as error:
            call = CallFacts(server=server, tool=tool, arguments=arguments)
            decision = Decision(action="deny", rule="servers of the run")
            wish = _Wish(number=self._asked, call=call, real=call)
            raise await self._refused(wish, decision, error) from None

    async def _pass(
        self, wish: _Wish, base: Decision, request: Request, part: str
    ) -> dict[str, Json]:
        seen, call = self._seen, wish.call
        asks = self._decide(wish.real, base)
        decision = strictest(base, *asks)
        if decision.action == "deny":
            reason = f": {decision.reason}" if decision.reason else ""
            message = f"{call} is not allowed ({decision.rule}{reason})."
            raise await self._refused(wish, decision, CallDeniedError(message))
        if seen.holding is not None:
            if base.effect != "read":
                return await self._hold(wish, decision)
            if seen.holding.refers(call.arguments):
                message = (
                    f"{call} would read something now, with what a held call is going to return. "
                    "A plan can use that only in other held calls."
                )
                raise InvalidRequestError(message)
        known = await self._replay(wish, decision)
        if known is not None:
            return known
        approval: Approval | None = None
        wanted = [ask for ask in asks if ask.action == "ask"]
        if wanted:
            try:
                approval = await seen.approver.approve(wish.real, wanted)
            except (ApprovalNeededError, ApprovalRefusedError) as error:
                raise await self._refused(wish, decision, error) from None
        try:
            seen.budget.spend(call.server)
        except CallBudgetError as error:
            raise await self._refused(wish, decision, error) from None
        seen.flow_state.note(call.server, call.tool, base.labels)
        if seen.policy.spec.present and call.definition is not None:
            seen.pins.keep(call.definition)
        return await self._make(wish, decision, approval, request, part)

    def _decide(self, call: CallFacts, base: Decision) -> list[Decision]:
        """Return every decision on a call, the policy's own first."""
        seen = self._seen
        if not seen.policy.spec.present:
            # Without one there are no labels, and nothing was ever allowed by it.
            return [base]
        found = [base]
        flow = seen.flow.decide(seen.flow_state, call.server, base.labels)
        if flow is not None:
            found.append(flow)
        if base.action == "allow" and call.definition is not None and seen.policy.spec.pin:
            change = seen.pins.change(call.definition)
            if change:
                found.append(Decision(action="ask", rule="changed tool", reason=change))
        return found

    async def _refused(self, wish: _Wish, decision: Decision, error: BridgeError) -> BridgeError:
        """Record that a call is not made; return why."""
        self.tally.refuse(wish.call, f"{decision.action}: {decision.rule}")
        await self._seen.audit.refused(wish.number, wish.call, decision, error.code)
        return error

    async def _hold(self, wish: _Wish, decision: Decision) -> dict[str, Json]:
        seen = self._seen
        assert seen.holding is not None
        placeholder = seen.holding.hold(wish.call, decision)
        await seen.audit.held(wish.number, wish.call, decision)
        return placeholder

    async def _replay(self, wish: _Wish, decision: Decision) -> dict[str, Json] | None:
        """Return what a call was answered in the run that this one retries."""
        seen, call = self._seen, wish.call
        if seen.replay is None:
            return None
        try:
            result = seen.replay.answer(call.server, call.tool, call.arguments, decision.effect)
        except OutcomeUnknownError as error:
            self.tally.lose(call, "not repeated")
            await seen.audit.refused(wish.number, call, decision, error.code)
            raise
        if result is None:
            return None
        seen.flow_state.note(call.server, call.tool, decision.labels)
        entry = seen.journal.sent(call.server, call.tool, call.arguments, decision.effect)
        seen.journal.settle(entry, "ok", result)
        self.tally.replay(call)
        await seen.audit.replayed(wish.number, call)
        return seen.vault.hide(call.server, result)

    async def _make(
        self,
        wish: _Wish,
        decision: Decision,
        approval: Approval | None,
        request: Request,
        part: str,
    ) -> dict[str, Json]:
        """Record a call, make it, and record what became of it."""
        seen, call = self._seen, wish.call
        try:
            await seen.audit.calling(wish.number, call, decision, approval)
        except AuditError:
            self.tally.refuse(call, "it could not be recorded")
            raise
        entry = seen.journal.sent(call.server, call.tool, call.arguments, decision.effect)
        self.calls += 1
        self.tally.made[call.server] += 1
        started = time.monotonic()
        with self.tally.under_way():
            try:
                result = await request()
            except BaseException as error:
                await self._lost(wish, entry, outcome_after(error), started)
                raise
        size = result_size(result, part)
        self.result_bytes += size
        seen.budget.took_in(size)
        outcome = outcome_of(result)
        seen.journal.settle(entry, outcome, result)
        ms = (time.monotonic() - started) * 1000
        await seen.audit.called(wish.number, outcome, size=size, ms=ms)
        return seen.vault.hide(call.server, result)

    async def _lost(self, wish: _Wish, entry: Entry, outcome: Outcome, started: float) -> None:
        """Record a call that ended without an answer."""
        seen = self._seen
        seen.journal.settle(entry, outcome, None)
        if outcome == "unknown":
            self.tally.lose(wish.call, "no answer came")
        ms = (time.monotonic() - started) * 1000
        with anyio.CancelScope(shield=True):
            try:
                await seen.audit.called(wish.number, outcome, size=0, ms=ms)
            except AuditError:
                # It stands there as sent and unanswered, which is what is known of it.
                return


def result_size(result: Mapping[str, Json], part: str = "content") -> int:
    """Return the bytes of text that `result` would have put into a conversation."""
    content = result.get(part, [])
    large = 0
    if isinstance(content, list):
        small = []
        for block in content:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str) and len(text) >= LARGE_CHARACTERS:
                # Counted as it is: to write it as JSON only to count takes as long as to move it.
                large += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                small.append({**block, "text": ""})
            else:
                small.append(block)
        content = small
    return large + len(_TEXT.encode(content).encode("utf-8", "replace"))
