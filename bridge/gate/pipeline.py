"""The steps of every request of a program to a server: see `Gate._process`.

Each run has its own `Gate`. A guest cannot change what its run may do. A `GateContext` has the
parts that decide, ask and record.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import anyio

from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    BridgeError,
    CallDeniedError,
    InvalidRequestError,
    RefusedError,
    UpstreamError,
)
from bridge.event_loop import LargeText, count_metric, offload, with_plain_text
from bridge.gate.approval import Approval
from bridge.gate.journal import OWN, outcome_after, outcome_of
from bridge.gate.policy import CHANGED, UNLISTED, CallFacts, Decision, strictest
from bridge.gate.question import led_by
from bridge.gate.services import GateContext, RunContext
from bridge.model import CallCount, Effect, Json, Receipt, RunResult, Tool
from bridge.settings.policy import SECRET

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
LIST_TOOLS = "tools/list"
"""Names under which rules match requests that are not tool calls. All three only read."""

# JSON values have no cycles, and the check takes half of the time.
_TEXT = json.JSONEncoder(ensure_ascii=False, check_circular=False)

_OVER_LIMIT = Decision(action="deny", rule="limit of calls")

Send = Callable[[Mapping[str, Json]], Awaitable[dict[str, Json]]]
"""Sends a request with the arguments given, and returns the server's answer."""


BYTES_PER_TOKEN = 4  # The average of English and JSON for public tokenisers.


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one run may do. `servers` None allows all discovered servers."""

    servers: frozenset[str] | None
    calls: int


CallOutcome = Literal["sent", "replayed", "refused", "unknown"]


class Tally:
    """Counts the calls of one run by outcome."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._under_way = 0
        self._since = 0.0
        self._busy = 0.0
        self._counts: dict[str, Counter[tuple[str, str, str]]] = {}
        self.made: Counter[str] = Counter()
        self.changing = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self._under_way += 1
        if self._under_way == 1:
            self._since = self._now()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy += self._now() - self._since

    @property
    def busy_seconds(self) -> float:
        return self._busy + (self._now() - self._since if self._under_way else 0.0)

    def count(self, outcome: CallOutcome, call: CallFacts, why: str = "") -> None:
        if outcome == "sent":
            self.made[call.server] += 1
        if outcome == "refused":
            count_metric("calls_total", server=call.server, outcome="denied")
        counts = self._counts.setdefault(outcome, Counter())
        key = (call.server, call.tool, why)
        if key not in counts and len(counts) >= 100:
            # Programs invent names.
            key = ("", "", "others")
        counts[key] += 1

    def counts(self, outcome: CallOutcome) -> tuple[CallCount, ...]:
        return tuple(
            CallCount(server=server, tool=tool, count=count, why=why)
            for (server, tool, why), count in self._counts.get(outcome, {}).items()
        )


class PendingCall(NamedTuple):
    """A request that is allowed and not sent yet."""

    number: int
    call: CallFacts  # With tokens for personal data and marks for secrets.
    real: CallFacts  # As the server gets it.
    decisions: Sequence[Decision]
    own: Decision  # The policy's decision, with the call's effect and labels.
    decision: Decision  # The strictest.


