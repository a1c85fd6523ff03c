"""A program in its sandbox: what answers its calls, and its result.

Owns which parts serve one run: its gate, its guest's requests, what collects its output.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property, partial

from bridge.artifacts import ArtifactStore
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.provenance import ProvenanceTracker
from bridge.gate.receipt import accounted
from bridge.guest.protocol.wire import Call
from bridge.model import Json, Provenance, RunResult, Tool
from bridge.offload import offload
from bridge.packages.packages import NOTHING, Packages
from bridge.plans.plan_result import planned
from bridge.plans.plan_store import Plans
from bridge.render.receipt import bytes_returned
from bridge.rpc.channel import Redact
from bridge.rpc.dispatcher import Answer
from bridge.runs.collect import Collector
from bridge.runs.guest_requests import GuestRequests
from bridge.runs.guest_session import GuestSession
from bridge.runs.kept_outputs import KeptOutputs
from bridge.runs.places import Place
from bridge.runs.prepared_run import PreparedRun, run_frame
from bridge.runs.program import Facts, Program
from bridge.runs.result import run_result
from bridge.runs.sandboxes import Sandboxes
from bridge.servers.guide import GuestGuide
from bridge.servers.servers import Servers
from bridge.settings import Settings
from bridge.skills.skills import Skills

_RETURNING = frozenset({"call_tool", "read_resource", "get_prompt", "complete", "list_offers"})
"""Methods whose answers are a server's own words, as it said them."""


class Executions:
    """Starts programs in their sandboxes."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        *,
        guide: GuestGuide,
        skills: Skills,
        artifacts: ArtifactStore,
        packages: Packages,
        sandboxes: Sandboxes,
        plans: Plans,
    ) -> None:
        self.settings = settings
        self.servers = servers
        self.guide = guide
        self.skills = skills
        self.artifacts = artifacts
        self.plans = plans
        self._packages = packages
        self._sandboxes = sandboxes

    @asynccontextmanager
    async def start(
        self, run: PreparedRun, tools: Mapping[str, tuple[Tool, ...]], place: Place
    ) -> AsyncIterator[Execution]:
        """Start a program, and record its beginning and its end.

        Raises:
            NotStartedError: The sandbox was dead; nothing was done outside of it.
            AuditError: The beginning cannot be recorded.
        """
        guest = await place.guest()
        if run.packages is not NOTHING:
            self._packages.check(run.packages, guest.facts)
        backend = await self._sandboxes.backend()
        async with backend.in_use():
            execution = Execution(self, run, tools, place, guest)
            session = {} if place.session is None else {"session": place.session.session_id}
            async with run.gate.recording(run.request, tuple(tools), session) as record:
                await execution.start()
                yield execution
                record(execution.concluded)


class Execution:
    """One program at work. Used once.

    Attributes:
        concluded: Its result, once it has ended.
    """

    concluded: RunResult

    def __init__(
        self,
        parts: Executions,
        run: PreparedRun,
        tools: Mapping[str, tuple[Tool, ...]],
        place: Place,
        guest: GuestSession,
    ) -> None:
        self._parts = parts
        self._run = run
        self._tools = tools
        self._session = place.session
        self._guest = guest
        self._started = time.monotonic()
        self._gate: Gate | None = None
        self._requests: GuestRequests | None = None
        self._program = Program(
            guest,
            run.caller.followed(self._answer),
            run.limits,
            collector=Collector(
                run.limits,
                run=run.caller,
                artifacts=parts.artifacts.of_run(run.request.owner, run.run_id, self._has_read),
                clear=run.gate.context.marks.of(""),
            ),
            waited=place.waited,
            keeps=place.session is not None,
            clock=run.caller.clock,
            clear=parts.servers.secrets.redactor,
            clear_for=self._clear_for,
        )

    async def start(self) -> None:
        """Send the program in, with what it brings counted as read."""
        parts, run, session = self._parts, self._run, self._session
        fields = {} if session is None else session.fields
        known = parts.servers.inventory
        frame = run_frame(run, self._tools, self._guest, known, parts.guide, **fields)
        for directory in run.settings.offered_directories:
            await self._provenance.add_labels(f"directory '{directory.name}'", directory.labels)
        for file in run.request.files:
            await self._provenance.add(file.uri, file.provenance)
        if run.skills.review is not None:
            await parts.skills.add_provenance(run.skills, self._provenance)
        await self._program.start(frame)
        if session is not None:
            session.begun(self._program.stop)

    async def serve(self) -> Facts:
        """Serve the program's calls to its end, and return how it ended and what it left."""
        return await self._program.finish()

    async def conclude(self, facts: Facts) -> None:
        """Build the result: the verdict, the plan if it made one, and its session's report."""
        run = self._run
        wall = time.monotonic() - self._started
        result = run_result(run, tuple(self._tools), self._guest, facts, self._gate, wall)
        result = await planned(result, facts.ending.done, run.gate, self._parts.plans)
        if self._session is not None:
            result = self._session.conclude(result, facts.ending)
        self.concluded = result

    async def result(self) -> RunResult:
        """Return the result with its receipt, once its end is recorded."""
        result = self.concluded
        # What the program returned is written as JSON to be counted.
        return await offload(
            result.result, partial(accounted, result, self._gate, self._run.gate, bytes_returned)
        )

    @cached_property
    def _provenance(self) -> ProvenanceTracker:
        return ProvenanceTracker(self._run.gate.context)

    def _has_read(self) -> Provenance | None:
        """Return what the run has read by now, for what it leaves."""
        return self._provenance.provenance()

    def _clear_for(self, call: Call) -> Redact:
        """Return the redactor of the answer to a call, which remembers what a server returned."""
        name = call.params.get("server")
        if call.method not in _RETURNING or not isinstance(name, str):
            return self._parts.servers.secrets.redactor
        return self._run.gate.context.marks.of(self._parts.servers.resolve(name))

    async def _answer(self, method: str, params: Mapping[str, Json]) -> Json:
        """Answer a request of the program; what does that is made for the first one."""
        if self._requests is None:
            self._requests = self._guest_requests()
        return await self._requests.handle(method, params)

    def _guest_requests(self) -> GuestRequests:
        parts, run = self._parts, self._run
        only_listed = run.settings.listed_servers_only
        self._gate = Gate(
            Grant(
                servers=frozenset(run.servers) if only_listed else None, calls=run.limits.tool_calls
            ),
            parts.servers.pool.call_tool,
            run.gate.context,
        )
        run.caller.progress.tally = self._gate.tally
        show = partial(parts.skills.show, run.request, run.caller, run.skills, self._provenance)
        return GuestRequests(
            parts.servers,
            parts.guide,
            self._gate,
            partial(self._more_answers, self._gate),
            show if parts.skills.may_list(run.request.principal) else None,
        )

    def _more_answers(self, gate: Gate) -> Mapping[str, Answer]:
        """Return what answers calls that are about neither servers nor their tools."""
        parts, run = self._parts, self._run
        outputs = KeptOutputs(parts.artifacts, run.request.owner, self._provenance)
        skills = parts.skills.answers(
            run.request,
            run.caller,
            run.skills,
            gate=gate,
            tracker=self._provenance,
            own=BridgeCalls(run.gate.context, gate),
            run_id=run.run_id,
        )
        return {"read_output": outputs.read_output, **skills}
