"""A job carried out: checked against its servers, given a sandbox or its session's, run.

Owns the order of these steps. Whether a request can be a job at all is `engine`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from bridge.artifacts import ArtifactStore
from bridge.errors import NotStartedError
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.provenance import ProvenanceTracker
from bridge.model import RunResult, Tool
from bridge.offload import offload
from bridge.packages.packages import Packages
from bridge.rpc.dispatcher import Answer, answering
from bridge.runs.checks import Check, ProgramChecks, stopped, with_notes
from bridge.runs.collect import Collector
from bridge.runs.guest_requests import GuestRequests
from bridge.runs.guest_session import GuestSession
from bridge.runs.job import Job, run_frame, run_result
from bridge.runs.kept_outputs import KeptOutputs
from bridge.runs.program import Program
from bridge.runs.sandboxes import Sandboxes
from bridge.sandbox.run_queue import Place, RunQueue
from bridge.servers.gatekeeping import GateServices, accounted
from bridge.servers.guide import GuestGuide
from bridge.servers.servers import Servers
from bridge.sessions import SessionRun, Sessions
from bridge.settings import Settings
from bridge.skills.skills import Skills

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where programs run, when, and with which packages."""

    sandboxes: Sandboxes
    sessions: Sessions
    packages: Packages
    queue: RunQueue


