"""The result of a run, built once, when its program has ended. Pure."""

from __future__ import annotations

from bridge.gate.pipeline import Gate
from bridge.model import RunResult, Usage
from bridge.runs.guest_session import GuestSession
from bridge.runs.prepared_run import PreparedRun
from bridge.runs.program import Facts
from bridge.sandbox.failure import classify


def run_result(
    run: PreparedRun,
    loaded: tuple[str, ...],
    session: GuestSession,
    facts: Facts,
    gate: Gate | None,
    wall: float,
) -> RunResult:
    verdict = classify(facts.ending, run.limits)
    done, exited = facts.ending.done, facts.ending.exited
    left = facts.left
    counts = done is not None and not (done.assigned and (left.stdout or left.shown))
    return RunResult(
        run_id=run.run_id,
        status=verdict.status,
        summary=verdict.summary,
        reason=verdict.reason,
        code=verdict.code,
        exit_code=verdict.exit_code,
        stdout=left.stdout,
        stderr=left.stderr,
        has_result=counts and done is not None and done.has_result,
        result=done.result if counts and done is not None else None,
        result_repr=done.result_repr if done is not None else "",
        error=verdict.error,
        servers=loaded,
        timeout_seconds=run.limits.timeout,
        truncated=left.dropped,
        isolation=session.isolation,
        usage=Usage(
            wall_ms=round(wall * 1000),
            cpu_ms=exited.cpu_ms if exited is not None else None,
            peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
            tool_calls=0 if gate is None else gate.calls,
            tool_result_bytes=0 if gate is None else gate.result_bytes,
        ),
        shown=left.shown,
        unsent=() if done is None else tuple(str(name)[:200] for name in done.unsent[:21]),
        artifacts=left.artifacts,
        missing=left.missing,
    )
