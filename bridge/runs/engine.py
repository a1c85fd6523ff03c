"""The engine: all parts of a bridge, in the order in which they open and close."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial

import anyio

from bridge.artifacts import store_for
from bridge.callers.client import Client, RunCaller
from bridge.commands.runner import Commands
from bridge.errors import BridgeError
from bridge.gate.result_redaction import clear_value
from bridge.gate.server_starts import StartApprover
from bridge.gate.services import GateServices
from bridge.inventory.guide import GuestGuide
from bridge.inventory.servers import Servers
from bridge.model import ApplyRequest, RunRequest, RunResult
from bridge.packages.packages import Packages
from bridge.plans.executor import PlanExecutor
from bridge.plans.plan_store import Plans
from bridge.runs.admission import Admission
from bridge.runs.execution import Parts
from bridge.runs.program import save_state
from bridge.runs.records import RunRecord, RunRecords
from bridge.runs.runner import Runner
from bridge.runs.sandboxes import Sandboxes
from bridge.runs.suspended_runs import MAX_WAITING, SuspendedRuns
from bridge.sandbox.backend import Backend
from bridge.sandbox.limits import limits_for
from bridge.sandbox.process.host import usable_cpus
from bridge.sandbox.run_queue import RunQueue, default_runs, usable_memory
from bridge.saved_functions.skills import Skills
from bridge.sessions import Sessions
from bridge.settings import Settings, store_of
from bridge.store.heartbeat import Heartbeat
from bridge.tasks import background_task
from bridge.upstream.client_features import current_caller

logger = logging.getLogger(__name__)


class Engine:
    """An engine that runs programs while it is `opened`."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        choose_backend: Callable[[Settings], Awaitable[Backend]],
    ) -> None:
        self.settings = settings
        self.servers = servers
        self.sandboxes = Sandboxes(settings, choose_backend)
        self.packages = Packages(settings, self.sandboxes)
        permanent = self.sandboxes.reserve_permanent
        self.sessions = Sessions(
            settings, permanent, store_of(settings), self.packages.resolve, save_state
        )
        self.queue = RunQueue(runs := _runs_at_once(settings))
        # Runs that wait for a user take at most half of the slots.
        self.suspended = SuspendedRuns(min(MAX_WAITING, max(1, runs // 2)), settings.replica)
        self.under_way = UnderWay(settings.replica)
        self.heartbeat = Heartbeat(store_of(settings), settings.replica)
        self.artifacts = store_for(settings)
        self.records = RunRecords(settings, partial(clear_value, redactor=servers.secrets.redactor))
        self.plans = Plans(store_of(settings))
        self.gate = GateServices(
            settings,
            servers,
            servers.secrets.redactor,
            _current_asker,
            self.plans.knows,
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
        parts = Parts(
            servers=servers,
            guide=self.guide,
            skills=self.skills,
            artifacts=self.artifacts,
            packages=self.packages,
            sandboxes=self.sandboxes,
            plans=self.plans,
        )
        self._runner = Runner(
            parts,
            Admission(settings, parts, self.sessions, self.gate),
            self.queue,
            self.sessions,
            self.records,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """Open all parts; leaving ends every sandbox and every server that it started."""
        # All hold task groups, so they are entered here, in the task that will leave them, and
        # not when a run first needs them. Entering starts neither a server nor a sandbox.
        async with AsyncExitStack() as stack:
            stack.callback(self.gate.audit.close)
            for part in (
                self.gate.ongoing_calls.open(),
                self.servers,
                self.commands,
                self.sandboxes.opened(),
                self.sessions,
                self.suspended.opened(),
                background_task(self.artifacts.tidy_periodically),
                background_task(self.heartbeat.beat),
            ):
                await stack.enter_async_context(part)
            yield self

    async def backend(self) -> Backend:
        """Return the backend in use; see `Sandboxes.backend`."""
        return await self.sandboxes.backend()

    async def run(self, request: RunRequest, client: Client | None = None) -> RunResult:
        """Run a program and return its result; see `Runner.run`."""
        with self._serving():
            return await self._runner.run(request, client)

    async def apply(self, request: ApplyRequest, client: Client | None = None) -> RunResult:
        """Make the held calls of a plan after the user has approved exactly those.

        Raises:
            UnknownError: There is no such plan for this caller.
            RefusedError: It was not approved.
        """
        with self._serving():
            return await self._runner.with_record(request, client, self._apply)

    def _serving(self) -> AbstractContextManager[None]:
        for word in ("schema", "clock"):
            if problem := self.heartbeat.problems.get(word):
                message = f"This bridge begins no runs: {problem}. Nothing was run."
                raise BridgeError(message, remedy="Ask another bridge.", code="draining")
        return self.under_way.one()

    async def _apply(
        self, request: ApplyRequest, caller: RunCaller, record: RunRecord
    ) -> RunResult:
        await self.servers.refresh()
        await record.begin()
        return await self.plan_executor.apply(request, caller)


def _runs_at_once(settings: Settings) -> int:
    memory = limits_for(settings).memory_bytes
    return settings.runs or default_runs(usable_cpus(), usable_memory(), memory)


def _current_asker() -> StartApprover | None:
    caller = current_caller()
    return caller.asker if isinstance(caller, RunCaller) else None


LOOK_SECONDS = 0.05  # Between looks at whether anything is left.


class UnderWay:
    """The running runs; at shutdown each of them gets a typed error as its result.

    Args:
        replica: This process's name among several; empty if it is alone.
    """

    def __init__(self, replica: str = "") -> None:
        self.draining = False
        self._called = f"replica {replica!r} of the bridge" if replica else "bridge"
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def count(self) -> int:
        return len(self._scopes)

    @contextmanager
    def one(self) -> Iterator[None]:
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
        """Let no more runs begin, wait for those there are, and end what is left.

        Args:
            seconds: How long runs may take to end by themselves.
            waits: Returns whether something else must be awaited too.
        """
        self.draining = True

        async def none_left() -> None:
            while self._scopes or waits():  # noqa: ASYNC110 - `waits` announces nothing
                await anyio.sleep(LOOK_SECONDS)

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
