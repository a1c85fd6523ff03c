"""The execution of one run: the gate, the answers to its guest, and the result."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

from bridge.artifacts.store import RunArtifacts
from bridge.callers.client import MAX_WAIT_SECONDS
from bridge.catalog.entries import run_discovered
from bridge.errors import AuditError
from bridge.event_loop import offload
from bridge.gate.bridge_calls import BridgeCalls, ProvenanceTracker
from bridge.gate.held_calls import HeldCalls
from bridge.gate.pipeline import BYTES_PER_TOKEN, Gate, Grant, add_receipt
from bridge.guest.protocol.wire import Call, Done, Run
from bridge.model import Json, Plan, RunResult, SessionReport, Tool, Usage
from bridge.packages.packages import NOTHING
from bridge.render.plan import plan_summary
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES, Redact
from bridge.rpc.dispatcher import Answer
from bridge.runs.admission import PreparedRun, Services
from bridge.runs.collect.collector import Collector
from bridge.runs.guest_requests import GuestRequests, KeptOutputs
from bridge.runs.input_files import frame_files
from bridge.runs.program import Program, ProgramEnd, ReadySandbox
from bridge.sandbox.backend import DistantSandbox, guest_limits
from bridge.sandbox.failure import Verdict, classify
from bridge.sandbox.pool import Reservation
from bridge.saved_functions.requests import KeptRequests
from bridge.saved_functions.skills import Review
from bridge.sessions.turns import Turn


@dataclass(frozen=True, kw_only=True)
class RunSandbox:
    """The sandbox of a run."""

    # The reservation; its `get` returns the sandbox once its guest is ready.
    sandbox: Reservation[ReadySandbox]
    may_be_dead: bool  # Whether the sandbox may have died while it waited for this run.
    session: Turn | None = None  # The run's turn in its session; None without a session.


def run_frame(
    run: PreparedRun,
    tools: Mapping[str, tuple[Tool, ...]],
    guest: ReadySandbox,
    services: Services,
    *,
    number: int = 0,
    state: str = "",
) -> Run:
    """Return the frame that starts its program.

    Args:
        number: The run's number in its session; 0 without one.
        state: The session's saved state, as base64.
    """
    loaded, reach = tuple(tools), run.program.references.reach
    known = services.servers.inventory
    # In the order of the configuration, from which a server may have been removed meanwhile.
    stubs = [
        known.stubs(name, None if reach is None else reach.get(name, frozenset()))
        for name in known.aliases
        if name in tools
    ]
    stubs = [
        {**stub, "refused": run.refused[stub["name"]]} if stub["name"] in run.refused else stub
        for stub in stubs
    ]
    # Without a dynamic use of servers the program cannot reach the rest through `runtime`.
    distant = isinstance(guest.sandbox, DistantSandbox)
    return Run(
        code=run.request.code,
        argv=list(run.request.argv),
        servers=stubs,
        discovered=run_discovered(known.entries(loaded=loaded)) if reach is None else [],
        capabilities=services.guide.capabilities(loaded, run.limits) if reach is None else "",
        limits={
            # The host enforces the time limit, since only it knows how long questions took.
            "timeout": run.limits.longest_timeout + 2 * MAX_WAIT_SECONDS,
            "output_bytes": run.limits.output_bytes,
            # A larger value is printed instead. At a terminal it need not fit into the output.
            "result_bytes": run.limits.result_bytes
            if run.caller.is_shown
            else min(run.limits.result_bytes, run.limits.output_tokens * BYTES_PER_TOKEN),
            "shown_bytes": run.limits.shown_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
            "out_bytes": run.limits.out_bytes,
            "out_files": run.limits.out_files,
            # Seconds that the guest waits until the host has read its last frame.
            **({"answer_seconds": 20.0} if distant else {}),
            **guest_limits(guest.sandbox.isolation, run.limits),
        },
        paths=list(run.packages.paths),
        session=number,
        name=run.request.name,
        state=state,
        files=frame_files(run.request.files) if run.request.files else [],
        skills=services.skills.payload(run.skills) if run.skills else [],
        packages=run.settings.allowed_packages,
        names=dict(run.program.names),
    )


HELD_RESULT_ERROR = "HeldResultError"  # Stops a program that reads the result of a held call.

_RETURNING = frozenset({"call_tool", "read_resource", "get_prompt", "complete", "list_offers"})
"""Methods whose answers contain a server's unchanged words."""


