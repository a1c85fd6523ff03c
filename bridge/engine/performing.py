"""The calls of one plan, made one after the other.

Owns what is looked at before each, what a call under way gets of time when its client goes, what
became of each, and that nothing is made after the first that is not done. Whether a call may be
made, and its record, are the gate's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio
import anyio.lowlevel

from bridge.clock import Clock
from bridge.engine.servers import Servers
from bridge.errors import BridgeError, InvalidRequestError, RefusedError, UsageError
from bridge.gate.approval import Approval
from bridge.gate.calls import Gate
from bridge.gate.outcomes import outcome_after
from bridge.gate.oversight import Oversight
from bridge.gate.pins import tool_digest
from bridge.gate.plans import Covered, HeldRequest, KeptPlan, Known, resolve
from bridge.guest.validation import problem
from bridge.model import Json, Reason
from bridge.rpc.values import tool_error, wire_value

APPLY_SECONDS = 30 * 60.0
"""After which no further call of a plan is begun. Longer than a program may take, for somebody has
approved of all of it; one that is under way has its own limit, and is waited for."""

FINISH_SECONDS = 5.0
"""For the call under way when the client cancels: one that is cut off is of unknown outcome, and
most have their answer by then."""

MAX_VALUE = 2_000
"""Characters of JSON shown of what one call returned."""

MAX_VALUES = 16 * 1024
"""... and of what all did: the first ones, for a plan may have a thousand calls."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long an application may take, and a call that is under way when it is cancelled."""

    apply: float = APPLY_SECONDS
    finish: float = FINISH_SECONDS


_NO_NUMBERS: Mapping[str, Json] = {"number": 0, "to": 0}

_PLAIN = 3
"""Fields of a line without its number, where there is nothing to tell but the status."""

