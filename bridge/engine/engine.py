"""One run, composed: servers, sandbox, program, verdict.

Owns nothing that lasts but the three things a bridge keeps open: the servers' sessions, the backend
and the sandboxes waiting in it. Decisions are made by the parts; this module puts them in order.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import anyio

from bridge.catalog.preflight import References, referenced_servers
from bridge.catalog.stubs import run_discovered, run_servers
from bridge.engine.commands import Commands
from bridge.engine.guarding import advised, inspected, refused
from bridge.engine.guest_session import GuestSession, open_guest, wait_dead
from bridge.engine.guide import Guide
from bridge.engine.outcome import caught
from bridge.engine.program import Facts, Program
from bridge.engine.questions import Questions
from bridge.engine.servers import ConfigFinder, Finder, Servers, context_for
from bridge.engine.tool_cache import ToolCache
from bridge.errors import (
    ChannelClosedError,
    InvalidRequestError,
    UnknownServerError,
)
from bridge.gate.calls import Gate, Grant
from bridge.guest.wire import Run
from bridge.model import (
    Limits,
    RunRequest,
    RunResult,
    Tool,
    Usage,
)
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES
from bridge.sandbox.backend import Backend, LaunchSpec
from bridge.sandbox.bundle import BOOTSTRAP_ARGV
from bridge.sandbox.choose import choose
from bridge.sandbox.failure import classify
from bridge.sandbox.layers import guest_limits, verified
from bridge.sandbox.limits import limits_for
from bridge.sandbox.pool import WarmPool
from bridge.sandbox.reaper import tidy_up
from bridge.settings import Settings
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1024 * 1024
"""Longest program. Models write thousands of bytes; data belongs in tool calls."""

PROGRESS_SECONDS = 2.0
"""Between progress reports: well inside the 60 s after which clients give up on a silent call."""

GUEST_ENVIRONMENT = {
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
}
"""Everything a program finds in its environment."""

Progress = Callable[[float, str], Awaitable[None]]
"""Called with the seconds gone and a sentence."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A request that can be carried out."""

    run_id: str
    request: RunRequest
    limits: Limits
    servers: tuple[str, ...]
    tolerant: bool


