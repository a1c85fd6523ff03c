"""One run, composed: servers, sandbox, program, verdict.

Owns nothing that lasts but the two things a bridge keeps open: the servers' sessions, and where its
sandboxes come from. Decisions are made by the parts; this module puts them in order.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType

import anyio

from bridge.artifacts import ArtifactStore
from bridge.catalog.preflight import References
from bridge.clock import Clock
from bridge.engine.applying import Applying
from bridge.engine.checking import Check, Checking, stopped
from bridge.engine.clearing import cleared
from bridge.engine.client import Client, OneRun
from bridge.engine.commands import Commands
from bridge.engine.gatekeeping import Gatekeeping, accounted
from bridge.engine.guarding import Reading, advised, read, refused
from bridge.engine.guest_session import GuestSession
from bridge.engine.guide import Guide
from bridge.engine.intake import Intake
from bridge.engine.job import Job, run_frame, run_result
from bridge.engine.outcome import caught
from bridge.engine.program import NotStartedError, Program
from bridge.engine.questions import Questions
from bridge.engine.sandboxes import Sandboxes
from bridge.engine.servers import Servers
from bridge.engine.suspended import SuspendedRuns
from bridge.errors import (
    InvalidRequestError,
    UnknownServerError,
)
from bridge.gate.calls import Gate, Grant
from bridge.model import (
    ApplyRequest,
    RunRequest,
    RunResult,
    Tool,
)
from bridge.sandbox.backend import Backend
from bridge.sandbox.layers import OWN_NAMESPACES
from bridge.sandbox.limits import limits_for
from bridge.settings import Settings
from bridge.upstream.asking import on_behalf_of

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1024 * 1024
"""Longest program. Models write thousands of bytes; data belongs in tool calls."""


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
        self.guide = Guide(servers, settings)
        self.sandboxes = Sandboxes(settings, choose_backend)
        self.suspended = SuspendedRuns()
        self._checking = Checking(servers, settings)
        self.artifacts = ArtifactStore(
            settings.state_dir / "artifacts",
            total_bytes=settings.artifact_bytes,
            run_bytes=settings.artifact_run_bytes,
            days=settings.artifact_days,
        )
        self.gatekeeping = Gatekeeping(settings, servers)
        self.commands = Commands(settings, audit_of=self.gatekeeping.audit_of)
        self.applying = Applying(servers, self.gatekeeping)
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
        await self._stack.enter_async_context(self.suspended)
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
        reading = await read(request.code, self._servers.aliases, self._settings.guard)
        if reading.references.unknown:
            raise await self._unknown_servers(request, reading)
        run, scan = OneRun(client, Clock()), reading.scan
        job = self._job(request, reading, run)
        if self._settings.guard == "enforce" and not scan.allowed:
            return refused(job.run_id, scan, job.limits.timeout)
        return advised(await _attended(run, self._carry_out(job)), scan)

    async def apply(self, request: ApplyRequest, client: Client | None = None) -> RunResult:
        """Perform the held calls of a plan, after a person has approved of exactly those.

        Raises:
            UnknownPlanError: There is no such plan for this caller.
            RefusedError: Nobody approved of it.
        """
        await self._servers.refresh()
        run = OneRun(client, Clock())
        work = _attended(run, self.applying.apply(request, run))
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
            remedy = "MCP_BRIDGE_MAX_TIMEOUT sets the largest."
            raise InvalidRequestError(message, remedy=remedy)

    async def _unknown_servers(self, request: RunRequest, reading: Reading) -> UnknownServerError:
        """Return the error on servers that do not exist, with what else is wrong.

        Said before anything runs: a program must not stop half-way for a typing mistake.
        """
        named = reading.references
        check = await self._checking.check(request.code, reading.tree, named.servers)
        problems = [str(reference) for reference in named.unknown]
        problems += [str(found) for found in check.verdict.certain]
        message = self._servers.unknown("; ".join(problems))
        missed = [reference.text.strip("`'") for reference in named.unknown]
        slips = all(reference.nearest for reference in named.unknown)
        told = self._servers.left_out(missed, slips=slips)
        return UnknownServerError(message, host_detail=told)

    def _job(self, request: RunRequest, reading: Reading, run: OneRun) -> Job:
        servers, tolerant = self._wanted(request, reading.references)
        run_id = uuid.uuid4().hex
        return Job(
            run_id=run_id,
            run=run,
            watch=self.gatekeeping.watch(run_id, request, run),
            request=request,
            limits=limits_for(self._settings, request.timeout),
            servers=servers,
            tolerant=tolerant,
            reach=reading.reach,
            program=reading.tree,
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

    async def _carry_out(self, job: Job) -> RunResult:
        check = await self._check_early(job)
        if check.verdict.certain:
            return stopped(job.run_id, job.request.code, check.verdict, job.limits.timeout)
        # The sandbox gets ready while the servers do.
        who = job.request.principal
        async with self.sandboxes.reserve(job.limits, principal=who) as reservation:
            tools, errors = await self._servers.load(job.servers, tolerant=job.tolerant)
            for name, error in errors.items():
                logger.warning("server %s is left out of this run: %s", name, error)
            check = await self._check_again(job, check, tuple(tools))
            if check.verdict.certain:
                return stopped(job.run_id, job.request.code, check.verdict, job.limits.timeout)
            try:
                session = await reservation.get()
                # The process that runs a lane's program is known to be well: it has just said so.
                waited = OWN_NAMESPACES not in session.isolation.layers
                result = await self._run_in(session, job, tools, waited=waited)
                return await self._checking.explained(result, job.request.code, check)
            except NotStartedError as error:
                logger.warning("the program is started again in a new sandbox: %s", error)
        async with self.sandboxes.reserve(job.limits, principal=who, fresh=True) as reservation:
            result = await self._run_in(await reservation.get(), job, tools)
            return await self._checking.explained(result, job.request.code, check)

    async def _check_early(self, job: Job) -> Check:
        """Check the program before there is a sandbox for it; what is certain needs none."""
        check = await self._checking.check(job.request.code, job.program, job.servers)
        if check.verdict.certain and job.servers:
            # What hangs on tools is certain only once its servers have been asked. Whatever else
            # is wrong is told together with that, but waits for no server that does not answer.
            tolerant = job.tolerant or not check.may_be_mended
            tools, _ = await self._servers.load(job.servers, tolerant=tolerant)
            check = await self._check_again(job, check, tuple(tools))
        return check

    async def _check_again(self, job: Job, check: Check, loaded: tuple[str, ...]) -> Check:
        """Check against the servers as they turned out to be, if that is news."""
        if set(loaded) == set(job.servers) and not self._checking.stale(check):
            return check
        return await self._checking.check(job.request.code, job.program, loaded)

    async def _run_in(
        self,
        session: GuestSession,
        job: Job,
        tools: Mapping[str, tuple[Tool, ...]],
        *,
        waited: bool = False,
    ) -> RunResult:
        """Run the program in a sandbox that waits.

        Raises:
            NotStartedError: The sandbox was dead or paused; nothing was done outside of it.
        """
        backend = await self.backend()
        async with backend.in_use():
            started = time.monotonic()
            gate = Gate(self._grant(job), self._servers.pool.call_tool, job.watch.oversight)
            questions = Questions(self._servers, self.guide, gate)
            intake = Intake(
                job.limits,
                run=job.run,
                artifacts=self.artifacts.of_run(job.request.owner, job.run_id),
                clear=self._servers.secrets.redactor,
            )
            program = Program(
                session,
                questions.handle,
                job.limits,
                intake=intake,
                waited=waited,
                clock=job.clock,
                clear=self._servers.secrets.redactor,
            )
            async with job.watch.recording(job.request, tuple(tools)) as record:
                frame = run_frame(job, tools, session, self._servers.known, self.guide)
                await program.start(frame)
                facts = await program.finish()
                wall = time.monotonic() - started
                result = run_result(job, tuple(tools), session, facts, gate, wall)
                result = await self.gatekeeping.concluded(result, facts, job.watch)
                record(result)
        return accounted(result, gate, job.watch)

    def _grant(self, job: Job) -> Grant:
        only_listed = self._settings.listed_servers_only
        return Grant(
            servers=frozenset(job.servers) if only_listed else None,
            calls=job.limits.tool_calls,
        )


async def _attended(run: OneRun, work: Awaitable[RunResult]) -> RunResult:
    """Have a run's work done, with its client told how it gets on."""
    with on_behalf_of(run):
        if not run.wants_progress:
            # Without a task to report, whose start and end take a tenth of a millisecond.
            outcome = await caught(work)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.tick)
                outcome = await caught(work)
                tasks.cancel_scope.cancel()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome
