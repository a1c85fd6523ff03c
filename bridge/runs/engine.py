"""One run, composed: servers, sandbox, program, verdict.

Owns nothing that lasts but the two things a bridge keeps open: the servers' sessions, and where its
sandboxes come from. Decisions are made by the parts; this module puts them in order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

import anyio

from bridge.artifacts import store_for
from bridge.callers.client import Client, RunCaller
from bridge.catalog.program.servers import References
from bridge.clock import Clock
from bridge.commands.runner import Commands
from bridge.errors import (
    InvalidRequestError,
    UnknownServerError,
)
from bridge.gate.result_redaction import cleared
from bridge.model import (
    ApplyRequest,
    Limits,
    RunRequest,
    RunResult,
)
from bridge.model.identity import is_identified
from bridge.model.outcome import caught
from bridge.packages.packages import Packages
from bridge.plans.executor import PlanExecutor
from bridge.runs.checks import ProgramChecks
from bridge.runs.input_files import resolved
from bridge.runs.job import Job
from bridge.runs.reading import Reading, advised, read, refused
from bridge.runs.runner import Places, Runner
from bridge.runs.sandboxes import Sandboxes
from bridge.runs.suspended import MAX_WAITING, SuspendedRuns
from bridge.sandbox.backend import Backend
from bridge.sandbox.limits import limits_for
from bridge.sandbox.process.host import usable_cpus
from bridge.sandbox.run_queue import RunQueue, default_runs, usable_memory
from bridge.servers.gatekeeping import GateServices
from bridge.servers.guide import GuestGuide
from bridge.servers.proposals import Proposals
from bridge.servers.servers import Servers
from bridge.sessions import Sessions
from bridge.settings import Settings, store_of
from bridge.skills.skills import Skills, SkillUse
from bridge.tasks import background_task
from bridge.upstream.asking import on_behalf_of

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1024 * 1024
"""Longest program. Models write thousands of bytes; data belongs in tool calls."""

UNCUT_BYTES = 1 << 50
"""Of a program's output where whoever asked for it shows all of it: more than there will be time
for, and little enough to be a number anywhere."""


class Engine:
    """Runs programs. Enter before use; leaving ends every sandbox and every server it started."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        choose_backend: Callable[[Settings], Awaitable[Backend]],
    ) -> None:
        self._settings = settings
        self._servers = servers
        self.sandboxes = Sandboxes(settings, choose_backend)
        self.packages = Packages(settings, self.sandboxes.facts)
        lasting = self.sandboxes.reserve_lasting
        self.sessions = Sessions(settings, lasting, store_of(settings), self.packages.outfit)
        runs = settings.runs or default_runs(
            usable_cpus(), usable_memory(), limits_for(settings).memory_bytes
        )
        self.queue = RunQueue(runs)
        # What waits for people leaves places for what does not.
        self.suspended = SuspendedRuns(min(MAX_WAITING, max(1, runs // 2)))
        self._checking = ProgramChecks(servers, settings)
        self.artifacts = store_for(settings)
        self.gatekeeping = GateServices(settings, servers)
        self._proposals = Proposals(servers, self.gatekeeping.audit, self.gatekeeping.starts)
        self.skills = Skills(
            settings,
            servers,
            policy=lambda: self.gatekeeping.policy().spec.skills,
            note=self.gatekeeping.audit.later,
        )
        self.guide = GuestGuide(servers, settings, self.skills.shelf)
        self.commands = Commands(settings, audit_of=self.gatekeeping.audit_of, queue=self.queue)
        self.plan_executor = PlanExecutor(servers, self.gatekeeping)
        self._carrying = Runner(
            settings,
            servers,
            Places(
                sandboxes=self.sandboxes,
                sessions=self.sessions,
                packages=self.packages,
                queue=self.queue,
            ),
            guide=self.guide,
            skills=self.skills,
            artifacts=self.artifacts,
            checking=self._checking,
            gatekeeping=self.gatekeeping,
        )
        self._stack = AsyncExitStack()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def servers(self) -> Servers:
        """The user's servers."""
        return self._servers

    async def __aenter__(self) -> Engine:
        # All hold task groups, so they are entered here, in the task that will leave them, and
        # not when a run first needs them. Entering starts neither a server nor a sandbox.
        self._stack.callback(self.gatekeeping.audit.close)
        await self._stack.enter_async_context(self._servers)
        await self._stack.enter_async_context(self.commands)
        await self._stack.enter_async_context(self.sandboxes)
        await self._stack.enter_async_context(self.sessions)
        await self._stack.enter_async_context(self.suspended)
        await self._stack.enter_async_context(background_task(self.artifacts.tidying))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def backend(self) -> Backend:
        """Return the backend in use; see `Sandboxes.backend`."""
        return await self.sandboxes.backend()

    async def run(self, request: RunRequest, client: Client | None = None) -> RunResult:
        """Run a program and say how it went.

        Args:
            client: Who asked for it: told how it gets on, and asked what servers want to know.

        Raises:
            UsageError: The request is unusable, or names a server that does not exist.
            SandboxError: There is no sandbox, or it was lost.
            UpstreamError: A server that the program needs cannot be reached.
        """
        return await cleared(self._run(request, client), self._servers.secrets.redactor)

    async def _run(self, request: RunRequest, client: Client | None) -> RunResult:
        await self._servers.refresh()
        self._check(request)
        if request.session:
            self.sessions.check(request)
            if request.end_session and not request.code:
                return await self.sessions.end(request)
        limits = limits_for(self._settings, request.timeout)
        request = await resolved(request, limits, self.artifacts)
        run, reading = _run_of(request, client), await self._read(request)
        if await self._approved_now(request, reading, run):
            reading = await self._read(request)
        if reading.references.unknown:
            raise await self._unknown_servers(request, reading)
        scan = reading.scan
        skills = await self.skills.of_program(request, reading.survey, run)
        job = self._job(request, limits, reading, run, skills)
        if self._settings.guard == "enforce" and not scan.allowed:
            return refused(job.run_id, scan, job.limits.timeout)
        return advised(await _attended(run, self._carrying.carry_out(job)), scan)

    async def apply(self, request: ApplyRequest, client: Client | None = None) -> RunResult:
        """Perform the held calls of a plan, after a person has approved of exactly those.

        Raises:
            UnknownPlanError: There is no such plan for this caller.
            RefusedError: Nobody approved of it.
        """
        await self._servers.refresh()
        run = _run_of(request, client)
        work = _attended(run, self.plan_executor.apply(request, run))
        return await cleared(work, self._servers.secrets.redactor)

    def _check(self, request: RunRequest) -> None:
        size = len(request.code.encode("utf-8", "replace"))
        if size > MAX_CODE_BYTES:
            message = f"The program is {size:,} bytes; the limit is {MAX_CODE_BYTES:,}."
            raise InvalidRequestError(message, remedy="Load data with tool calls instead.")
        timeout = request.timeout
        if timeout is not None and not 1 <= timeout <= self._settings.max_timeout:
            message = (
                f"timeout must be between 1 and {self._settings.max_timeout:g} seconds, "
                f"not {timeout:g}."
            )
            raise InvalidRequestError(message, remedy="MCP_BRIDGE_MAX_TIMEOUT sets the largest.")

    async def _read(self, request: RunRequest) -> Reading:
        return await read(
            request.code,
            self._servers.aliases,
            self._settings.guard,
            session=bool(request.session),
        )

    async def _approved_now(self, request: RunRequest, reading: Reading, run: RunCaller) -> bool:
        """Have a person asked about servers of a project that are named; whether one came in."""
        if not self._servers.discovery.proposed:
            return False
        missed = [reference.text.strip("`'") for reference in reading.references.unknown]
        names = (*(request.servers or ()), *missed)
        return await self._proposals.settle(names, run)

    async def _unknown_servers(self, request: RunRequest, reading: Reading) -> UnknownServerError:
        """Return the error on servers that do not exist, with what else is wrong.

        Said before anything runs: a program must not stop half-way for a typing mistake.
        """
        named = reading.references
        check = await self._checking.check(
            request.code, reading.survey, named.servers, more_names=bool(request.session)
        )
        problems = [str(reference) for reference in named.unknown]
        problems += [str(found) for found in check.verdict.certain]
        message = self._servers.unknown("; ".join(problems))
        missed = [reference.text.strip("`'") for reference in named.unknown]
        return UnknownServerError(message, host_detail=self._servers.left_out(missed))

    def _job(
        self,
        request: RunRequest,
        limits: Limits,
        reading: Reading,
        run: RunCaller,
        skills: SkillUse,
    ) -> Job:
        servers, tolerant = self._wanted(request, skills.widened(reading.references))
        run_id = uuid.uuid4().hex
        if run.is_shown:
            # All of it goes past, and none of it is kept.
            limits = replace(limits, output_bytes=UNCUT_BYTES)
        return Job(
            run_id=run_id,
            run=run,
            watch=self.gatekeeping.watch(run_id, request, run),
            request=request,
            limits=limits,
            servers=servers,
            tolerant=tolerant,
            reach=reading.reach,
            program=reading.survey,
            skills=skills,
        )

    def _wanted(self, request: RunRequest, references: References) -> tuple[tuple[str, ...], bool]:
        """Return the servers to load, and whether some may fail to start."""
        named = dict.fromkeys(self._servers.resolve(name) for name in request.servers or ())
        if self._settings.listed_servers_only:
            missing = [name for name in references.servers if name not in named]
            if missing:
                message = f"The program uses servers that are not listed: {', '.join(missing)}."
                remedy = "Only those named in `servers` (--servers) are loaded here."
                raise InvalidRequestError(message, remedy=remedy)
            return tuple(named), False
        if request.servers is not None:
            # What the code names beside the list would otherwise be a NameError half-way through.
            return tuple({**named, **dict.fromkeys(references.servers)}), False
        if references.dynamic:
            # The program chooses at run time, so everything is offered; what fails is left out.
            return self._servers.names(), True
        return references.servers, False


def _run_of(request: RunRequest | ApplyRequest, client: Client | None) -> RunCaller:
    return RunCaller(client, Clock(), identified=is_identified(request))


async def _attended(run: RunCaller, work: Awaitable[RunResult]) -> RunResult:
    """Have a run's work done, with its client told how it gets on."""
    with on_behalf_of(run):
        if not (run.is_followed or run.is_shown):
            # Without a task to report, whose start and end take a tenth of a millisecond.
            outcome = await caught(work)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.tick)
                outcome = await caught(work)
                tasks.cancel_scope.cancel()
            await run.conclude()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome
