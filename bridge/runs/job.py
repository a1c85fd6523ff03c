"""A request that can be carried out, the frame that its program begins with, and its result.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.callers.client import RunCaller
from bridge.catalog.program.parsing import Unread
from bridge.catalog.program.servers import Reach
from bridge.catalog.program.survey import Survey
from bridge.clock import Clock
from bridge.gate.pipeline import Gate
from bridge.guest.wire import Run
from bridge.model import Limits, RunRequest, RunResult, Tool, Usage
from bridge.packages.packages import NOTHING, PackageSet
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES
from bridge.runs.guest_session import GuestSession
from bridge.runs.input_files import frame_files
from bridge.runs.program import Facts
from bridge.sandbox.failure import classify
from bridge.sandbox.layers import guest_limits, verified
from bridge.servers.gatekeeping import BYTES_PER_TOKEN, Watch
from bridge.servers.guide import GuestGuide
from bridge.servers.inventory import ToolInventory
from bridge.skills.skills import SkillUse


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request that can be carried out."""

    run_id: str
    request: RunRequest
    limits: Limits
    servers: tuple[str, ...]
    tolerant: bool
    reach: Reach | None
    program: Survey | Unread
    skills: SkillUse
    run: RunCaller
    watch: Watch
    outfit: PackageSet = NOTHING

    @property
    def clock(self) -> Clock:
        """Its time."""
        return self.run.clock


def run_frame(
    job: Job,
    tools: Mapping[str, tuple[Tool, ...]],
    session: GuestSession,
    known: ToolInventory,
    guide: GuestGuide,
    *,
    number: int = 0,
    state: str = "",
) -> Run:
    """Return what its program begins with.

    Args:
        tools: Of the servers that are loaded.
        number: Of the run in its session, if it is in one.
        state: What that begins with, as base64.
    """
    loaded, reach = tuple(tools), job.reach
    # In the configuration's order, whatever order the servers answered in. One may have been
    # taken out of the configuration while it was asked.
    stubs = [
        known.stubs(name, None if reach is None else reach.get(name, frozenset()))
        for name in sorted(filter(known.aliases.__contains__, loaded), key=known.place)
    ]
    # What only `runtime` knows is no use to a program that cannot ask it.
    return Run(
        code=job.request.code,
        argv=list(job.request.argv),
        servers=stubs,
        discovered=known.discovered(loaded) if reach is None else [],
        capabilities=guide.capabilities(loaded, job.limits) if reach is None else "",
        limits={
            "timeout": job.limits.timeout,
            "output_bytes": job.limits.output_bytes,
            # What is larger is printed. At a terminal a value is no output, as long as it fits.
            "result_bytes": job.limits.result_bytes
            if job.run.is_shown
            else min(job.limits.result_bytes, job.limits.output_tokens * BYTES_PER_TOKEN),
            "shown_bytes": job.limits.shown_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
            "out_bytes": job.limits.out_bytes,
            "out_files": job.limits.out_files,
            **guest_limits(session.sandbox.isolation, job.limits),
        },
        paths=list(job.outfit.paths),
        session=number,
        name=job.request.name,
        state=state,
        files=frame_files(job.request.files),
        skills=job.skills.sent(),
        packages=guide.offers_packages,
    )


def run_result(
    job: Job,
    loaded: tuple[str, ...],
    session: GuestSession,
    facts: Facts,
    gate: Gate,
    wall: float,
) -> RunResult:
    """Return the result of a program that has ended."""
    verdict = classify(facts.ending, job.limits)
    done, exited = facts.ending.done, facts.ending.exited
    left = facts.left
    return RunResult(
        run_id=job.run_id,
        status=verdict.status,
        summary=verdict.summary,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        stdout=left.stdout,
        stderr=left.stderr,
        has_result=done is not None and done.has_result,
        result=done.result if done is not None else None,
        result_repr=done.result_repr if done is not None else "",
        error=verdict.error,
        servers=loaded,
        timeout_seconds=job.limits.timeout,
        truncated=left.dropped,
        isolation=verified(session.sandbox.isolation, session.facts),
        usage=Usage(
            wall_ms=round(wall * 1000),
            cpu_ms=exited.cpu_ms if exited is not None else None,
            peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
            tool_calls=gate.calls,
            tool_result_bytes=gate.result_bytes,
        ),
        shown=left.shown,
        artifacts=left.artifacts,
        missing=left.missing,
    )
