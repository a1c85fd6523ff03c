"""The result of a run in plan mode: the plan that it made, and why it stopped."""

from __future__ import annotations

from dataclasses import replace

from bridge.errors import AuditError
from bridge.gate.held_calls import HeldCalls
from bridge.gate.services import RunContext
from bridge.guest.protocol.wire import Done
from bridge.model import RunResult
from bridge.offload import offload
from bridge.plans.plan_store import Plans
from bridge.render.plan import plan_summary

HELD_RESULT_ERROR = "HeldResultError"
"""The error that stops a program which reads the result of a held call."""


async def planned(result: RunResult, done: Done | None, run: RunContext, plans: Plans) -> RunResult:
    """Return a program's result with the plan that it made, if it ran in plan mode."""
    held_calls = run.context.held_calls
    if held_calls is None:
        return result
    if result.status == "error" and done is not None and done.error_type == HELD_RESULT_ERROR:
        # The plan ends here: what the program would do next depends on the results.
        result = replace(result, status="success", reason=None, exit_code=None, error="")
        stopped = done.error.rpartition(f"{HELD_RESULT_ERROR}: ")[2].strip()[:2_000]
    else:
        stopped = ""
    result, stopped = _readable(result, stopped, held_calls)
    # Computed in a thread; `plans.keep` then has it.
    await offload([request.call.arguments for request in held_calls.requests], held_calls.shown)
    failed = result.status != "success"
    plan = await plans.keep(
        held_calls,
        run.owner,
        run_id=result.run_id,
        stopped=stopped,
        failed=failed,
        here=not run.context.vault.idle,
    )
    plan = replace(plan, askable=run.caller.identified)
    if plan.plan_id:
        known = {
            "plan": plan.plan_id,
            "owner": run.owner,
            "calls": len(plan.calls),
            "seconds": plan.seconds,
        }
        try:
            await run.context.audit.event("plan", known)
        except AuditError as error:
            plan = await plans.withdraw(plan, run.owner, error.message)
    if not failed:
        result = replace(result, summary=plan_summary(plan))
    return replace(result, plan=plan)


def _readable(result: RunResult, stopped: str, held_calls: HeldCalls) -> tuple[RunResult, str]:
    """Return a result, and why it stopped, with labels in place of placeholders."""
    shown = held_calls.labelled
    result = replace(
        result,
        summary=shown(result.summary),
        stdout=shown(result.stdout),
        stderr=shown(result.stderr),
        result=shown(result.result),
        result_repr=shown(result.result_repr),
        error=shown(result.error),
        shown=tuple(replace(item, text=shown(item.text)) for item in result.shown),
    )
    return result, shown(stopped)
