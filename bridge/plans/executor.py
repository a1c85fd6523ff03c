"""Applies a plan: takes it once, asks once, and makes its calls until one fails."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio.lowlevel

from bridge.callers.client import RunCaller
from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    BridgeError,
    InvalidRequestError,
    RefusedError,
    UnknownError,
    UsageError,
)
from bridge.event_loop import with_plain_text
from bridge.gate.approval import Approval, Approver
from bridge.gate.held_calls import CallResult, HeldRequest, resolve
from bridge.gate.journal import outcome_after
from bridge.gate.pins import tool_digests
from bridge.gate.pipeline import Gate, Grant, add_receipt
from bridge.gate.policy import CallFacts, Decision
from bridge.gate.services import GateServices, RunContext
from bridge.guest.schema.validation import problem
from bridge.inventory.servers import Servers
from bridge.model import ApplyRequest, Json, Reason, RunResult, Status, Usage
from bridge.plans.plan_store import Plans, StoredPlan, now_text
from bridge.render.plan import plan_question
from bridge.rpc.values import shape_value, tool_error

_TAKEN = re.compile("the run ([0-9a-f]{32}) took it")

MAX_QUESTION = 5_500
"""Characters of the list of calls in a question. The list fits, so that its own note of cuts stays.
"""


StepStatus = Literal["done", "failed", "unknown", "not done"]


@dataclass(kw_only=True)
class PlanStep:
    """A call of a plan and its outcome. `shown` has the result or its length."""

    request: HeldRequest
    status: StepStatus = "not done"
    shown: Mapping[str, Json] = field(default_factory=dict)
    error: str = ""
    reason: Reason = "exception"
    sent: bool = True  # Whether the server may have received it.

    def fail(self, error: str, reason: Reason = "exception", status: StepStatus = "failed") -> None:
        self.status, self.error, self.reason = status, error, reason

    def stop(self, error: BridgeError, *, sent: bool = False) -> None:
        outcome = outcome_after(error) if sent else "not-sent"
        self.sent = outcome != "not-sent"
        if self.sent:
            self.fail(error.message, status="failed" if outcome == "refused" else "unknown")
            return
        reason: Reason = "validation" if isinstance(error, UsageError) else "exception"
        if isinstance(error, RefusedError):
            reason = "policy"
        self.fail(f"It was not made. {error.message} {error.remedy}".rstrip(), reason)


class PlanApprover(Approver):
    """Approves one held call for the reasons that the plan's approval covers. Asks no person."""

    def __init__(self, approval: Approval, request: HeldRequest) -> None:
        super().__init__()
        self._approval = approval
        self._request = request

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        news = [ask for ask in asks if ask.rule not in self._request.asked]
        if not news:
            return self._approval
        reasons = "; ".join(f"{ask.rule}: {ask.reason}" if ask.reason else ask.rule for ask in news)
        message = f"{call} needs a person's approval for a reason that the plan did not show"
        remedy = "Make this call, and what follows, in a run of its own, which asks; or plan again."
        raise ApprovalNeededError(f"{message} ({reasons}).", remedy=remedy)


