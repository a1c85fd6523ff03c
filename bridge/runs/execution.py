"""One run's program while it runs: what answers its calls, and the result that is built of it.

Owns which parts serve one run: its gate, its guest's requests, what collects its output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from bridge.artifacts import ArtifactStore
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.provenance import ProvenanceTracker
from bridge.gate.receipt import accounted
from bridge.guest.protocol.wire import Call
from bridge.inventory.guide import GuestGuide
from bridge.inventory.servers import Servers
from bridge.model import Json, RunResult, Tool, Usage
from bridge.offload import offload
from bridge.packages.packages import NOTHING, Packages
from bridge.plans.plan_result import planned
from bridge.plans.plan_store import Plans
from bridge.render.text import bytes_returned
from bridge.rpc.channel import Redact
from bridge.rpc.dispatcher import Answer
from bridge.runs.collect import Collector
from bridge.runs.guest_requests import GuestRequests
from bridge.runs.guest_session import GuestSession
from bridge.runs.kept_outputs import KeptOutputs
from bridge.runs.prepared_run import Place, PreparedRun, run_frame
from bridge.runs.program import Facts, Program
from bridge.runs.sandboxes import Sandboxes
from bridge.sandbox.failure import classify
from bridge.saved_functions.skills import Skills

_RETURNING = frozenset({"call_tool", "read_resource", "get_prompt", "complete", "list_offers"})
"""Methods whose answers are a server's own words, as it said them."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of an engine that serve each program."""

    servers: Servers
    guide: GuestGuide
    skills: Skills
    artifacts: ArtifactStore
    packages: Packages
    sandboxes: Sandboxes
    plans: Plans


async def execute(
    parts: Parts, run: PreparedRun, tools: Mapping[str, tuple[Tool, ...]], place: Place
) -> RunResult:
    """Start a program, serve it to its end, and return its result.

    The audit log has its beginning before anything of it runs, and its end before its result.

    Raises:
        NotStartedError: The sandbox was dead; nothing was done outside of it.
        AuditError: The beginning cannot be recorded.
    """
    guest = await place.guest()
    if run.packages is not NOTHING:
        parts.packages.check(run.packages, guest.facts)
    backend = await parts.sandboxes.backend()
    async with backend.in_use():
        execution = Execution(parts, run, tools, place, guest)
        session = {} if place.session is None else {"session": place.session.session_id}
        async with run.gate.recording(run.request, tuple(tools), session) as record:
            await execution.begin()
            result = await execution.conclude(await execution.finish())
            record(result)
    # What the program returned is written as JSON to be counted.
    count = partial(accounted, result, execution.gate, run.gate, bytes_returned)
    return await offload(result.result, count)


class Execution(Program):
    """The program of one run. Used once.

    Attributes:
        gate: What its calls pass; None until it makes one.
    """

    def __init__(
        self,
        parts: Parts,
        run: PreparedRun,
        tools: Mapping[str, tuple[Tool, ...]],
        place: Place,
        guest: GuestSession,
    ) -> None:
        self._parts = parts
        self._run = run
        self._tools = tools
        self._place = place
        self._began = time.monotonic()
        self.gate: Gate | None = None
        artifacts = parts.artifacts.of_run(
            run.request.owner, run.run_id, lambda: self._provenance.provenance()
        )
        clear = run.gate.context.marks.of("")
        super().__init__(
            guest,
            run.caller.followed(self._handle),
            run.limits,
            collector=Collector(run.limits, run=run.caller, artifacts=artifacts, clear=clear),
            waited=place.waited,
            keeps=place.session is not None,
            clock=run.caller.clock,
            clear=parts.servers.secrets.redactor,
            clear_for=self._clear_for_call,
        )

    async def begin(self) -> None:
        parts, run, session = self._parts, self._run, self._place.session
        fields = {} if session is None else session.fields
        frame = run_frame(
            run, self._tools, self._session, parts.servers.inventory, parts.guide, **fields
        )
        for directory in run.settings.offered_directories:
            await self._provenance.add_labels(f"directory '{directory.name}'", directory.labels)
        for file in run.request.files:
            await self._provenance.add(file.uri, file.provenance)
        if run.skills.review is not None:
            await parts.skills.add_provenance(run.skills, self._provenance)
        await self.start(frame)
        if session is not None:
            session.begun(self.stop)

    async def conclude(self, facts: Facts) -> RunResult:
        """Return the result: the verdict, the plan if it made one, and its session's report."""
        run, gate, left = self._run, self.gate, facts.left
        verdict = classify(facts.ending, run.limits)
        done, exited = facts.ending.done, facts.ending.exited
        counts = done is not None and not (done.assigned and (left.stdout or left.shown))
        result = RunResult(
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
            servers=tuple(self._tools),
            timeout_seconds=run.limits.timeout,
            truncated=left.dropped,
            isolation=self._session.isolation,
            usage=Usage(
                wall_ms=round((time.monotonic() - self._began) * 1000),
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
        result = await planned(result, done, run.gate, self._parts.plans)
        session = self._place.session
        return result if session is None else session.conclude(result, facts.ending)

    @cached_property
    def _provenance(self) -> ProvenanceTracker:
        return ProvenanceTracker(self._run.gate.context)

    def _clear_for_call(self, call: Call) -> Redact:
        name = call.params.get("server")
        if call.method not in _RETURNING or not isinstance(name, str):
            return self._parts.servers.secrets.redactor
        return self._run.gate.context.marks.of(self._parts.servers.resolve(name))

    async def _handle(self, method: str, params: Mapping[str, Json]) -> Json:
        return await self._requests.handle(method, params)

    @cached_property
    def _requests(self) -> GuestRequests:
        """What answers the program's requests; made for the first one."""
        parts, run = self._parts, self._run
        only_listed = run.settings.listed_servers_only
        granted = frozenset(run.servers) if only_listed else None
        self.gate = Gate(
            Grant(servers=granted, calls=run.limits.tool_calls),
            parts.servers.pool.call_tool,
            run.gate.context,
        )
        run.caller.progress.tally = self.gate.tally
        show = partial(parts.skills.show, run.request, run.caller, run.skills, self._provenance)
        return GuestRequests(
            parts.servers,
            parts.guide,
            self.gate,
            partial(self._more_answers, self.gate),
            show if parts.skills.may_list(run.request.principal) else None,
        )

    def _more_answers(self, gate: Gate) -> Mapping[str, Answer]:
        parts, run = self._parts, self._run
        outputs = KeptOutputs(parts.artifacts, run.request.owner, self._provenance)
        skills = parts.skills.answers(
            run.request,
            run.caller,
            run.skills,
            gate=gate,
            tracker=self._provenance,
            own=BridgeCalls(run.gate.context, gate),
        )
        return {"read_output": outputs.read_output, **skills}
