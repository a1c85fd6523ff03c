"""A plan applied: taken once, approved of once, made call by call, and told.

Owns the order of these, and the wording of the result. What a plan is, is `bridge.gate.plans`'; how
its calls are made, `bridge.engine.performing`'s. No sandbox takes part in it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from bridge.engine.client import OneRun
from bridge.engine.gatekeeping import Gatekeeping, Watch, accounted
from bridge.engine.performing import Performance, StepStatus, Times
from bridge.engine.servers import Servers
from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    UnknownPlanError,
)
from bridge.gate.approval import Approval
from bridge.gate.audit.reading import PlanTrace, find_plan
from bridge.gate.audit.records import approval_fields
from bridge.gate.calls import Gate, Grant
from bridge.gate.plans import KeptPlan
from bridge.model import ApplyRequest, Json, Reason, RunResult, Status, Usage
from bridge.render.plan import plan_asked

logger = logging.getLogger(__name__)

MAX_QUESTION = 5_500
"""Characters of the list in a question: clients show little, and what is cut from it there says
less of what is left out than what was never in it."""

MAX_RANGES = 20
"""Of numbers in a sentence."""

MAX_ERROR = 1_000
"""Characters of a call's error in the result's."""

Recorder = Callable[[RunResult], None]


class Applying:
    """Applies plans."""

    def __init__(
        self, servers: Servers, gatekeeping: Gatekeeping, times: Times | None = None
    ) -> None:
        self._servers = servers
        self._gatekeeping = gatekeeping
        self._times = times or Times()

    async def apply(self, request: ApplyRequest, run: OneRun) -> RunResult:
        """Make a plan's calls, after a person has approved of exactly those.

        Raises:
            UnknownPlanError: There is no such plan for this caller; says what became of it.
            RefusedError: Nobody approved of it, or it cannot be recorded.
            SettingsError: The policy does not parse.
        """
        run_id = uuid.uuid4().hex
        kept = await self._take(request, run_id)
        begun = False
        try:
            watch = self._gatekeeping.watch(run_id, request, run, planned_by=kept.run_id)
            approval = await self._approved(kept, request, watch, run_id)
            facts = {**_facts(kept), "approval": approval_fields(approval)}
            async with watch.recording(request, _servers(kept), facts) as record:
                begun = True
                gate = Gate(
                    Grant(servers=frozenset(_servers(kept)), calls=len(kept.requests)),
                    self._servers.pool.call_tool,
                    watch.oversight,
                )
                result = await self._perform(kept, run_id, gate, watch, approval, record)
            return accounted(result, gate, watch)
        except ApprovalRefusedError:
            begun = True
            why = f"the client was asked at {_moment()}, and did not approve of it"
            self._gatekeeping.plans.close(kept, why)
            raise
        finally:
            if not begun:
                # Nobody could be asked, or the question was cut off: nothing was done with it.
                self._gatekeeping.plans.give_back(kept)

    async def _take(self, request: ApplyRequest, run_id: str) -> KeptPlan:
        """Take the plan.

        Raises:
            UnknownPlanError: It is not there; with what the audit log knows of it.
        """
        plans = self._gatekeeping.plans
        try:
            return plans.take(request.plan_id, request.owner, run_id=run_id)
        except UnknownPlanError:
            if plans.remembers(request.plan_id, request.owner):
                raise
            try:
                log = self._gatekeeping.audit
                trace = await find_plan(log, request.plan_id, request.owner)
            except AuditError as error:
                logger.debug("what became of a plan is not known: %s", error)
                raise
            if trace is None and self._gatekeeping.journals.knows(request.plan_id, request.owner):
                message = f"{request.plan_id} is a run's id, and `apply` takes a plan's."
                remedy = 'A run with mode="plan" that held a call has one: its text ends with it.'
                raise UnknownPlanError(message, remedy=remedy) from None
            if trace is None:
                raise
            message, remedy = _known_of(request.plan_id, trace)
            raise UnknownPlanError(message, remedy=remedy) from None

    async def _approved(
        self, kept: KeptPlan, request: ApplyRequest, watch: Watch, run_id: str
    ) -> Approval:
        """Ask for approval of the plan; that there was none is recorded."""
        plan = kept.plan
        if plan.stopped:
            # In its own words nobody could tell it from what the bridge says.
            plan = replace(plan, stopped="it looked at the result of a held call")
        shown, whole = plan_asked(plan, MAX_QUESTION)
        try:
            return await watch.oversight.approver.approve_plan(kept.plan, shown, whole)
        except (ApprovalNeededError, ApprovalRefusedError) as error:
            facts: dict[str, Json] = {**_facts(kept), "approval": {"refused": error.code}}
            async with watch.recording(request, _servers(kept), facts) as record:
                record(RunResult(run_id=run_id, status="error", reason="policy", summary=""))
            raise

    async def _perform(
        self,
        kept: KeptPlan,
        run_id: str,
        gate: Gate,
        watch: Watch,
        approval: Approval,
        record: Recorder,
    ) -> RunResult:
        performance = Performance(
            kept,
            gate=gate,
            oversight=watch.oversight,
            servers=self._servers,
            approval=approval,
            clock=watch.run.clock,
            times=self._times,
        )
        started = time.monotonic()
        cancelled = True
        try:
            await performance.perform()
            cancelled = False
        finally:
            # Also of one that was cancelled: nobody gets the result then, but the audit has it.
            result = _result(kept, run_id, performance, cancelled=cancelled)
            usage = Usage(
                wall_ms=round((time.monotonic() - started) * 1000),
                tool_calls=gate.calls,
                tool_result_bytes=gate.result_bytes,
            )
            result = replace(result, usage=usage, timeout_seconds=self._times.apply)
            record(result)
            self._gatekeeping.plans.close(
                kept,
                f"it was applied by the run {run_id}, which ended at {_moment()}: "
                f"{result.summary.rstrip('.')}",
            )
        return result


def _result(kept: KeptPlan, run_id: str, performance: Performance, *, cancelled: bool) -> RunResult:
    """Return what became of a plan, without what it took."""
    steps, total = performance.steps, len(kept.requests)
    done = sum(step.status == "done" for step in steps)
    stopped = next((step for step in steps if step.status != "done"), None)
    summary = f"{done:,} of {total:,} calls done"
    status: Status = "success"
    reason: Reason | None = None
    why = ""
    if stopped is not None:
        became = "failed" if stopped.status == "failed" else "may have happened or not"
        summary = f"{summary}; {stopped.request} {became}"
        status, reason, why = "error", stopped.reason, stopped.error
    elif done < total and performance.late:
        summary = f"{summary}; there was no time for more"
        status, reason = "timeout", "timeout"
        why = "The rest was not begun: too much time had passed."
    elif done < total:
        summary = f"{summary}; it was cancelled" if cancelled else summary
        status, reason = "error", "cancelled"
        why = "The rest was not begun."
    return RunResult(
        run_id=run_id,
        status=status,
        reason=reason,
        summary=f"{summary}.",
        has_result=True,
        result=performance.listed(),
        error="" if status == "success" else _error(performance, kept, why, run_id),
        servers=_servers(kept),
    )


def _error(performance: Performance, kept: KeptPlan, why: str, run_id: str) -> str:
    """Return why a plan was stopped, what was done of it, and what to do about the rest."""
    by_status: dict[StepStatus, list[int]] = {}
    for step in performance.steps:
        by_status.setdefault(step.status, []).append(step.request.number)
    left = [request.number for request in kept.requests[len(performance.steps) :]]
    if left:
        by_status["not done"] = left
    stopped = performance.steps[-1] if performance.steps else None
    named = stopped is not None and stopped.status != "done"
    lines = [f"{stopped.request}: {why[:MAX_ERROR]}" if named and stopped is not None else why]
    words = {
        "done": "Done",
        "failed": "Failed",
        "unknown": "Unknown, since no answer came: look before anything is repeated",
        "not done": "Not done",
    }
    lines += [
        f"{words[status]}: {ranges(by_status[status])}." for status in words if status in by_status
    ]
    lines.append(
        "The plan is used up. To do the rest, run the program again with "
        f'retry_of="{run_id}", which makes no call again that was made here; or plan again.'
    )
    return "\n".join(lines)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers that ascend as ranges: "#1 to #3, #5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    shown = [" to ".join(f"#{end}" for end in ends) for ends in found[:MAX_RANGES]]
    return ", ".join(shown) + (" and others" if len(found) > MAX_RANGES else "")


def _known_of(plan_id: str, trace: PlanTrace) -> tuple[str, str]:
    """Return what the audit log knows of a plan that no bridge has any more, and where to look."""
    if not trace.applied:
        message = (
            f"The plan {plan_id} is gone: the bridge that held it has ended, or took it out "
            "of its memory. None of its calls was made."
        )
        return message, "Run the program in plan mode again."
    by_outcome: dict[str, list[int]] = {}
    for number, outcome in trace.outcomes.items():
        by_outcome.setdefault(_OUTCOMES.get(outcome, "unknown"), []).append(number)
    planned = trace.applied.get("calls") or trace.made.get("calls")
    if isinstance(planned, int):
        by_outcome.setdefault("not done", []).extend(range(len(trace.outcomes) + 1, planned + 1))
    told = "; ".join(
        f"{word}: {ranges(sorted(numbers))}" for word, numbers in by_outcome.items() if numbers
    )
    ended = "" if trace.ended else ", and was cut off"
    run_id = trace.applied.get("run")
    message = (
        f"The plan {plan_id} was used: the run {run_id} applied it{ended}. By the "
        f"audit log, {told or 'none of its calls was made'}."
    )
    return message, f"`mcp-code-bridge audit show {run_id}` has each call."


_OUTCOMES = {"ok": "done", "tool-error": "failed", "refused": "failed", "not-sent": "not done"}


def _servers(kept: KeptPlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(request.call.server for request in kept.requests))


def _facts(kept: KeptPlan) -> dict[str, Json]:
    return {"calls": len(kept.requests), "plannedBy": kept.run_id}


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