@dataclass(eq=False)
class PlanExecutor:
    servers: Servers
    services: GateServices
    plans: Plans
    seconds: float = 30 * 60.0  # For a plan: the user approved all calls.
    finish_seconds: float = 5.0  # For the running call, if the plan is cancelled.

    async def apply(self, request: ApplyRequest, caller: RunCaller) -> RunResult:
        """Make a plan's calls, after a person has approved exactly those."""
        run_id, kept = request.run_id, await self._take(request)
        begun = False
        try:
            run = await self.services.begin(run_id, request, caller, planned_by=kept.run_id)
            approval = await self._get_approval(kept, request, run)
            facts = {**_facts(kept), "approval": approval.fields}
            async with run.recording(request, kept.servers, facts) as record:
                begun = True
                gate = Gate(
                    Grant(servers=frozenset(kept.servers), calls=len(kept.requests)),
                    self.servers.pool.call_tool,
                    run.context,
                )
                execution = _Execution(kept, gate, run, approval, self.servers)
                result = await self._perform(execution, run_id, record)
            return add_receipt(result, gate, run)
        except ApprovalRefusedError:
            begun = True
            why = f"the client was asked at {now_text()}, and did not approve of it"
            await self.plans.close(kept.plan_id, kept.owner, why)
            raise
        finally:
            if not begun:
                # The question failed or was cancelled, before any call.
                await self.plans.give_back(kept)

    async def _take(self, request: ApplyRequest) -> StoredPlan:
        try:
            return await self.plans.take(request.plan_id, request.owner, run_id=request.run_id)
        except UnknownError as error:
            if taken := _TAKEN.search(error.message):
                await self.services.fates.explain(error, taken[1], request.owner)
            if not self.services.journals.knows(request.plan_id, request.owner):
                raise
            message = f"{request.plan_id} is a run's id, and `apply` takes a plan's."
            remedy = 'A run with mode="plan" that held a call has one: its text ends with it.'
            raise UnknownError(message, remedy=remedy, code="unknown_plan") from None

    async def _get_approval(
        self, kept: StoredPlan, request: ApplyRequest, run: RunContext
    ) -> Approval:
        plan = kept.plan
        if plan.stopped:
            # The program's words could look like the bridge's.
            plan = replace(plan, stopped="it looked at the result of a held call")
        shown, whole = plan_question(plan, MAX_QUESTION)
        try:
            return await run.context.approver.approve_plan(kept.plan, shown, whole)
        except (ApprovalNeededError, ApprovalRefusedError) as error:
            facts: dict[str, Json] = {**_facts(kept), "approval": {"refused": error.code}}
            async with run.recording(request, kept.servers, facts) as record:
                run_id = request.run_id
                record(RunResult(run_id=run_id, status="error", reason="policy", summary=""))
            raise

    async def _perform(
        self, execution: _Execution, run_id: str, record: Callable[[RunResult], None]
    ) -> RunResult:
        kept, gate = execution.kept, execution.gate
        started = time.monotonic()
        try:
            await execution.perform(self.seconds, self.finish_seconds)
        finally:
            # A cancelled client gets no result, but the audit log does.
            result = _result(execution, run_id)
            usage = Usage(
                wall_ms=round((time.monotonic() - started) * 1000),
                tool_calls=gate.calls,
                tool_result_bytes=gate.result_bytes,
            )
            result = replace(result, usage=usage, timeout_seconds=self.seconds)
            record(result)
            if execution.is_untouched:
                # Another bridge may have the policy or the server to apply it.
                await self.plans.give_back(kept)
            else:
                why = f"it was applied by the run {run_id}, which ended at {now_text()}"
                why = f"{why}: {result.summary.rstrip('.')}"
                await self.plans.close(kept.plan_id, kept.owner, why)
        return result


class _Execution:
    """Makes the calls of one plan, once. `late` means that the time limit ended it."""

    def __init__(
        self, kept: StoredPlan, gate: Gate, run: RunContext, approval: Approval, servers: Servers
    ) -> None:
        self.kept = kept
        self.gate = gate
        self._run = run
        self._approval = approval
        self._servers = servers
        # Results that later calls need.
        self._known: dict[int, CallResult] = {}
        self._awaited = Counter(number for request in kept.requests for number in request.uses)
        # Characters of JSON left for results in the answer.
        self._room = 16 * 1024
        self.steps = [PlanStep(request=request) for request in kept.requests]
        self.late = False

    @property
    def is_untouched(self) -> bool:
        """Whether the first call was refused before its server received it."""
        return bool(self.steps[0].error) and not self.steps[0].sent

    async def perform(self, seconds: float, finish_seconds: float) -> None:
        """Make the calls in order until one fails. A cancellation ends it between two calls."""
        clock = self._run.caller.clock
        until = clock.now() + seconds
        for step in self.steps:
            await anyio.lowlevel.checkpoint()
            if clock.now() >= until:
                self.late = True
                return
            try:
                arguments = resolve(step.request.call.arguments, self._known)
                for number in step.request.uses:
                    self._awaited[number] -= 1
                    if not self._awaited[number]:
                        del self._known[number]
                await self._check(step.request, arguments)
            except BridgeError as error:
                step.stop(error)
                return
            await self._make(step, arguments, finish_seconds)
            if step.status != "done":
                return

    async def _check(self, request: HeldRequest, arguments: Mapping[str, Json]) -> None:
        call = request.call
        if self._servers.definition(call.server) != call.server_definition:
            message = f"{call.server} has another definition now than when the plan was made."
            raise InvalidRequestError(message, remedy="Look at its tools, and plan again.")
        # Lists the tools again, unless the server notifies of changes.
        await self._servers.load([call.server])
        tool = self._servers.inventory.tool(call.server, call.tool)
        if (tool_digests(tool).whole if tool is not None else "") != request.digest:
            message = f"{call} has changed since the plan was made."
            raise InvalidRequestError(message, remedy="Look at it, and plan again.")
        if tool is None:
            return
        real = self._run.context.vault.reveal(call.server, dict(arguments))
        wrong = problem(real, tool.input_schema, tool.input_schema, "arguments")
        if wrong is not None:
            # The message may have personal data.
            wrong = self._run.context.vault.conceal(wrong)
            message = f"{call} does not accept its arguments now: {wrong}."
            raise InvalidRequestError(message)

    async def _make(self, step: PlanStep, arguments: Mapping[str, Json], finish: float) -> None:
        """Make a call, and set its outcome even if the task is cancelled."""
        request, gate = step.request, self.gate
        covered = PlanApprover(self._approval, request)
        gate.context = replace(self._run.context, flow_state=request.flow, approver=covered)
        before = gate.calls
        step.fail("It was cancelled before its answer arrived.", "cancelled", "unknown")
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope(shield=True) as shield:
                tasks.start_soon(_limit_when_cancelled, shield, finish)
                try:
                    result = await gate.call(request.call.server, request.call.tool, arguments)
                except BridgeError as error:
                    step.stop(error, sent=gate.calls > before)
                else:
                    self._take(step, with_plain_text(result), learns=not gate.is_watched)
            tasks.cancel_scope.cancel()

    def _take(self, step: PlanStep, result: Mapping[str, Json], *, learns: bool) -> None:
        error = tool_error(result)
        if error is not None:
            step.fail(error)
            return
        request = step.request
        server, tool = request.call.server, request.call.tool
        inventory = self._servers.inventory
        parts = inventory.reader(server, tool)(result)
        if learns:
            inventory.learn_result(server, tool, parts)
        shape = shape_value(parts)
        if self._awaited[request.number]:
            self._known[request.number] = CallResult(call=str(request), shape=shape)
        size = len(json.dumps(shape, ensure_ascii=False))
        if size > 2_000:
            step.shown = {"valueCharacters": size}
        elif size <= self._room:
            step.shown = {"value": shape["json"] if "json" in shape else dict(shape)}
            self._room -= size
        step.status, step.error = "done", ""

    def list_steps(self) -> list[Json]:
        """Return all calls with outcome and cut result.

        A row of equal calls without results is one line, which has the last call's number as `to`.
        """
        lines: list[Json] = []
        line: dict[str, Json] = {}
        for step in self.steps:
            call, before = step.request.call, line
            line = {"server": call.server, "tool": call.tool, "status": step.status, **step.shown}
            line |= {"error": step.error[:2_000]} if step.error else {}
            if line == before and not (step.shown or step.error):
                lines[-1]["to"] = step.request.number
            else:
                lines.append({"number": step.request.number, **line})
        return lines