class Runner:
    """Carries out jobs."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        places: Places,
        *,
        guide: GuestGuide,
        skills: Skills,
        artifacts: ArtifactStore,
        checking: ProgramChecks,
        gatekeeping: GateServices,
    ) -> None:
        self._settings = settings
        self._servers = servers
        self._places = places
        self._guide = guide
        self._skills = skills
        self._artifacts = artifacts
        self._checking = checking
        self._gatekeeping = gatekeeping

    async def carry_out(self, job: Job) -> RunResult:
        """Run a job's program, and return what came of it.

        Raises:
            BridgeError: It could not be run.
        """
        check = await self._check_early(job)
        if check.verdict.certain:
            return stopped(job.run_id, job.request.code, check.verdict, job.limits.timeout)
        refusal = await self._skills.refusal(job.skills, job.run_id, job.limits.timeout)
        if refusal is not None:
            return refusal
        if job.request.session:
            return await self._in_session(job, check)
        async with self._places.queue.place(job.request.owner, job.run.queued) as place:
            return await self._alone(job, check, place)

    async def _alone(self, job: Job, check: Check, place: Place) -> RunResult:
        """Run a program in a sandbox of its own."""
        outfit = await self._places.packages.outfit(job.request, job.run)
        if outfit is not job.outfit:
            job = replace(job, outfit=outfit)
        # The sandbox gets ready while the servers do.
        reserve = partial(
            self._places.sandboxes.reserve,
            job.limits,
            binds=job.outfit.binds,
            keep=place.keep,
        )
        async with reserve() as reservation:
            tools = await self._loaded(job)
            check = await self._check_again(job, check, tuple(tools))
            if check.verdict.certain:
                return stopped(job.run_id, job.request.code, check.verdict, job.limits.timeout)
            try:
                session = await reservation.get()
                self._places.packages.check(job.outfit, session.facts)
                result = await self._run_in(session, job, tools, waited=True)
                return with_notes(result, job.request.code, check.verdict)
            except NotStartedError as error:
                logger.warning("the program is started again in a new sandbox: %s", error)
        async with reserve(fresh=True) as reservation:
            result = await self._run_in(await reservation.get(), job, tools)
            return with_notes(result, job.request.code, check.verdict)

    async def _loaded(self, job: Job) -> dict[str, tuple[Tool, ...]]:
        tools, errors = await self._servers.load(job.servers, tolerant=job.tolerant)
        for name, error in errors.items():
            logger.warning("server %s is left out of this run: %s", name, error)
        return tools

    async def _in_session(self, job: Job, check: Check) -> RunResult:
        tools = await self._loaded(job)
        check = await self._check_again(job, check, tuple(tools))
        if check.verdict.certain:
            return stopped(job.run_id, job.request.code, check.verdict, job.limits.timeout)

        async def work(session: GuestSession, seat: SessionRun) -> RunResult:
            seat.check(job.request)
            # What earlier programs of the session defined may call what they had loaded.
            earlier = [name for name in seat.servers if name in self._servers.names()]
            loaded, _ = await self._servers.load((*tools, *earlier), tolerant=True)
            # What earlier runs read counts for it, and its stubs are whole: what earlier programs
            # defined may call any tool.
            watch = job.watch.in_session(seat.flow)
            placed = replace(job, watch=watch, reach=None, outfit=seat.outfit)
            self._places.packages.check(placed.outfit, session.facts)
            # Whoever waits here has a session, and nobody with a place waits for one.
            async with self._places.queue.place(job.request.owner, job.run.queued):
                return await self._run_in(session, placed, loaded, waited=seat.waited, seat=seat)

        result = await self._places.sessions.run(job.request, job.limits, job.run, work)
        return with_notes(result, job.request.code, check.verdict)

    async def _check_early(self, job: Job) -> Check:
        """Check the program before there is a sandbox for it; what is certain needs none."""
        check = await self._checked(job, job.servers)
        if check.verdict.certain and job.servers:
            # What hangs on tools is certain only once its servers have been asked. Whatever else
            # is wrong is told together with that, but waits for no server that does not answer.
            tolerant = job.tolerant or not check.may_be_mended
            tools, _ = await self._servers.load(job.servers, tolerant=tolerant)
            check = await self._check_again(job, check, tuple(tools))
            if check.verdict.certain and check.may_be_mended:
                await self._servers.look_again(tools)
                check = await self._check_again(job, check, tuple(tools))
        return check

    async def _check_again(self, job: Job, check: Check, loaded: tuple[str, ...]) -> Check:
        """Check against the servers as they turned out to be, if that is news."""
        if set(loaded) == set(job.servers) and not self._checking.stale(check):
            return check
        return await self._checked(job, loaded)

    async def _checked(self, job: Job, servers: tuple[str, ...]) -> Check:
        request = job.request
        return await self._checking.check(
            request.code,
            job.program,
            servers,
            more_names=bool(request.session),
            skills=job.skills.known,
        )

    async def _run_in(
        self,
        session: GuestSession,
        job: Job,
        tools: Mapping[str, tuple[Tool, ...]],
        *,
        waited: bool = False,
        seat: SessionRun | None = None,
    ) -> RunResult:
        """Run the program in a sandbox that waits.

        Args:
            seat: Its place in a session, if it is in one.

        Raises:
            NotStartedError: The sandbox was dead; nothing was done outside of it.
        """
        backend = await self._places.sandboxes.backend()
        async with backend.in_use():
            started = time.monotonic()
            gate = Gate(self._grant(job), self._servers.pool.call_tool, job.watch.oversight)
            job.run.standing.tally = gate.tally
            lasting = ProvenanceTracker(job.watch.oversight)
            more = partial(self._more, job, gate, lasting)
            show = partial(self._skills.show, job.request, job.run, job.skills, lasting)
            listed = self._skills.may_list(job.request.principal)
            questions = GuestRequests(
                self._servers, self._guide, gate, more, show if listed else None
            )
            intake = Collector(
                job.limits,
                run=job.run,
                artifacts=self._artifacts.of_run(job.request.owner, job.run_id, lasting.provenance),
                clear=self._servers.secrets.redactor,
            )
            program = Program(
                session,
                job.run.followed(questions.handle),
                job.limits,
                intake=intake,
                waited=waited,
                keeps=seat is not None,
                clock=job.clock,
                clear=self._servers.secrets.redactor,
            )
            seated = {} if seat is None else seat.fields
            told = {} if seat is None else {"session": seat.session_id}
            async with job.watch.recording(job.request, tuple(tools), told) as record:
                frame = run_frame(job, tools, session, self._servers.known, self._guide, **seated)
                await self._bring(job, lasting)
                await program.start(frame)
                if seat is not None:
                    seat.begun(program)
                facts = await program.finish()
                wall = time.monotonic() - started
                result = run_result(job, tuple(tools), session, facts, gate, wall)
                result = await self._gatekeeping.concluded(result, facts.ending.done, job.watch)
                if seat is not None:
                    result = seat.conclude(result, facts.ending)
                record(result)
        # What the program returned is written as JSON to be counted.
        return await offload(result.result, partial(accounted, result, gate, job.watch))

    async def _bring(self, job: Job, lasting: ProvenanceTracker) -> None:
        """Have what comes with a program count as read before it begins."""
        for directory in self._settings.offered_directories:
            await lasting.have(f"directory '{directory.name}'", directory.labels)
        for file in job.request.files:
            await lasting.find(file.uri, file.provenance)
        await self._skills.found(job.skills, lasting)

    def _more(self, job: Job, gate: Gate, lasting: ProvenanceTracker) -> Mapping[str, Answer]:
        """Return what answers a run's calls that are about neither servers nor their tools."""
        outputs = KeptOutputs(self._artifacts, job.request.owner, lasting)
        skills = self._skills.answers(
            job.request,
            job.run,
            job.skills,
            gate=gate,
            lasting=lasting,
            own=BridgeCalls(job.watch.oversight, gate),
            run_id=job.run_id,
        )
        return {"read_output": answering(outputs.read_output), **skills}

    def _grant(self, job: Job) -> Grant:
        only_listed = self._settings.listed_servers_only
        return Grant(
            servers=frozenset(job.servers) if only_listed else None,
            calls=job.limits.tool_calls,
        )
