"""podman's virtual machine, where podman needs one: started if needed, and stopped when idle.

Owns the sequence of `podman` commands. A machine is stopped by the bridge that started it, and only
when no container runs there. Does not decide what podman's output means (`machine_plan`), and never
changes a machine's settings. Nothing here runs on Linux, unless podman is set up there as a remote
client of a machine.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

import anyio
from anyio.abc import TaskStatus

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.machine_command import CommandResult, CommandRunner
from bridge.sandbox.container.machine_plan import (
    Observed,
    Plan,
    concerns_machine,
    decide,
    failure,
    raced,
)

logger = logging.getLogger(__name__)

ASK_SECONDS = 30.0
"""Bound of podman's questions. They take well under a second, but podman tries a machine that
is just going down for several."""

START_SECONDS = 300.0
"""Bound of `machine start`: some 20 s usually, minutes on a first boot that lays out the disk."""

INIT_SECONDS = 1800.0
"""Bound of `machine init`, which downloads about a gigabyte."""

STOP_SECONDS = 150.0
"""Bound of `machine stop`; podman kills a machine that does not shut down within about 90 s."""

READY_POLLS = 120
"""Times podman is asked again while a machine comes up by another's hand."""

READY_POLL_SECONDS = 1.0
"""Pause between those; with their number about as long as a slow first boot."""

