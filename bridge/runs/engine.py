"""The engine: all parts of a bridge, the nine steps of a run, and `open_engine`.

Each step is a call to the part that owns it. A run of a session takes the same steps, in the
session's sandbox. If the first sandbox was dead before the program began, the engine starts the
program in a second one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import anyio

from bridge.artifacts.store import store_for
from bridge.callers.client import Client, RunCaller
from bridge.commands.runner import Commands
from bridge.errors import BridgeError, CannotAskError, LoginFailedError, NotStartedError
from bridge.event_loop import Clock, background_task, logged_as
from bridge.gate.audit.log import audit_log
from bridge.gate.privacy import clear_logs, clear_value, redact_outcome
from bridge.gate.question import safe_name
from bridge.gate.server_starts import StartApprover
from bridge.gate.services import GateServices
from bridge.inventory.configuration import ConfigFinder, Finder, consents_of, context_for
from bridge.inventory.guide import GuestGuide
from bridge.inventory.inventory import ToolCache
from bridge.inventory.learned_shapes import LearnedShapes
from bridge.inventory.secrets import Secrets
from bridge.inventory.servers import Servers
from bridge.model import ApplyRequest, RunRequest, RunResult, ServerSpec, owner_digest
from bridge.model.runs import catch
from bridge.packages.packages import Packages
from bridge.plans.executor import PlanExecutor
from bridge.plans.plan_store import Plans
from bridge.private_files import in_use, make_directory
from bridge.runs.admission import Admission, PreparedRun, Services, add_findings, refusal_result
from bridge.runs.execution import RunSandbox, execute
from bridge.runs.program import save_state
from bridge.runs.records import RunRecord, RunRecords
from bridge.runs.sandboxes import Sandboxes
from bridge.runs.suspended_runs import MAX_WAITING, OpenQuestions, SuspendedRuns
from bridge.sandbox.backend import Backend, limits_for
from bridge.sandbox.ownership import current_owner, reap_leftovers
from bridge.sandbox.pool import CLUSTER_RUNS, RunQueue, default_runs, usable_memory
from bridge.sandbox.process.host import usable_cpus
from bridge.sandbox.selection import select_backend
from bridge.saved_functions.skills import Skills
from bridge.sessions.table import Sessions
from bridge.sessions.turns import Turn
from bridge.settings import Settings, runtime_dir, store_of
from bridge.settings.parsers import ELSEWHERE
from bridge.store.heartbeat import Heartbeat
from bridge.upstream.client_features import current_caller, on_behalf_of
from bridge.upstream.launch import Containers
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_login import Callback, log_in
from bridge.upstream.pool import Pool
from bridge.upstream.sharing import Connections, shared_environment
from bridge.upstream.token_store import TokenStore

logger = logging.getLogger(__name__)

Request = TypeVar("Request", RunRequest, ApplyRequest)

OpenSandbox = Callable[[bool], AbstractAsyncContextManager[tuple[PreparedRun, RunSandbox]]]
"""A context that holds a run's sandbox; its argument asks for a new one after a dead one."""