class Gate:
    """Decides on one run's calls, counts and records them, and makes them.

    `context` can be replaced between calls. The counts stay.
    """

    def __init__(
        self,
        grant: Grant,
        call_tool: Callable[[str, str, Mapping[str, Json]], Awaitable[dict[str, Json]]],
        context: GateContext | None = None,
    ) -> None:
        self._grant = grant
        self._call_tool = call_tool
        self.context = context or GateContext()
        self.requests = 0  # Including refused requests.
        self.tally = Tally(self.context.now)
        self.result_bytes = 0

    @property
    def calls(self) -> int:
        return self.tally.made.total()

    @property
    def is_watched(self) -> bool:
        return self.context.flow.watches(self.context.flow_state)

    def stop(self, server: str, tool: str = LIST_TOOLS) -> Decision | None:
        """Return the flow rule that stops such a call now, whatever the tool's definition."""
        context = self.context
        labels = context.policy.labels(server, tool, None)
        found = context.flow.decide(context.flow_state, server, labels)
        return None if found is None or found.action == "allow" else found

    def may_use(self, server: str) -> bool:
        return self._grant.servers is None or server in self._grant.servers

    def admit(self, server: str | None = None) -> None:
        """Count a request of the program, to a server if it names one, or refuse it."""
        if self.requests >= self._grant.calls:
            message = f"This run has made all of the {self._grant.calls:,} calls it may make."
            raise RefusedError(message, code="call_budget")
        # Refused requests count too, so that they cannot fill a log.
        self.requests += 1
        if server == OWN:
            message = f"{OWN!r} is the bridge itself, and no server can be called so."
            raise CallDeniedError(message, remedy="Give the server another name.")
        if server is not None and not self.may_use(server):
            allowed = ", ".join(sorted(self._grant.servers or ())) or "none"
            message = f"This run may not use the server {server!r}. It may use: {allowed}."
            raise CallDeniedError(message)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """Make a call, and return the raw `CallToolResult` or a placeholder.

        A text in the result may be a `LargeText`.
        """
        number = await self._admit(server, tool, arguments)
        flow = self.stop(server, tool) if self.is_watched else None
        if flow is not None and flow.action == "deny":
            # Before `_define`, whose request for the definition gives the server information.
            call = CallFacts(server=server, tool=tool, arguments=arguments)
            raise await self.record_refusal(number, call, flow, denial(call, flow))
        # Before `_define`, so that a redefinition meanwhile counts as a change.
        call = CallFacts(
            server=server,
            tool=tool,
            arguments=arguments,
            definition=await self._define(server, tool),
            server_definition=self.context.identify(server),
            own=self.context.is_own(server),
        )
        return await self._process(number, call, partial(self._call_tool, server, tool), "content")

    async def request(
        self, server: str, method: str, params: Mapping[str, Json], send: Send, part: str
    ) -> dict[str, Json]:
        """Make a request that is not a tool call. It is judged and counted like a read.

        Rules match its method like a tool's name. `part` is the key of the content in the answer.
        """
        number = await self._admit(server, method, params)
        definition = self.context.identify(server)
        call = CallFacts(server=server, tool=method, arguments=params, server_definition=definition)
        return await self._process(number, call, send, part, effect="read")

    async def _process(
        self, number: int, call: CallFacts, send: Send, part: str, effect: Effect | None = None
    ) -> dict[str, Json]:
        """Take a request through all steps. A step that stops it records this and raises.

        `effect` is that of a request which is not a tool call. For tool calls the policy has it.
        """
        real, sends_secret = await self._reveal(number, call)
        pending = await self._decide(number, call, real, effect, sends_secret=sends_secret)
        for step in (self._replay, self._hold):
            if (answer := await step(pending)) is not None:
                return answer
        context, approval = self.context, await self.ask(pending)
        try:
            context.budget.spend(call.server)
        except RefusedError as error:
            raise await self.record_refusal(number, call, pending.decision, error) from None
        context.flow_state.add_call(call.server, call.tool, pending.own.labels)
        note = ""
        if context.policy.spec.present and call.definition is not None:
            always = approval is not None and approval.holds == "always"
            note = await context.pins.keep(call.definition, call.server_definition, always=always)
        try:
            await context.audit.record_call(number, call, pending.decision, approval, note)
        except AuditError:
            self.tally.count("refused", call, "it could not be recorded")
            raise
        return await self._hide(call.server, await self._send(pending, send, part))

    async def list_offers(
        self, server: str, method: str, ask: Callable[[], Awaitable[Sequence[dict[str, Json]]]]
    ) -> Sequence[dict[str, Json]]:
        """Return a server's resources or prompts, unless policy or flow rules forbid it.

        Their names can be data, such as subjects of mails, so they count as read. No person is
        asked.
        """
        context, call = self.context, CallFacts(server=server, tool=method)
        decision = context.policy.decide(call, "read")
        denied = decision if decision.action == "deny" else self.stop(server, method)
        if denied is not None:
            message = f"What {server} offers is not listed: {call} is not allowed ({denied.rule})."
            raise await self.record_refusal(self.requests, call, denied, CallDeniedError(message))
        async with self.noting_errors(server, method):
            offers = await ask()
        if context.policy.spec.present:
            # An empty list is information too.
            context.flow_state.add_call(server, method, decision.labels)
        return await offload(offers, partial(context.vault.hide, server, list(offers)))

    @asynccontextmanager
    async def noting_errors(self, server: str, tool: str = LIST_TOOLS) -> AsyncIterator[None]:
        """Count a server's error as read before the program gets it."""
        try:
            yield
        except UpstreamError as error:
            context = self.context
            context.flow_state.add_call(server, tool, context.policy.labels(server, tool, None))
            await self._hide_error(server, error)
            raise

    async def _admit(self, server: str, tool: str, arguments: Mapping[str, Json]) -> int:
        """Count a request and return its number, or record its refusal."""
        try:
            self.admit(server)
        except CallDeniedError as error:
            call = CallFacts(server=server, tool=tool, arguments=arguments)
            decision = Decision(action="deny", rule="servers of the run")
            raise await self.record_refusal(self.requests, call, decision, error) from None
        except RefusedError as error:
            # A program can repeat such requests without limit, so they are only counted.
            call = CallFacts(server=server, tool=tool)
            self.tally.count("refused", call, _OVER_LIMIT.rule)
            self.context.audit.count_refusal(self.requests, call, _OVER_LIMIT, error.code)
            raise
        return self.requests

    async def _reveal(self, number: int, call: CallFacts) -> tuple[CallFacts, bool]:
        marks, vault = self.context.marks, self.context.vault
        arguments, rule = dict(call.arguments), "secrets go back only to their server"
        try:
            real = await offload(arguments, partial(marks.reveal, call.server, arguments))
            sends_secret, rule = real is not arguments, "privacy.reveal_to"
            if not vault.idle:
                real = await offload(real, partial(vault.reveal, call.server, real))
        except CallDeniedError as error:
            decision = Decision(action="deny", rule=rule)
            raise await self.record_refusal(number, call, decision, error) from None
        return replace(call, arguments=real), sends_secret

    async def _decide(
        self,
        number: int,
        call: CallFacts,
        real: CallFacts,
        effect: Effect | None,
        *,
        sends_secret: bool,
    ) -> PendingCall:
        context = self.context
        own = await offload(real.arguments, partial(context.policy.decide, real, effect))
        if sends_secret:
            own = replace(own, labels=own.labels | {SECRET})
        decisions = [own]
        # Without a policy there are no labels and no earlier approvals.
        if context.policy.spec.present:
            if effect is None:
                decisions = [own := self._deny_unlisted(call, own)]
            pinned = call.definition if context.policy.spec.pin else None
            if pinned is not None:
                await context.pins.refresh(pinned, call.server_definition)
            flow = context.flow.decide(context.flow_state, call.server, own.labels)
            if flow is not None:
                decisions.append(flow)
            if pinned is not None and own.action != "deny":
                change = context.pins.change(pinned, call.server_definition)
                if change:
                    decisions.append(Decision(action="ask", rule=CHANGED, reason=change))
        decision = strictest(*decisions)
        if decision.action == "deny":
            raise await self.record_refusal(number, call, decision, denial(call, decision))
        return PendingCall(number, call, real, decisions, own, decision)

    async def _replay(self, pending: PendingCall) -> dict[str, Json] | None:
        """Return the call's answer from the run that this one retries, or None.

        Runs before `_hold`, so that a plan does not repeat calls.
        """
        context, call, own = self.context, pending.call, pending.own
        if context.replay is None:
            return None
        try:
            result = context.replay.answer(call, own.effect)
        except RefusedError as error:
            self.tally.count("unknown", call, "not repeated")
            await context.audit.record_refusal(pending.number, call, own, error.code)
            raise
        if result is None:
            return None
        context.flow_state.add_call(call.server, call.tool, own.labels)
        context.journal.settle(context.journal.sent(call, own.effect, pending.number), "ok", result)
        self.tally.count("replayed", call)
        await context.audit.record_call(pending.number, call, None, kind="replayed")
        return await self._hide(call.server, result)

    async def _hold(self, pending: PendingCall) -> dict[str, Json] | None:
        """Hold a call back for a plan and return its placeholder, or None for a call to make."""
        context, call = self.context, pending.call
        holding = context.held_calls
        if holding is None:
            return None
        if pending.own.effect == "read":
            if holding.refers(call.arguments):
                raise InvalidRequestError(
                    f"{call} would read something now, with the future result of a held call. "
                    "A plan can use that only in other held calls.",
                    code="held_result",
                )
            holding.record_read(call)
            return None
        placeholder = holding.hold(call, pending.decision, pending.decisions, context.flow_state)
        # Counts as made, so that the plan shows the approvals of later calls.
        context.flow_state.add_call(call.server, call.tool, pending.own.labels)
        try:
            await context.audit.record_call(pending.number, call, pending.decision, kind="held")
        except AuditError as error:
            holding.spoil(error.message)
            raise
        return placeholder

    async def ask(self, pending: PendingCall) -> Approval | None:
        if pending.decision.action != "ask":
            return None
        effect = pending.own.effect
        asks = [replace(ask, effect=effect) for ask in pending.decisions if ask.action == "ask"]
        asked = time.monotonic()
        try:
            approval = await self.context.approver.approve(pending.real, asks)
            await self._check_unchanged(pending.call)
        except (ApprovalNeededError, ApprovalRefusedError) as error:
            error.waited_ms = round((time.monotonic() - asked) * 1000)
            decision = pending.decision
            raise await self.record_refusal(pending.number, pending.call, decision, error) from None
        return replace(approval, waited_ms=round((time.monotonic() - asked) * 1000))

    async def _send(self, pending: PendingCall, send: Send, part: str) -> dict[str, Json]:
        context, number, call = self.context, pending.number, pending.call
        # The outcome is unknown until `settle`.
        entry = context.journal.sent(call, pending.own.effect, number)
        started = time.monotonic()
        sending = partial(send, pending.real.arguments)
        try:
            if context.fate is not None:
                await context.fate.sending(entry)
            self.tally.count("sent", call)
            with self.tally.under_way():
                result = await context.send(sending, call.server, pending.own.labels)
        except BaseException as error:
            outcome = outcome_after(error)
            context.journal.settle(entry, outcome, None)
            count_metric("calls_total", server=call.server, outcome=outcome)
            reads = call.definition is not None and call.definition.says_it_reads
            if outcome == "unknown" and not (reads or entry.effect == "read"):
                self.tally.count("unknown", call, "no answer came")
                self.tally.changing += 1
            ms = (time.monotonic() - started) * 1000
            with anyio.CancelScope(shield=True):
                await context.audit.record_outcome(number, outcome, size=0, ms=ms)
            if isinstance(error, UpstreamError):
                await self._hide_error(call.server, error)
            raise
        ms = (time.monotonic() - started) * 1000
        size, outcome = result_size(result, part), outcome_of(result)
        self.result_bytes += size
        context.budget.bytes += size
        context.journal.settle(entry, outcome, result)
        count_metric("calls_total", server=call.server, outcome=outcome)
        # A retry makes a failed call again.
        self.tally.changing += entry.effect != "read" and outcome == "ok"
        await context.audit.record_outcome(number, outcome, size=size, ms=ms)
        return result

    async def _hide(self, server: str, result: dict[str, Json]) -> dict[str, Json]:
        vault = self.context.vault
        if vault.idle:
            return result
        return await offload(result, lambda: vault.hide(server, with_plain_text(result)))

    async def _define(self, server: str, tool: str) -> Tool | None:
        async with self.noting_errors(server, tool):
            return await self.context.define(server, tool)

    def _deny_unlisted(self, call: CallFacts, own: Decision) -> Decision:
        """Deny a tool whose name rules may not match."""
        if call.tool in (READ_RESOURCE, GET_PROMPT):
            # Rules use these names for requests that are not tool calls.
            reason = "a tool of that name cannot be told from the request of the protocol"
        elif call.definition is None and self.context.lists(call.server):
            # A server may accept other names for a listed tool.
            reason = f"{call.server} lists no such tool"
        else:
            return own
        return replace(own, action="deny", rule=UNLISTED, reason=reason)

    async def _check_unchanged(self, call: CallFacts) -> None:
        """Raise `ApprovalRefusedError` if a tool or server was redefined during the question."""
        if self.context.identify(call.server) != call.server_definition:
            message = f"{call.server} became another server while a person was asked about {call}."
        elif (
            call.definition is not None
            and await self._define(call.server, call.tool) != call.definition
        ):
            message = f"{call} was changed by its server while a person was asked about it."
        else:
            return
        raise ApprovalRefusedError(message, remedy="Make the call again.")

    async def record_refusal(
        self, number: int, call: CallFacts, decision: Decision, error: BridgeError
    ) -> BridgeError:
        # A decision to allow is not the reason of this refusal.
        why = "budget" if error.code == "call_budget" else f"{decision.action}: {decision.rule}"
        self.tally.count("refused", call, why)
        waited, audit = getattr(error, "waited_ms", 0), self.context.audit
        await audit.record_refusal(number, call, decision, error.code, waited_ms=waited)
        return error

    async def _hide_error(self, server: str, error: UpstreamError) -> None:
        texts = [error.message, error.host_detail, getattr(error, "data", None)]
        await offload(texts, partial(self.context.vault.hide_error, server, error))