async def execute(
    services: Services,
    run: PreparedRun,
    tools: Mapping[str, tuple[Tool, ...]],
    reserved: RunSandbox,
) -> RunResult:
    """Start a program, serve it to its end, and return its result.

    The audit log records the beginning before the program starts, and the end before the result.

    Raises:
        NotStartedError: The sandbox was dead, so the program did nothing.
        AuditError: The beginning cannot be recorded.
    """
    guest = await reserved.sandbox.get()
    if run.packages is not NOTHING:
        services.packages.check(run.packages, guest.facts)
    backend = await services.sandboxes.backend()
    async with backend.in_use():
        execution = Execution(services, run, tools, reserved, guest)
        turn = reserved.session
        session = {} if turn is None else {"session": turn.record.session_id}
        async with run.gate.recording(run.request, tuple(tools), session) as record:
            await execution.begin()
            result = await execution.conclude(await execution.finish())
            record(result)
    # Counting writes the program's value as JSON, which can be large.
    return await offload(result.result, partial(add_receipt, result, execution.gate, run.gate))


class Execution(Program):
    """A `Program` with the objects of its run. Used once. `gate` is None until the first call."""

    def __init__(
        self,
        services: Services,
        run: PreparedRun,
        tools: Mapping[str, tuple[Tool, ...]],
        reserved: RunSandbox,
        guest: ReadySandbox,
    ) -> None:
        self._services = services
        self._run = run
        self._tools = tools
        self._reserved = reserved
        self._began = time.monotonic()
        self.gate: Gate | None = None
        artifacts = RunArtifacts(
            services.artifacts, run.request.owner, run.run_id, lambda: self._provenance.provenance()
        )
        clear = run.gate.context.marks.of("")
        super().__init__(
            guest,
            run.caller.report_calls(self._handle),
            run.limits,
            collector=Collector(run.limits, caller=run.caller, artifacts=artifacts, clear=clear),
            may_be_dead=reserved.may_be_dead,
            keeps=reserved.session is not None,
            clock=run.caller.clock,
            clear=services.servers.secrets.redactor,
            clear_for=self._clear_for_call,
        )

    async def begin(self) -> None:
        services, run, session = self._services, self._run, self._reserved.session
        fields = {} if session is None else session.fields
        frame = run_frame(run, self._tools, self._guest, services, **fields)
        for directory in run.settings.offered_directories:
            await self._provenance.add_labels(f"directory '{directory.name}'", directory.labels)
        for file in run.request.files:
            await self._provenance.add(file.uri, file.provenance)
        if run.skills:
            await services.skills.add_provenance(run.skills, self._provenance)
        await self.start(frame)
        if session is not None:
            session.queued.stop = self.stop

    async def conclude(self, end: ProgramEnd) -> RunResult:
        """Return the result, with the plan and the session's report if there are any."""
        run, gate, output, session = self._run, self.gate, end.collected, self._reserved.session
        done, exited = end.ending.done, end.ending.exited
        verdict = classify(end.ending, run.limits)
        plan: Plan | None = None
        report: SessionReport | None = None
        held = run.gate.context.held_calls
        label: Callable[[Any], Any] = held.add_labels if held is not None else lambda value: value
        if held is not None:
            verdict, plan = await self._close_plan(verdict, done, held)
        if session is not None:
            verdict, report = session.conclude(verdict, end.ending)
        has_value = done is not None and not (done.assigned and (output.stdout or output.shown))
        return RunResult(
            run_id=run.run_id,
            status=verdict.status,
            summary=label(verdict.summary),
            reason=verdict.reason,
            code=verdict.code,
            exit_code=verdict.exit_code,
            stdout=label(output.stdout),
            stderr=label(output.stderr),
            has_result=has_value and done is not None and done.has_result,
            result=label(done.result) if has_value and done is not None else None,
            result_repr=label(done.result_repr) if done is not None else "",
            error=label(verdict.error),
            servers=tuple(self._tools),
            timeout_seconds=run.limits.timeout,
            truncated=output.dropped,
            isolation=self._guest.isolation,
            usage=Usage(
                wall_ms=round((time.monotonic() - self._began) * 1000),
                cpu_ms=exited.cpu_ms if exited is not None else None,
                peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
                tool_calls=0 if gate is None else gate.calls,
                tool_result_bytes=0 if gate is None else gate.result_bytes,
            ),
            shown=tuple(replace(item, text=label(item.text)) for item in output.shown),
            unsent=() if done is None else tuple(str(name)[:200] for name in done.unsent[:21]),
            artifacts=output.artifacts,
            missing=output.missing,
            plan=plan,
            session=report,
        )

    async def _close_plan(
        self, verdict: Verdict, done: Done | None, held: HeldCalls
    ) -> tuple[Verdict, Plan]:
        """Store the plan that the program made; reading the result of a held call ends a plan."""
        run, plans, stopped = self._run.gate, self._services.plans, ""
        if verdict.status == "error" and done is not None and done.error_type == HELD_RESULT_ERROR:
            verdict = replace(verdict, status="success", reason=None, exit_code=None, error="")
            stopped = done.error.rpartition(f"{HELD_RESULT_ERROR}: ")[2].strip()[:2_000]
        # A thread computes the shown calls, and `plans.keep` uses them.
        await offload([request.call.arguments for request in held.requests], held.shown)
        plan = await plans.keep(
            held,
            run.owner,
            run_id=self._run.run_id,
            stopped=held.add_labels(stopped),
            failed=verdict.status != "success",
            here=not run.context.vault.idle,
        )
        plan = replace(plan, askable=run.caller.identified)
        if plan.plan_id:
            facts = {"plan": plan.plan_id, "owner": run.owner, "calls": len(plan.calls)}
            try:
                await run.context.audit.record_event("plan", {**facts, "seconds": plan.seconds})
            except AuditError as error:
                plan = await plans.withdraw(plan, run.owner, error.message)
        if verdict.status == "success":
            verdict = replace(verdict, summary=plan_summary(plan))
        return verdict, plan

    @cached_property
    def _provenance(self) -> ProvenanceTracker:
        return ProvenanceTracker(self._run.gate.context)

    def _clear_for_call(self, call: Call) -> Redact:
        name = call.params.get("server")
        if call.method not in _RETURNING or not isinstance(name, str):
            return self._services.servers.secrets.redactor
        return self._run.gate.context.marks.of(self._services.servers.resolve(name))

    def _handle(self, method: str, params: Mapping[str, Json]) -> Awaitable[Json]:
        return self._requests.handle(method, params)

    @cached_property
    def _requests(self) -> GuestRequests:
        """The answers to the program's requests; made for the first request."""
        services, run = self._services, self._run
        only_listed = run.settings.listed_servers_only
        granted = frozenset(run.servers) if only_listed else None
        self.gate = Gate(
            Grant(servers=granted, calls=run.limits.tool_calls),
            services.servers.pool.call_tool,
            run.gate.context,
        )
        run.caller.progress.tally = self.gate.tally
        show = partial(services.skills.show, self._review, self._provenance)
        return GuestRequests(
            services.servers,
            services.guide,
            self.gate,
            cache(partial(self._more_answers, self.gate)),
            show if services.skills.may_list(run.request.principal) else None,
        )

    @cached_property
    def _review(self) -> Review:
        run = self._run
        return (
            run.skills.review
            if run.skills
            else self._services.skills.review(run.request, run.caller)
        )

    def _more_answers(self, gate: Gate) -> Mapping[str, Answer]:
        services, run = self._services, self._run
        outputs = KeptOutputs(services.artifacts, run.request.owner, self._provenance)
        own = BridgeCalls(run.gate.context, gate)
        kept = KeptRequests(services.skills, gate, self._provenance, own, self._review, run.request)
        return {"read_output": outputs.read_output, **kept.methods}