class _NotStartedError(ChannelClosedError):
    """A sandbox was gone before the program was in it."""


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
        self.commands = Commands(settings)
        self._choose = choose_backend
        self._choosing = anyio.Lock()
        self._backend: Backend | None = None
        self._warm = WarmPool(self._open_guest, size=settings.warm, wait_dead=wait_dead)
        self._stack = AsyncExitStack()
        self._tasks = anyio.create_task_group()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def servers(self) -> Servers:
        """The user's servers."""
        return self._servers

    async def __aenter__(self) -> Engine:
        # Both hold task groups, so they are entered here, in the task that will leave them, and
        # not when a run first needs them. Entering starts neither a server nor a sandbox.
        await self._stack.enter_async_context(self._servers)
        await self._stack.enter_async_context(self.commands)
        self._stack.push_async_callback(self._close_backend)
        await self._tasks.__aenter__()
        self._stack.push_async_callback(self._end_tasks)
        await self._stack.enter_async_context(self._warm)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def _end_tasks(self) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def _close_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.aclose()

    async def backend(self) -> Backend:
        """Return the backend in use, choosing it at the first call.

        Raises:
            SandboxError: None works; the next call tries again.
        """
        async with self._choosing:
            if self._backend is None:
                self._backend = await self._choose(self._settings)
                await tidy_up(self._backend)
                self._tasks.start_soon(self._backend.tend, self._warm.drain)
            return self._backend

    async def run(self, request: RunRequest, progress: Progress | None = None) -> RunResult:
        """Run a program and say how it went.

        Raises:
            UsageError: The request is unusable, or names a server that does not exist.
            SandboxError: There is no sandbox, or it was lost.
            UpstreamError: A server that the program needs cannot be reached.
        """
        await self._servers.refresh()
        plan = self._plan(request)
        scan = await inspected(request.code, self._settings.guard)
        if self._settings.guard == "enforce" and not scan.allowed:
            return refused(plan.run_id, scan, plan.limits.timeout)
        async with anyio.create_task_group() as tasks:
            if progress is not None:
                tasks.start_soon(_report_progress, progress)
            outcome = await caught(self._carry_out(plan))
            tasks.cancel_scope.cancel()
        if isinstance(outcome, RunResult):
            return advised(outcome, scan)
        raise outcome

    def _plan(self, request: RunRequest) -> _Plan:
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
        references = referenced_servers(request.code, self._servers.aliases)
        if references.unknown:
            # Said before anything runs: a program must not stop half-way for a typing mistake.
            problems = "; ".join(str(reference) for reference in references.unknown)
            detail = self._servers.left_out()
            raise UnknownServerError(self._servers.unknown(problems), host_detail=detail)
        servers, tolerant = self._wanted(request, references)
        return _Plan(
            run_id=uuid.uuid4().hex,
            request=request,
            limits=limits_for(self._settings, timeout),
            servers=servers,
            tolerant=tolerant,
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

    async def _carry_out(self, plan: _Plan) -> RunResult:
        # The sandbox gets ready while the servers do.
        async with self._warm.reserve() as reservation:
            tools, errors = await self._servers.load(plan.servers, tolerant=plan.tolerant)
            for name, error in errors.items():
                logger.warning("server %s is left out of this run: %s", name, error)
            session = await reservation.get()
            self._warm.refill()
            try:
                return await self._run_in(session, plan, tools)
            except _NotStartedError as error:
                logger.info("the sandbox had died while it waited: %s", error)
        async with self._warm.reserve() as reservation:
            return await self._run_in(await reservation.get(), plan, tools)

    async def _run_in(
        self, session: GuestSession, plan: _Plan, tools: Mapping[str, tuple[Tool, ...]]
    ) -> RunResult:
        """Run the program in a sandbox that waits.

        Raises:
            _NotStartedError: The sandbox was dead, so nothing has been done.
        """
        backend = await self.backend()
        async with backend.in_use():
            started = time.monotonic()
            gate = Gate(self._grant(plan), self._servers.pool.call_tool)
            questions = Questions(self._servers, self.guide, gate)
            program = Program(session, questions.handle, plan.limits)
            try:
                await program.start(self._frame(plan, tools, session))
            except ChannelClosedError as error:
                raise _NotStartedError(error.message, remedy=error.remedy) from error
            facts = await program.finish()
            wall = time.monotonic() - started
        return self._result(plan, tuple(tools), session, facts, gate, wall)

    @asynccontextmanager
    async def _open_guest(self) -> AsyncIterator[GuestSession]:
        spec = LaunchSpec(
            run_id=uuid.uuid4().hex,
            argv=BOOTSTRAP_ARGV,
            env=GUEST_ENVIRONMENT,
            limits=limits_for(self._settings),
        )
        backend = await self.backend()
        async with AsyncExitStack() as stack:
            async with backend.in_use():
                session = await stack.enter_async_context(open_guest(backend, spec))
            yield session

    def _grant(self, plan: _Plan) -> Grant:
        only_listed = self._settings.listed_servers_only
        return Grant(
            servers=frozenset(plan.servers) if only_listed else None,
            calls=plan.limits.tool_calls,
        )

    def _frame(
        self, plan: _Plan, tools: Mapping[str, tuple[Tool, ...]], session: GuestSession
    ) -> Run:
        loaded = tuple(tools)
        entries = self._servers.entries(loaded=loaded)
        return Run(
            code=plan.request.code,
            argv=list(plan.request.argv),
            servers=run_servers(entries),
            discovered=run_discovered(entries),
            capabilities=self.guide.capabilities(loaded, plan.limits),
            limits={
                "timeout": plan.limits.timeout,
                "output_bytes": plan.limits.output_bytes,
                "result_bytes": plan.limits.result_bytes,
                "frame_bytes": MAX_GUEST_FRAME_BYTES,
                **guest_limits(session.sandbox.isolation, plan.limits),
            },
        )

    def _result(
        self,
        plan: _Plan,
        loaded: tuple[str, ...],
        session: GuestSession,
        facts: Facts,
        gate: Gate,
        wall: float,
    ) -> RunResult:
        verdict = classify(facts.ending, plan.limits)
        done, exited = facts.ending.done, facts.ending.exited
        truncated = dict(facts.dropped)
        if done is not None and done.result_dropped > 0:
            truncated["result"] = done.result_dropped
        return RunResult(
            run_id=plan.run_id,
            status=verdict.status,
            summary=verdict.summary,
            reason=verdict.reason,
            exit_code=verdict.exit_code,
            stdout=facts.stdout,
            stderr=facts.stderr,
            has_result=done is not None and done.has_result,
            result=done.result if done is not None else None,
            result_repr=done.result_repr if done is not None else "",
            error=verdict.error,
            servers=loaded,
            timeout_seconds=plan.limits.timeout,
            truncated=truncated,
            isolation=verified(session.sandbox.isolation, session.hello.facts),
            usage=Usage(
                wall_ms=round(wall * 1000),
                cpu_ms=exited.cpu_ms if exited is not None else None,
                peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
                tool_calls=gate.calls,
                tool_result_bytes=gate.result_bytes,
            ),
        )


async def _report_progress(progress: Progress) -> None:
    started = time.monotonic()
    while True:
        await anyio.sleep(PROGRESS_SECONDS)
        seconds = time.monotonic() - started
        await progress(seconds, f"running for {seconds:.0f} s")


@asynccontextmanager
async def open_engine(
    settings: Settings,
    *,
    finder: Finder | None = None,
    choose_backend: Callable[[Settings], Awaitable[Backend]] = choose,
    cwd: str | None = None,
) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers.

    Args:
        settings: What the user asked for.
        finder: Finds servers; the clients' configuration files unless given.
        choose_backend: Finds a backend; the ladder of `bridge.sandbox.choose` unless given.
        cwd: Where project configurations are looked for; the current directory unless given.
    """

    pool = Pool(
        (),
        log_dir=settings.state_dir / "logs",
        environ=settings.environ,
        call_timeout=settings.call_timeout,
        start_timeout=settings.start_timeout,
    )
    where = finder or ConfigFinder(context_for(settings, cwd or str(Path.cwd()), sys.platform))
    servers = Servers(where, pool, ToolCache(settings.state_dir / "tools"))
    async with Engine(settings, servers, choose_backend) as engine:
        yield engine