def _result(execution: _Execution, run_id: str) -> RunResult:
    total = len(execution.steps)
    done = sum(step.status == "done" for step in execution.steps)
    stopped = next((step for step in execution.steps if step.error), None)
    status: Status = "success"
    reason: Reason | None = None
    why = became = ""
    if stopped is not None:
        failed = "failed" if stopped.status == "failed" else "may have happened or not"
        became = f"; {stopped.request} {failed}"
        status, reason, why = "error", stopped.reason, stopped.error
    elif done < total and execution.late:
        became = "; the time limit was reached"
        status, reason = "timeout", "timeout"
        why = "The other calls were not made: the time limit was reached."
    elif done < total:
        became = "; it was cancelled"
        status, reason, why = "error", "cancelled", "The other calls were not made."
    return RunResult(
        run_id=run_id,
        status=status,
        reason=reason,
        summary=f"{done:,} of {total:,} calls done{became}.",
        has_result=True,
        result=execution.list_steps(),
        error="" if status == "success" else _error(execution, stopped, why, run_id),
        servers=execution.kept.servers,
    )


def _error(execution: _Execution, stopped: PlanStep | None, why: str, run_id: str) -> str:
    lines = [f"{stopped.request}: {why[:1_000]}" if stopped is not None else why]
    words = {
        "done": "Done",
        "failed": "Failed",
        "unknown": "Without an answer, so check before you repeat it",
        "not done": "Not done",
    }
    for status, word in words.items():
        numbers = [step.request.number for step in execution.steps if step.status == status]
        lines += [f"{word}: {ranges(numbers)}."] if numbers else []
    end = "The plan is not used up."
    if not execution.is_untouched:
        end = (
            "The plan is used up. For the other calls, run the program again with "
            f'retry_of="{run_id}", which repeats no call that was made here; or plan again.'
        )
    return "\n".join([*lines, end])


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges: "#1 to #3, #5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    shown = [" to ".join(f"#{end}" for end in ends) for ends in found[:20]]
    return ", ".join(shown) + (" and others" if len(found) > 20 else "")


def _facts(kept: StoredPlan) -> dict[str, Json]:
    return {"calls": len(kept.requests), "plannedBy": kept.run_id}


async def _limit_when_cancelled(shield: anyio.CancelScope, seconds: float) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        shield.deadline = anyio.current_time() + seconds