class SharedParts:
    """The parts of a bridge that the engines of all its clients use."""

    def __init__(
        self,
        settings: Settings,
        choose_backend: Callable[[Settings], Awaitable[Backend]],
        *,
        several: bool = False,  # Whether the bridge has several clients.
    ) -> None:
        self.settings = settings
        self.store = store_of(settings)
        self.sandboxes = Sandboxes(settings, choose_backend)
        self.packages = Packages(settings, self.sandboxes)
        permanent = self.sandboxes.reserve_permanent
        self.sessions = Sessions(settings, permanent, self.store, self.packages.resolve, save_state)
        self.queue = _run_queue(settings, self.sandboxes)
        # Runs that wait for a user leave some slots for others.
        self.questions = OpenQuestions(min(MAX_WAITING, max(1, self.queue.slots * 3 // 4)))
        self.running_runs = RunningRuns(settings.replica)
        self.heartbeat = Heartbeat(self.store, settings.replica)
        self.artifacts = store_for(settings)
        self.plans = Plans(self.store)
        self.audit = audit_log(settings)
        self.connections = Connections(are_shared=several)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SharedParts]:
        """Open the parts; leaving ends every sandbox and every server."""
        # All hold task groups, so they are entered here, in the task that will leave them, and
        # not when a run first needs them. Entering starts neither a server nor a sandbox.
        with ExitStack() as stack:
            stack.callback(self.store.close)
            with suppress(OSError):
                # `purge` removes no directory that is in use.
                stack.enter_context(in_use(self.settings.state_dir))
                make_directory(sockets := runtime_dir(self.settings))
                stack.enter_context(in_use(sockets))
            stack.callback(self.audit.close)
            async with (
                self.connections,
                self.sandboxes.opened(),
                self.sessions.opened(),
                background_task(self.artifacts.tidy_periodically),
                background_task(self.heartbeat.beat),
            ):
                yield self


class Engine(Services):
    """An engine that runs the programs of one client while it is `opened`."""

    def __init__(self, settings: Settings, servers: Servers, shared: SharedParts) -> None:
        self.settings = settings
        self.servers = servers
        self.sandboxes, self.packages = shared.sandboxes, shared.packages
        self.sessions, self.queue = shared.sessions, shared.queue
        self.running_runs, self.heartbeat = shared.running_runs, shared.heartbeat
        self.artifacts, self.plans = shared.artifacts, shared.plans
        self.suspended = SuspendedRuns(shared.questions, settings.replica)
        self.records = RunRecords(settings, partial(clear_value, redactor=servers.secrets.redactor))
        self.gate = GateServices(
            settings,
            servers,
            servers.secrets.redactor,
            _current_asker,
            self.plans.knows,
            shared.audit,
            self.heartbeat.process,
        )
        servers.pool.admission = self.gate.starts
        self.skills = Skills(
            settings,
            servers,
            policy=lambda: self.gate.policy().spec.skills,
            note=self.gate.audit.later,
        )
        self.guide = GuestGuide(servers, settings, self.skills.index)
        self.commands = Commands(settings, audit_of=self.gate.audit_of, queue=self.queue)
        self.plan_executor = PlanExecutor(servers, self.gate, self.plans)
        self._admission = Admission(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """Open the client's own parts; leaving ends its runs."""
        suspended = self.suspended.opened()
        async with self.gate.ongoing_calls.open(), self.servers, self.commands, suspended:
            yield self

    async def run(self, request: RunRequest, client: Client | None = None) -> RunResult:
        """Run a program and return its result.

        Args:
            client: The MCP client; it receives progress and answers the questions of servers.

        Raises:
            UsageError: The request is invalid, or names a server that does not exist.
            SandboxError: There is no sandbox, or it was lost.
            UpstreamError: A server that the program needs cannot be reached.
        """
        return await self._handle(request, client, self._run)

    async def apply(self, request: ApplyRequest, client: Client | None = None) -> RunResult:
        """Make the held calls of a plan after the user has approved exactly those.

        Raises:
            UnknownError: There is no such plan for this caller.
            RefusedError: It was not approved.
        """
        return await self._handle(request, client, self._apply)

    async def _handle(
        self,
        request: Request,
        client: Client | None,
        work: Callable[[Request, RunCaller, RunRecord], Awaitable[RunResult]],
    ) -> RunResult:
        """Do the work of a request, record it, and redact its result."""
        for word in ("schema", "clock"):
            if problem := self.heartbeat.problems.get(word):
                message = f"This bridge begins no runs: {problem}. Nothing was run."
                raise BridgeError(message, remedy="Ask another bridge.", code="draining")
        request = replace(request, run_id=request.run_id or uuid.uuid4().hex)
        facts = logged_as(run=request.run_id, owner=owner_digest(request.owner))
        with self.running_runs.track(), facts:
            caller = RunCaller(client, Clock(), identified=request.is_identified)
            async with self.records.recording(request) as record:
                result = await redact_outcome(
                    _with_progress(caller, work(request, caller, record)),
                    self.servers.secrets.redactor,
                )
                return record.end(result)

    async def _run(self, request: RunRequest, caller: RunCaller, record: RunRecord) -> RunResult:
        """Take the nine steps, of which 4 to 8 are repeated if the sandbox was dead."""
        await self.servers.refresh()
        if not request.ends_session_only:
            await record.begin()
        # 1. Parse: check the request that `server/` made against the limits of this bridge.
        request, limits = await self._admission.parse(request)
        if request.ends_session_only:
            return await self.sessions.end_session(request)
        # 2. Read the program once: its syntax tree, the servers it names, the guard's findings.
        request, program = await self._admission.read(request, caller)
        # 3. Admit: the guard's mode, certain mistakes, skills; which servers the run may have.
        run = await self._admission.admit(request, limits, program, caller)
        if isinstance(run, RunResult):
            return run
        session: Turn | None = None
        result: RunResult | None = None
        take_turn = self._in_session if run.request.session else self._in_own_sandbox
        async with take_turn(run) as open_sandbox:
            for again in (False, True):
                try:
                    async with open_sandbox(again) as (run, reserved):
                        session = reserved.session
                        # 4. Prepare: the servers connect while the sandbox starts.
                        run, tools = await self._admission.connect(run)
                        # 5. Check the program against the tools as they are now.
                        run = await self._admission.check(run, tools)
                        if run.check.verdict.certain:
                            result = refusal_result(
                                run.run_id, run.program, run.check.verdict, limits
                            )
                        else:
                            # 6. Start: one `run` frame. 7. Serve its calls through the gate;
                            # collect what it writes. 8. Conclude: the verdict, the audit log's
                            # last record, the result.
                            result = await execute(self, run, tools, reserved)
                    break
                except NotStartedError as error:
                    if again:
                        raise
                    logger.warning("the program is started again in a new sandbox: %s", error)
        # 9. Release: the pool destroys the sandbox, or the session has kept it and saved its state.
        if run.packages.binds:
            self.packages.compile_later(run.packages)
        assert result is not None
        if session is not None:
            result = session.with_losses(result)
        return add_findings(result, run.program, run.check.verdict, caller.restarted)

    @asynccontextmanager
    async def _in_own_sandbox(self, run: PreparedRun) -> AsyncIterator[OpenSandbox]:
        async with self.queue.slot(run.request.owner, run.caller.report_queue, starts=True) as slot:
            if run.request.may_need_packages:
                run = replace(run, packages=await self.packages.resolve(run.request, run.caller))
                if run.request.ends_bridge and run.packages.binds:
                    # The bridge ends with this run, so nothing can be compiled after it.
                    self.packages.compile_later(run.packages)
            reserve = partial(self.sandboxes.reserve, binds=run.packages.binds, keep=slot.keep)

            @asynccontextmanager
            async def open_sandbox(again: bool) -> AsyncIterator[tuple[PreparedRun, RunSandbox]]:
                async with reserve(run.limits, fresh=again, started=slot.end_start) as sandbox:
                    yield run, RunSandbox(sandbox=sandbox, may_be_dead=not again)

            yield open_sandbox

    @asynccontextmanager
    async def _in_session(self, run: PreparedRun) -> AsyncIterator[OpenSandbox]:
        self.queue.begin_wait()
        async with self.sessions.queued(run.request, run.limits, run.caller) as queued:

            @asynccontextmanager
            async def open_sandbox(_: bool) -> AsyncIterator[tuple[PreparedRun, RunSandbox]]:
                async with queued.turn() as turn:
                    turn.check(run.request)
                    # For flow rules this run has read what the session's earlier runs read.
                    gate = run.gate.in_session(turn.record.flow)
                    begun = turn.record.begun
                    reserved = RunSandbox(sandbox=turn.sandbox, may_be_dead=begun, session=turn)
                    # The turn comes first: a run with a slot never waits for its session.
                    async with self.queue.slot(run.request.owner, run.caller.report_queue):
                        yield replace(run, gate=gate, packages=turn.packages), reserved

            yield open_sandbox

    async def _apply(
        self, request: ApplyRequest, caller: RunCaller, record: RunRecord
    ) -> RunResult:
        await self.servers.refresh()
        await record.begin()
        return await self.plan_executor.apply(request, caller)


async def _with_progress(caller: RunCaller, work: Awaitable[RunResult]) -> RunResult:
    """Await the work of a run while its client receives progress."""
    with on_behalf_of(caller):
        if not (caller.is_followed or caller.is_shown):
            # A task for progress would cost a tenth of a millisecond.
            outcome = await catch(work)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(caller.tick)
                outcome = await catch(work)
                tasks.cancel_scope.cancel()
            await caller.conclude()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome


def _run_queue(settings: Settings, sandboxes: Sandboxes) -> RunQueue:
    """Return the queue with as many slots as the place has where runs happen."""
    if settings.runtime in ELSEWHERE:
        runs = settings.runs
        return RunQueue(runs or CLUSTER_RUNS, capacity=lambda: runs or sandboxes.capacity)
    memory = limits_for(settings).memory_bytes
    return RunQueue(settings.runs or default_runs(usable_cpus(), usable_memory(), memory))


def _current_asker() -> StartApprover | None:
    caller = current_caller()
    return caller.asker if isinstance(caller, RunCaller) else None


class RunningRuns:
    """The running runs; at shutdown each of them gets a typed error as its result."""

    def __init__(self, replica: str = "") -> None:
        self.draining = False
        self._called = f"replica {replica!r} of the bridge" if replica else "bridge"
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def count(self) -> int:
        return len(self._scopes)

    @contextmanager
    def track(self) -> Iterator[None]:
        if self.draining:
            message = f"This {self._called} is ending, and begins no more runs. Nothing was run."
            raise BridgeError(message, code="draining")
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            message = (
                f"The run was ended in the middle: this {self._called} is ending, and the time "
                "for its last runs is over. What it had called by then has happened."
            )
            remedy = "See on the servers what it did before any of it is done again."
            raise BridgeError(message, remedy=remedy, code="draining")

    async def drain(self, seconds: float, waits: Callable[[], bool] = lambda: False) -> None:
        """Let no more runs begin, give the others `seconds` to end, and end the rest.

        `waits` is called at each look, and returns whether something else must be awaited too.
        """
        self.draining = True

        async def none_left() -> None:
            while waits() or self._scopes:  # noqa: ASYNC110 - `waits` announces nothing
                await anyio.sleep(0.05)

        with anyio.move_on_after(seconds):
            await none_left()
            return
        logger.warning("%d runs are ended: %g s are over", self.count, seconds)
        for scope in self._scopes:
            scope.cancel()
        # The session interrupts its program first, which keeps its state. Meanwhile clients that
        # answer a question or poll their task still get a reply.
        with anyio.move_on_after(12.0):
            await none_left()


class LoginOffers:
    """Offers logins to clients that can send their user to an address (URL elicitation)."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        # Two login pages at once would confuse the user.
        self._one_at_a_time = anyio.Lock()

    async def offer(self, spec: ServerSpec) -> bool:
        """Ask the user of the current run to log in; return whether they did.

        Each run offers a login to a server once.
        """
        run = current_caller()
        if not isinstance(run, RunCaller) or not run.may_visit or spec.name in run.offered_logins:
            return False
        run.offered_logins.add(spec.name)

        async def show(url: str, callback: Callback) -> None:
            host = safe_name(urlsplit(url).hostname or "", listed=False)
            message = (
                f"mcp-code-bridge: the server {safe_name(spec.name)} wants you to log in at "
                f"{host}. The browser comes back to port {callback.port} of the bridge's machine."
            )
            answer = await run.elicit({"mode": "url", "message": message, "url": url})
            if answer.get("action") != "accept":
                raise LoginFailedError("The user did not want to log in.", server=spec.name)

        try:
            with run.clock.stop():
                async with self._one_at_a_time:
                    await log_in(spec, self._store, show, seconds=300.0)
        except (CannotAskError, LoginFailedError) as error:
            logger.info("no login to server %r: %s", spec.name, error)
            return False
        return True


class ServerContainers(Containers):
    """Labels and removes the containers of servers in the same way as sandboxes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def labels(self) -> Mapping[str, str]:
        return current_owner().labels()

    async def reap(self, engine: str, environ: Mapping[str, str], ended: str) -> None:
        # Imported here: most bridges have no server in a container.
        from bridge.sandbox.container.backend import container_backend

        settings = replace(self._settings, environ=environ)
        async with container_backend(engine, settings) as backend:
            backend.ended = ended
            await reap_leftovers(backend)


@asynccontextmanager
async def open_engine(
    settings: Settings,
    *,
    finder: Finder | None = None,
    choose_backend: Callable[[Settings], Awaitable[Backend]] = select_backend,
    cwd: str | None = None,
    patient: bool = False,
    shared: SharedParts | None = None,
) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers.

    Args:
        shared: The opened parts of a bridge with several clients; by default the engine's own.
        finder: Finds servers; by default in the clients' configuration files.
        cwd: The project's directory; by default the current one.
        patient: Whether runs wait for a server that is being installed.
    """
    async with AsyncExitStack() as stack:
        if shared is None:
            shared = SharedParts(settings, choose_backend)
            await stack.enter_async_context(shared.opened())
        context = context_for(settings, cwd)
        secrets = Secrets(settings.environ, settings.secret_names)
        logins = Logins(settings.state_dir / "logins", on_tokens=secrets.login)
        environ = settings.environ
        if shared.connections.are_shared:
            environ = shared_environment(environ, str(context.cwd))
        pool = Pool(
            (),
            log_dir=settings.state_dir / "logs",
            environ=environ,
            cwd=str(context.cwd),
            call_timeout=settings.call_timeout,
            start_timeout=settings.start_timeout,
            start_patience=settings.start_patience,
            patient=patient,
            logins=logins,
            roots=settings.roots,
            server_settings=settings.server_settings,
            connections=shared.connections,
        )
        pool.containers = ServerContainers(settings)
        consents = consents_of(settings)
        servers = Servers(
            finder or ConfigFinder(context, consents),
            pool,
            ToolCache(shared.store),
            observed=LearnedShapes(shared.store),
            secrets=secrets,
            consents=consents,
            offer_login=LoginOffers(logins.store).offer,
        )
        stack.enter_context(clear_logs(secrets.redactor))
        yield await stack.enter_async_context(Engine(settings, servers, shared).opened())