def denial(call: CallFacts, decision: Decision, fix: str = "") -> CallDeniedError:
    reason = f": {decision.reason}" if decision.reason else ""
    message = f"{call} is not allowed ({decision.rule}{reason}).{led_by([decision])}"
    return CallDeniedError(message, remedy=fix)


def result_size(result: Mapping[str, Json], part: str = "content") -> int:
    """Return the bytes of a result's content, or else of its structured data."""
    content = result.get(part) or result.get("structuredContent") or []
    large = 0
    if isinstance(content, list):
        small = []
        for block in content:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str) and len(text) >= 64 * 1024:
                # Encoding a result takes as long as sending it.
                text = LargeText([text.encode("utf-8", "replace")])
            if isinstance(text, LargeText):
                large += len(text)
                block = {**block, "text": ""}
            small.append(block)
        content = small
    return large + len(_TEXT.encode(content).encode("utf-8", "replace"))


def add_receipt(result: RunResult, gate: Gate | None, run: RunContext) -> RunResult:
    context, tally = run.context, Tally() if gate is None else gate.tally
    waiting, calls_ms = run.caller.clock.stopped_seconds * 1000, max(0.0, tally.busy_seconds * 1000)
    # Encoding takes time, so that this runs once.
    returned = result.count_bytes()
    receipt = Receipt(
        calls=dict(tally.made),
        changing=tally.changing,
        held=0 if context.held_calls is None else context.held_calls.count,
        replayed=sum(each.count for each in tally.counts("replayed")),
        refused=sum(each.count for each in tally.counts("refused")),
        unknown=sum(each.count for each in tally.counts("unknown")),
        result_bytes=0 if gate is None else gate.result_bytes,
        returned_bytes=returned,
        tokens_kept=max(0, result.usage.tool_result_bytes - returned) // BYTES_PER_TOKEN,
        code_ms=max(0, round(result.usage.wall_ms - calls_ms - waiting)),
        calls_ms=round(calls_ms),
        waiting_ms=round(waiting),
        audit=context.audit.head,
        masked=tuple(context.marks.names),
        unsent=result.unsent,
    )
    return replace(
        result,
        receipt=receipt,
        unused=() if context.replay is None else context.replay.count_unused(),
        replayed=tally.counts("replayed"),
        refused=tally.counts("refused"),
        unknown=tally.counts("unknown"),
    )
