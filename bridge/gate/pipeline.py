"""The path every request of a program to a server takes.

Owns the order in which a call is decided on, recorded, made and recorded again. Each run has its
own `Gate`, made with what that run is allowed; nothing a guest sends can widen it. What decides and
what records are parts of their own; see `bridge.gate.context`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
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
    HeldResultError,
    OutcomeUnknownError,
    UpstreamError,
)
from bridge.gate.approval import Approval
from bridge.gate.context import GateContext
from bridge.gate.decision import CHANGED, UNLISTED, CallFacts, Decision, strictest
from bridge.gate.journal import OWN, Entry
from bridge.gate.outcomes import Outcome, outcome_after, outcome_of
from bridge.gate.question import led_by
from bridge.gate.tally import Tally
from bridge.model import Effect, Json, Tool
from bridge.offload import offload

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
LIST_TOOLS = "tools/list"
"""What rules call the requests that are no tools; by the protocol both only read."""

LARGE_CHARACTERS = 64 * 1024
"""A text from here on is not counted as JSON, with what that escapes, but as it is."""

# What comes from JSON has no circles, and to look for them is half of the work.
_TEXT = json.JSONEncoder(ensure_ascii=False, check_circular=False)

Request = Callable[[], Awaitable[dict[str, Json]]]

_BEYOND = Decision(action="deny", rule="limit of calls")

Ask = Callable[[Mapping[str, Json]], Awaitable[dict[str, Json]]]

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
        self, grant: Grant, call_tool: CallTool, oversight: GateContext | None = None
    ) -> None:
        self._grant = grant
        self._call_tool = call_tool
        self._seen = oversight or GateContext()
        self._asked = 0
        self.tally = Tally(self._seen.now)
        self.calls = 0
        self.result_bytes = 0

    def go_on_under(self, oversight: GateContext) -> None:
        """Have the calls from now on watched over by another; what was counted stays."""
        self._seen = oversight

    @property
    def asked(self) -> int:
        """How many questions of the program's were counted."""
        return self._asked

    @property
    def has_read_labels(self) -> bool:
        """Whether the run has read what flow rules know by a label."""
        return self._seen.flow_state.has_labels

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
        if server == OWN:
            message = f"{OWN!r} is the bridge itself, and no server can be called so."
            raise CallDeniedError(message, remedy="Give the server another name.")
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
        # Asked for first: were it redefined meanwhile, what follows would be taken for a change.
        identity = seen.identify(server)
        call = CallFacts(
            server=server,
            tool=tool,
            arguments=arguments,
            definition=await self._defined(server, tool),
            server_definition=identity,
        )
        wish = await self._revealed(number, call)
        real = wish.real
        request = partial(self._call_tool, server, tool, real.arguments)
        base = await offload(real.arguments, partial(seen.policy.decide, real))
        base = self._insist_on_name(call, base)
        return await self._pass(wish, base, request, "content")

    async def _defined(self, server: str, tool: str) -> Tool | None:
        """Return a tool as its server describes it; what the server says instead counts as read.

        Raises:
            UpstreamError: The server cannot be reached.
        """
        async with self.hearing(server, tool):
            return await self._seen.define(server, tool)

    @asynccontextmanager
    async def hearing(self, server: str, tool: str = LIST_TOOLS) -> AsyncIterator[None]:
        """Have a server's error count as read like a result, before the program gets it.

        Args:
            tool: What rules know the request by, whose labels the text has.
        """
        seen = self._seen
        try:
            yield
        except UpstreamError as error:
            seen.flow_state.note(server, tool, seen.policy.labels(server, tool, None))
            await self._hide_error(server, error)
            raise

    async def _hide_error(self, server: str, error: UpstreamError) -> None:
        """Have tokens stand for personal data in what a server says of an error."""
        said = [error.message, error.host_detail, getattr(error, "data", None)]
        await offload(said, partial(self._seen.vault.hide_error, server, error))

    def _insist_on_name(self, call: CallFacts, base: Decision) -> Decision:
        """Deny, where there is a policy, what its rules may know by another name."""
        seen = self._seen
        if not seen.policy.spec.present:
            return base
        if call.tool in (READ_RESOURCE, GET_PROMPT):
            # Rules have these for requests that are no tools.
            reason = "a tool of that name cannot be told from the request of the protocol"
            return replace(base, action="deny", rule=UNLISTED, reason=reason)
        if call.definition is None and seen.lists(call.server):
            # A server may take other names for a tool than the one it lists.
            reason = f"{call.server} lists no such tool"
            return replace(base, action="deny", rule=UNLISTED, reason=reason)
        return base

    async def obtain(
        self, server: str, method: str, params: Mapping[str, Json], ask: Ask, part: str
    ) -> dict[str, Json]:
        """Make a request that is no call of a tool; it counts and is judged like one that reads.

        Args:
            method: `READ_RESOURCE` or `GET_PROMPT`: what rules know it by.
            params: What it is made with: what rules know as its arguments.
            ask: Makes it, with `params` as the server is to get them.
            part: Where in the answer is what it would have put into a conversation.

        Raises:
            RefusedError: It is not allowed, or cannot be recorded.
            UpstreamError: The server could not do it.
        """
        await self._enter(server, method, params)
        call = CallFacts(
            server=server,
            tool=method,
            arguments=params,
            server_definition=self._seen.identify(server),
        )
        wish = await self._revealed(self._asked, call)
        decide = partial(self._seen.policy.decide, wish.real, "read")
        base = await offload(wish.real.arguments, decide)
        return await self._pass(wish, base, partial(ask, wish.real.arguments), part)

    async def look_over(
        self, server: str, method: str, ask: Callable[[], Awaitable[Sequence[dict[str, Json]]]]
    ) -> Sequence[dict[str, Json]]:
        """Have a server list what it offers: names are data too, such as those of mails.

        Nobody is asked, and nothing is recorded but a refusal: the program sends nothing.

        Args:
            method: `READ_RESOURCE` or `GET_PROMPT`: what rules know the reading of it by.

        Raises:
            CallDeniedError: Reading anything of it is not allowed.
            UpstreamError: The server could not do it.
        """
        seen, call = self._seen, CallFacts(server=server, tool=method)
        decision = seen.policy.decide(call, "read")
        if decision.action == "deny":
            message = f"What {server} offers is not listed: {call} is denied ({decision.rule})."
            raise await self._refused(self._asked, call, decision, CallDeniedError(message))
        async with self.hearing(server, method):
            offers = await ask()
        if seen.policy.spec.present:
            # Also where there are none: what is there today is data.
            seen.flow_state.note(server, method, decision.labels)
        return await offload(offers, partial(seen.vault.hidden, server, list(offers)))

    async def _revealed(self, number: int, call: CallFacts) -> _Wish:
        """Return a call with personal data in place of tokens, for those who get to see it.

        Raises:
            InvalidRequestError: A token stands for nothing.
            CallDeniedError: The server may not have what it stands for.
        """
        vault = self._seen.vault
        if vault.idle:
            return _Wish(number=number, call=call, real=call)
        told = dict(call.arguments)
        try:
            arguments = await offload(told, partial(vault.reveal, call.server, told))
        except CallDeniedError as error:
            decision = Decision(action="deny", rule="privacy.reveal_to")
            raise await self._refused(number, call, decision, error) from None
        return _Wish(number=number, call=call, real=replace(call, arguments=arguments))

    async def _enter(self, server: str, tool: str, arguments: Mapping[str, Json]) -> None:
        """Admit a call, or record that it was not."""
        try:
            self.admit(server)
        except CallBudgetError:
            # Counted alone: there is no end to what a program can ask for.
            self.tally.refuse(call := CallFacts(server=server, tool=tool), _BEYOND.rule)
            self._seen.audit.count_refused(self._asked, call, _BEYOND, CallBudgetError.code)
            raise
        except CallDeniedError as error:
            call = CallFacts(server=server, tool=tool, arguments=arguments)
            decision = Decision(action="deny", rule="servers of the run")
            raise await self._refused(self._asked, call, decision, error) from None

    async def _pass(
        self, wish: _Wish, base: Decision, request: Request, part: str
    ) -> dict[str, Json]:
        seen, call = self._seen, wish.call
        if call.definition is not None and seen.policy.spec.present and seen.policy.spec.pin:
            await seen.pins.look(call.definition, call.server_definition)
        asks = self._decide(wish.real, base)
        decision = strictest(base, *asks)
        if decision.action == "deny":
            raise await self._refused(wish.number, call, decision, denied(call, decision))
        # Before anything is held back: a plan must not do again what was done.
        known = await self._replay(wish, base)
        if known is not None:
            return known
        if seen.holding is not None:
            if base.effect != "read":
                return await self._hold(wish, decision, asks)
            if seen.holding.refers(call.arguments):
                message = (
                    f"{call} would read something now, with what a held call is going to return. "
                    "A plan can use that only in other held calls."
                )
                raise HeldResultError(message)
            seen.holding.reading(call)
        approval: Approval | None = None
        # What it does is known to the policy alone.
        wanted = [replace(ask, effect=base.effect) for ask in asks if ask.action == "ask"]
        if wanted:
            try:
                approval = await seen.approver.approve(wish.real, wanted)
                await self._insist_on_same(call)
            except (ApprovalNeededError, ApprovalRefusedError) as error:
                raise await self._refused(wish.number, call, decision, error) from None
        try:
            seen.budget.spend(call.server)
        except CallBudgetError as error:
            raise await self._refused(wish.number, call, decision, error) from None
        seen.flow_state.note(call.server, call.tool, base.labels)
        if seen.policy.spec.present and call.definition is not None:
            for_good = approval is not None and approval.holds == "always"
            await seen.pins.keep(call.definition, call.server_definition, anew=for_good)
        return await self._make(wish, decision, base.effect, approval, request, part)

    async def _insist_on_same(self, call: CallFacts) -> None:
        """Accept an approval only of the tool, and of the server, as they still are.

        Raises:
            ApprovalRefusedError: It was described or defined otherwise while somebody was asked.
        """
        if self._seen.identify(call.server) != call.server_definition:
            message = f"{call.server} became another server while a person was asked about {call}."
            raise ApprovalRefusedError(message, remedy="Make the call again.")
        if call.definition is None:
            return
        now = await self._defined(call.server, call.tool)
        if now is not call.definition and now != call.definition:
            message = f"{call} was changed by its server while a person was asked about it."
            raise ApprovalRefusedError(message, remedy="Make the call again.")

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
        if base.action != "deny" and call.definition is not None and seen.policy.spec.pin:
            change = seen.pins.change(call.definition, call.server_definition)
            if change:
                found.append(Decision(action="ask", rule=CHANGED, reason=change))
        return found

    async def _refused(
        self, number: int, call: CallFacts, decision: Decision, error: BridgeError
    ) -> BridgeError:
        """Record that a call is not made; return why."""
        # It was decided on before the budget was looked at: "allow" would be no reason.
        spent = isinstance(error, CallBudgetError)
        self.tally.refuse(call, "budget" if spent else f"{decision.action}: {decision.rule}")
        await self._seen.audit.refused(number, call, decision, error.code)
        return error

    async def _hold(
        self, wish: _Wish, decision: Decision, asks: Sequence[Decision]
    ) -> dict[str, Json]:
        seen = self._seen
        assert seen.holding is not None
        placeholder = seen.holding.hold(wish.call, decision, asks, seen.flow_state)
        # As if it had been made, so that the plan shows what the calls after it need.
        seen.flow_state.note(wish.call.server, wish.call.tool, asks[0].labels)
        try:
            await seen.audit.unsent("held", wish.number, wish.call, decision)
        except AuditError as error:
            seen.holding.spoil(error.message)
            raise
        return placeholder

    async def _replay(self, wish: _Wish, decision: Decision) -> dict[str, Json] | None:
        """Return what a call was answered in the run that this one retries."""
        seen, call = self._seen, wish.call
        if seen.replay is None:
            return None
        try:
            result = seen.replay.answer(
                call.server, call.tool, call.arguments, decision.effect, call.server_definition
            )
        except OutcomeUnknownError as error:
            self.tally.lose(call, "not repeated")
            await seen.audit.refused(wish.number, call, decision, error.code)
            raise
        if result is None:
            return None
        seen.flow_state.note(call.server, call.tool, decision.labels)
        effect = decision.effect
        entry = self._sent(wish, effect)
        seen.journal.settle(entry, "ok", result)
        self.tally.replay(call)
        await seen.audit.unsent("replayed", wish.number, call)
        return await offload(result, partial(seen.vault.hide, call.server, result))

    def _sent(self, wish: _Wish, effect: Effect) -> Entry:
        call = wish.call
        return self._seen.journal.sent(
            call.server,
            call.tool,
            call.arguments,
            effect,
            wish.number,
            server_definition=call.server_definition,
        )

    async def _make(
        self,
        wish: _Wish,
        decision: Decision,
        effect: Effect,
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
        self.tally.send(call)
        entry = self._sent(wish, effect)
        self.calls += 1
        self.tally.made[call.server] += 1
        started = time.monotonic()
        with self.tally.under_way():
            try:
                result = await request()
            except BaseException as error:
                await self._lost(wish, entry, effect, outcome_after(error), started)
                if isinstance(error, UpstreamError):
                    await self._hide_error(call.server, error)
                raise
        size = result_size(result, part)
        self.result_bytes += size
        seen.budget.took_in(size)
        outcome = outcome_of(result)
        seen.journal.settle(entry, outcome, result)
        # What failed is made again, whether or not the run is retried with its journal.
        self.tally.changing += effect != "read" and outcome == "ok"
        ms = (time.monotonic() - started) * 1000
        await seen.audit.called(wish.number, outcome, size=size, ms=ms)
        if seen.vault.idle:
            return result
        return await offload(result, partial(seen.vault.hide, call.server, result))

    async def _lost(
        self, wish: _Wish, entry: Entry, effect: Effect, outcome: Outcome, started: float
    ) -> None:
        """Record a call that ended without an answer."""
        seen = self._seen
        seen.journal.settle(entry, outcome, None)
        if outcome == "unknown":
            self.tally.lose(wish.call, "no answer came")
            self.tally.changing += effect != "read"
        ms = (time.monotonic() - started) * 1000
        with anyio.CancelScope(shield=True):
            await seen.audit.called(wish.number, outcome, size=0, ms=ms)


def denied(call: CallFacts, decision: Decision, fix: str = "") -> CallDeniedError:
    """Return the error on a call that a policy denies."""
    reason = f": {decision.reason}" if decision.reason else ""
    message = f"{call} is not allowed ({decision.rule}{reason}).{led_by([decision])}"
    return CallDeniedError(message, remedy=fix)


def result_size(result: Mapping[str, Json], part: str = "content") -> int:
    """Return the bytes of text that `result` would have put into a conversation.

    Args:
        part: Where its content is. Data that comes without any is counted instead.
    """
    content = result.get(part) or result.get("structuredContent") or []
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