StepStatus = Literal["done", "failed", "unknown", "not done"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What became of a call.

    Attributes:
        told: What it returned, or how long that is; nothing if enough was shown of others.
        error: Why it is not.
    """

    request: HeldRequest
    status: StepStatus
    told: Mapping[str, Json] = field(default_factory=dict)
    error: str = ""
    reason: Reason = "exception"


class Performance:
    """Makes the calls of one plan. Used once.

    Attributes:
        steps: What became of the calls so far; the last may be other than done.
        late: Whether it was stopped for its time.
    """

    def __init__(
        self,
        kept: KeptPlan,
        *,
        gate: Gate,
        oversight: Oversight,
        servers: Servers,
        approval: Approval,
        clock: Clock,
        times: Times,
    ) -> None:
        self._kept = kept
        self._gate = gate
        self._oversight = oversight
        self._servers = servers
        self._approval = approval
        self._clock = clock
        self._times = times
        # A result is kept for as long as a call to come is made with it.
        self._known: dict[int, Known] = {}
        self._awaited = Counter(number for request in kept.requests for number in request.uses)
        self._room = MAX_VALUES
        self.steps: list[Step] = []
        self.late = False

    async def perform(self) -> None:
        """Make the calls in order, as far as it goes. Cancelled, it stops between two calls."""
        until = self._clock.now() + self._times.apply
        for request in self._kept.requests:
            await anyio.lowlevel.checkpoint()
            if self._clock.now() >= until:
                self.late = True
                return
            try:
                arguments = resolve(request.call.arguments, self._known)
                self._forget(request)
                await self._check(request, arguments)
            except BridgeError as error:
                self.steps.append(_not_made(request, error))
                return
            await self._make(request, arguments)
            if self.steps[-1].status != "done":
                return

    async def _check(self, request: HeldRequest, arguments: Mapping[str, Json]) -> None:
        """See that the tool is what it was, and would take the arguments.

        Raises:
            BridgeError: It is not, would not, or its server cannot be asked.
        """
        call = request.call
        if self._servers.definition(call.server) != call.server_definition:
            message = f"{call.server} has another definition now than when the plan was made."
            raise InvalidRequestError(message, remedy="Look at its tools, and plan again.")
        # Asks the server again unless that would have said that its tools have changed.
        await self._servers.load([call.server])
        tool = self._servers.known.tool(call.server, call.tool)
        if (tool_digest(tool) if tool is not None else "") != request.digest:
            message = f"{call} is not the tool any more that it was when the plan was made."
            raise InvalidRequestError(message, remedy="Look at it, and plan again.")
        if tool is None:
            return
        real = self._oversight.vault.reveal(call.server, dict(arguments))
        wrong = problem(real, tool.input_schema, tool.input_schema, "arguments")
        if wrong is not None:
            # What is wrong may quote what the token stands for.
            wrong = self._oversight.vault.conceal(wrong)
            message = f"{call} does not take what the plan has for it by now: {wrong}."
            raise InvalidRequestError(message)

    async def _make(self, request: HeldRequest, arguments: Mapping[str, Json]) -> None:
        """Make a call, and write down what became of it before anything can interrupt that."""
        oversight = replace(
            self._oversight, flow_state=request.flow, approver=Covered(self._approval, request)
        )
        self._gate.go_on_under(oversight)
        before, count = self._gate.calls, len(self.steps)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope(shield=True) as shield:
                tasks.start_soon(_hurry, shield, self._times.finish)
                try:
                    result = await self._gate.call(
                        request.call.server, request.call.tool, arguments
                    )
                except BridgeError as error:
                    sent = self._gate.calls > before
                    self.steps.append(_lost(request, error) if sent else _not_made(request, error))
                else:
                    self._take(request, result)
            if len(self.steps) == count:
                error_text = "It was cut off before its answer came."
                self.steps.append(
                    Step(request=request, status="unknown", error=error_text, reason="cancelled")
                )
            tasks.cancel_scope.cancel()

    def _take(self, request: HeldRequest, result: Mapping[str, Json]) -> None:
        error = tool_error(result)
        if error is not None:
            self.steps.append(Step(request=request, status="failed", error=error))
            return
        server, tool = request.call.server, request.call.tool
        shape = wire_value(result, wrapped=self._servers.known.wraps_result(server, tool))
        self._servers.known.observe(server, tool, shape)
        if self._awaited[request.number]:
            self._known[request.number] = Known(call=str(request), shape=shape)
        size = len(json.dumps(shape, ensure_ascii=False))
        told: dict[str, Json] = {}
        if size > MAX_VALUE:
            told = {"valueCharacters": size}
        elif size <= self._room:
            told = {"value": shape["json"] if "json" in shape else dict(shape)}
            self._room -= size
        self.steps.append(Step(request=request, status="done", told=told))

    def _forget(self, request: HeldRequest) -> None:
        for number in request.uses:
            self._awaited[number] -= 1
            if not self._awaited[number]:
                self._known.pop(number, None)

    def listed(self) -> list[Json]:
        """Return every call of the plan with what became of it, and what it returned, cut.

        Calls that follow each other and have the same said of them are one line, with the number of
        the last as `to`.
        """
        lines: list[dict[str, Json]] = []
        for number, request in enumerate(self._kept.requests):
            step = self.steps[number] if number < len(self.steps) else None
            line: dict[str, Json] = {
                "server": request.call.server,
                "tool": request.call.tool,
                "status": "not done" if step is None else step.status,
            }
            if step is not None:
                line |= step.told
                if step.error:
                    line["error"] = step.error[:MAX_VALUE]
            same = lines and {**lines[-1], **_NO_NUMBERS} == {**line, **_NO_NUMBERS}
            if same and len(line) == _PLAIN:
                lines[-1]["to"] = request.number
            else:
                lines.append({"number": request.number, **line})
        return list(lines)


async def _hurry(shield: anyio.CancelScope, seconds: float) -> None:
    """Wait for somebody to cancel what the shield protects, and give that its last seconds."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        shield.deadline = anyio.current_time() + seconds
        raise


def _not_made(request: HeldRequest, error: BridgeError) -> Step:
    reason: Reason = "exception"
    if isinstance(error, RefusedError):
        reason = "policy"
    elif isinstance(error, UsageError):
        reason = "validation"
    told = " ".join(part for part in (error.message, error.remedy) if part)
    return Step(request=request, status="failed", error=f"It was not made. {told}", reason=reason)


def _lost(request: HeldRequest, error: BridgeError) -> Step:
    """Return the step of a call that went out and ended without an answer."""
    outcome = outcome_after(error)
    if outcome == "not-sent":
        return _not_made(request, error)
    status: StepStatus = "failed" if outcome == "refused" else "unknown"
    return Step(request=request, status=status, error=error.message)