MAX_STEPS = 2
"""Times each command is given. Once is usual; twice when another bridge stops the machine between
our look and our start."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class MachineContext:
    """What the machine's handling needs from outside.

    Attributes:
        env: The environment podman runs with.
        podman: The command.
        idle_timeout: Seconds without a run after which a machine that we started is stopped.
        progress: Told what podman says while it starts or initialises a machine.
        clock: Seconds, monotonic.
        sleep: Waits that many seconds.
    """

    run: CommandRunner
    env: Mapping[str, str] = field(default_factory=dict)
    podman: str = "podman"
    platform: str = sys.platform
    idle_timeout: float = 300.0
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    async def ask(self, *arguments: str) -> CommandResult:
        """Run podman for a question."""
        return await self.run([self.podman, *arguments], timeout=ASK_SECONDS)

    async def tell(self, timeout: float, *arguments: str) -> CommandResult:
        """Run podman for something that takes its time."""
        if self.progress is not None:
            self.progress(f"{self.podman} {' '.join(arguments)}")
        return await self.run([self.podman, *arguments], timeout=timeout, on_line=self.progress)


async def ensure_machine(context: MachineContext) -> PodmanMachine | None:
    """Make podman answer, with its machine's help if it needs one.

    Returns:
        The machine, to be closed by the caller; None when none is involved.

    Raises:
        SandboxError: podman cannot be made to answer; the message says why.
    """
    plan = await _look(context)
    if plan.action == "none":
        return None
    machine = PodmanMachine(context, plan.machine)
    try:
        await machine.bring_up()
    except BaseException:
        await machine.aclose()
        raise
    return machine


async def _look(context: MachineContext) -> Plan:
    """Ask podman how things are and return what to do."""
    info = await context.ask("info", "--format", "json")
    if not concerns_machine(context.platform, context.env, info):
        return Plan(action="none")
    return decide(
        Observed(
            platform=context.platform,
            env=context.env,
            info=info,
            connections=await context.ask("system", "connection", "list", "--format", "json"),
            machines=await context.ask("machine", "list", "--format", "json"),
        )
    )


class PodmanMachine:
    """A podman machine, as one bridge uses it.

    Run `stop_when_idle` in a task group for as long as it is used, hold `using` around each run,
    and close it at the end. Closing stops a machine that this bridge started, unless something
    runs there: no bridge would be left to do it after the idle time.

    Attributes:
        name: What podman calls it.
        before_stop: Called before the machine is stopped, to let go of warm sandboxes.
    """

    def __init__(self, context: MachineContext, name: str) -> None:
        self.name = name
        self.before_stop: Callable[[], Awaitable[None]] | None = None
        self._context = context
        self._gate = anyio.Lock()  # bringing up and stopping exclude each other
        self._active = 0
        self._last_use = context.clock()
        self._started = False
        self._up = False
        self._closed = False

    @property
    def started_by_us(self) -> bool:
        """Whether it falls to this bridge to stop the machine."""
        return self._started

    async def __aenter__(self) -> PodmanMachine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def touch(self) -> None:
        """Note that the machine was used just now."""
        self._last_use = self._context.clock()

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        """Keep the machine up for as long as this is held; bring it up again if it was stopped.

        Raises:
            SandboxError: It did not come up.
        """
        self._active += 1
        self.touch()
        try:
            if not self._up:
                await self.bring_up()
            yield
        finally:
            self._active -= 1
            self.touch()

    def lost(self) -> None:
        """Note that the engine in the machine stopped answering, so the next use looks again.

        If somebody stopped the machine and starts it again, it is theirs and no longer ours.
        """
        self._up = False
        self._started = False

    async def bring_up(self) -> None:
        """See that podman answers, starting the machine if it does not.

        Raises:
            SandboxError: podman cannot be made to answer.
        """
        async with self._gate:
            if self._up:
                return
            await self._step_until_ready()
            self._up = True
            self.touch()

    async def _step_until_ready(self) -> None:
        given = {"init": 0, "start": 0, "wait": 0}
        most = {"init": MAX_STEPS, "start": MAX_STEPS, "wait": READY_POLLS}
        while (plan := await _look(self._context)).action not in ("ready", "none"):
            if given[plan.action] == most[plan.action]:
                raise _never_ready(plan)
            given[plan.action] += 1
            if plan.action == "wait":
                await self._context.sleep(READY_POLL_SECONDS)
            elif plan.action == "init":
                await self._command("init", INIT_SECONDS)
            elif await self._command("start", START_SECONDS):
                self._started = True
            else:
                # Somebody else's start is under way, which the machine list may not show yet.
                await self._context.sleep(READY_POLL_SECONDS)

    async def _command(self, verb: str, seconds: float) -> bool:
        """Run `podman machine VERB`; return False if another was quicker."""
        result = await self._context.tell(seconds, "machine", verb, self.name)
        if result.ok:
            return True
        if raced(result, verb, self.name):
            return False
        raise failure(result, verb, self.name)

    async def stop_when_idle(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Stop the machine after each idle period, if that is ours to do. Runs until cancelled."""
        task_status.started()
        while not self._closed:
            await self._context.sleep(self._until_idle())
            if self._until_idle() > 0:
                continue
            try:
                await self._stop_if_idle()
            except SandboxError as error:
                logger.warning("The podman machine %s was not stopped: %s", self.name, error)
            # Whatever came of it, the next look is an idle period away.
            self.touch()

    def _until_idle(self) -> float:
        """Return the seconds left until the machine counts as idle."""
        if self._active or not self._up:
            return self._context.idle_timeout
        return max(0.0, self._last_use + self._context.idle_timeout - self._context.clock())

    async def _stop_if_idle(self) -> None:
        async with self._gate:
            if self._active or not self._up:
                return
            # From here on a new run waits at the gate, then looks again at how things are. It also
            # does after a stop that failed half-way.
            self._up = False
            self._up = not await self._stop()

    async def _stop(self) -> bool:
        """Stop the machine if this bridge started it and nothing runs there; tell whether it did.

        The user, or another bridge, may have come to rely on the machine since it was started.
        """
        if not self._started:
            return False
        if self.before_stop is not None:
            await self.before_stop()
        running = await self._context.ask("ps", "--quiet")
        if not running.ok or running.stdout.strip():
            logger.info("The podman machine %s stays up: it may run containers.", self.name)
            return False
        result = await self._context.tell(STOP_SECONDS, "machine", "stop", self.name)
        if not result.ok and "does not exist" not in result.stderr:
            raise failure(result, "stop", self.name)
        self._started = False
        return True

    async def aclose(self) -> None:
        """Stop the machine if this bridge started it and nothing runs there. Idempotent; bounded.

        Never raises: a machine that could not be stopped is logged and left.
        """
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                async with self._gate:
                    self._up = False
                    await self._stop()
            except SandboxError as error:
                logger.warning("The podman machine %s was left running: %s", self.name, error)


def _never_ready(plan: Plan) -> EngineDownError:
    message = f"The podman machine {plan.machine} does not become ready."
    return EngineDownError(
        message,
        remedy=f"Run `podman machine stop {plan.machine}`, then `podman machine start "
        f"{plan.machine}`, and see what it says.",
    )
