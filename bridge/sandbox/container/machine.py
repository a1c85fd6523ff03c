"""podman's virtual machine, where podman needs one: brought up, shared, and stopped when idle.

Owns the sequence of `podman` commands, and the lease that keeps count of who uses the machine.
Does not decide what podman's output means (`machine_plan`) nor how bridges find each other
(`machine_lease`), and never changes a machine's settings. Nothing here runs on Linux, unless podman
is set up there as a remote client of a machine.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.machine_command import CommandResult, CommandRunner
from bridge.sandbox.container.machine_lease import LeaseBook, Sleep
from bridge.sandbox.container.machine_plan import (
    Observed,
    Plan,
    concerns_machine,
    decide,
    failure,
    raced,
)
from bridge.sandbox.reaper import OWNER_LABEL

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
        state_dir: The bridge's state directory, shared by all bridges of this user.
        podman: The command.
        idle_timeout: Seconds without a run after which a machine that we started is stopped.
        progress: Told what podman says while it starts or initialises a machine.
        clock: Seconds, monotonic.
        sleep: Waits that many seconds.
        lock_sleep: The same between tries for the bridges' common lock, which other processes hold
            in real time whatever the clock here says.
    """

    run: CommandRunner
    state_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)
    podman: str = "podman"
    platform: str = sys.platform
    idle_timeout: float = 300.0
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Sleep = anyio.sleep
    lock_sleep: Sleep = anyio.sleep

    async def ask(self, *arguments: str) -> CommandResult:
        """Run podman for a question."""
        return await self.run([self.podman, *arguments], timeout=ASK_SECONDS)

    async def tell(self, timeout: float, *arguments: str) -> CommandResult:
        """Run podman for something that takes its time."""
        if self.progress is not None:
            self.progress(f"{self.podman} {' '.join(arguments)}")
        return await self.run([self.podman, *arguments], timeout=timeout, on_line=self.progress)


async def ensure_machine(context: MachineContext) -> MachineLease | None:
    """Make podman answer, with its machine's help if it needs one.

    Returns:
        The lease on the machine, to be closed by the caller; None when none is involved.

    Raises:
        SandboxError: podman cannot be made to answer; the message says why.
    """
    plan = await _look(context)
    if plan.action == "none":
        return None
    lease = MachineLease(context, plan.machine)
    try:
        await lease.bring_up()
    except BaseException:
        await lease.aclose()
        raise
    return lease


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


class MachineLease:
    """One bridge's use of a podman machine.

    Run `stop_when_idle` in a task group for as long as the lease is held, hold `using` around each
    run, and close the lease at the end. Closing stops a machine that is ours and that nobody else
    uses: no bridge would be left to do it after the idle time.

    Attributes:
        machine: Its name.
        before_stop: Called before the machine is stopped for idleness, to let go of warm sandboxes.
    """

    def __init__(self, context: MachineContext, machine: str) -> None:
        self.machine = machine
        self.before_stop: Callable[[], Awaitable[None]] | None = None
        self._context = context
        self._book = LeaseBook(context.state_dir, sleep=context.lock_sleep)
        self._gate = anyio.Lock()  # bringing up and stopping exclude each other
        self._active = 0
        self._last_use = context.clock()
        self._owner = False
        self._up = False
        self._closed = False

    @property
    def started_by_us(self) -> bool:
        """Whether it falls to this bridge to stop the machine, as far as it knows."""
        return self._owner

    async def __aenter__(self) -> MachineLease:
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
        self._owner = False

    async def bring_up(self) -> None:
        """Register as a user of the machine, then see that podman answers.

        The order matters: a bridge that is about to stop the machine looks for users under the lock
        that registering takes, so it either sees us or has stopped it before we look.

        Raises:
            SandboxError: podman cannot be made to answer.
        """
        async with self._gate:
            if self._up:
                return
            async with self._book.locked():
                await self._book.write(self.machine, owner=self._owner)
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
                await self._own()
            else:
                # Somebody else's start is under way, which the machine list may not show yet.
                await self._context.sleep(READY_POLL_SECONDS)

    async def _command(self, verb: str, seconds: float) -> bool:
        """Run `podman machine VERB`; return False if another was quicker."""
        result = await self._context.tell(seconds, "machine", verb, self.machine)
        if result.ok:
            return True
        if raced(result, verb, self.machine):
            return False
        raise failure(result, verb, self.machine)

    async def _own(self) -> None:
        self._owner = True
        async with self._book.locked():
            await self._book.write(self.machine, owner=True)

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
                logger.warning("The podman machine %s was not stopped: %s", self.machine, error)
            # Whatever came of it, the next look is an idle period away.
            self.touch()

    def _until_idle(self) -> float:
        """Return the seconds left until the machine counts as idle."""
        if self._active or not self._up:
            return self._context.idle_timeout
        return max(0.0, self._last_use + self._context.idle_timeout - self._context.clock())

    async def _stop_if_idle(self) -> None:
        async with self._gate, self._book.locked():
            if self._active or not self._up:
                return
            # From here on a new run waits at the gate, then looks again at how things are. It also
            # does after a stop that failed half-way.
            self._up = False
            if await self._stop_ours():
                self._owner = False
                self._book.remove()
            else:
                self._up = True

    async def _stop_ours(self) -> bool:
        """Stop the machine if that is for this bridge to do now; return whether it did."""
        lease = self._book.own()
        # Another bridge may have handed its duty to us by now.
        self._owner = lease is not None and lease.owner
        if not self._owner or await self._book.others(self.machine):
            return False
        return await self._stop()

    async def _stop(self) -> bool:
        """Stop the machine unless it serves others; return whether it was stopped."""
        if await self._serves_others():
            return False
        if self.before_stop is not None:
            await self.before_stop()
        result = await self._context.tell(STOP_SECONDS, "machine", "stop", self.machine)
        if result.ok or "does not exist" in result.stderr:
            return True
        raise failure(result, "stop", self.machine)

    async def _serves_others(self) -> bool:
        """Return whether containers that are not a bridge's run there.

        The user may have come to rely on the machine since we started it. When podman does not say,
        the answer is yes.
        """
        result = await self._context.ask("ps", "--format", "json")
        return not result.ok or _has_foreign_container(result.stdout)

    async def aclose(self) -> None:
        """Give the lease up: hand the duty to stop on, or do it. Idempotent; bounded.

        Never raises: a machine that could not be stopped is logged and left.
        """
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                async with self._gate, self._book.locked():
                    self._up = False
                    await self._leave()
            except SandboxError as error:
                logger.warning("The podman machine %s was left running: %s", self.machine, error)

    async def _leave(self) -> None:
        try:
            lease = self._book.own()
            if lease is None or not lease.owner:
                return
            if others := await self._book.others(self.machine):
                self._book.hand_over(others[0])
            elif not await self._stop():
                logger.info("The podman machine %s stays up: it runs containers.", self.machine)
        finally:
            self._book.remove()


def _has_foreign_container(text: str) -> bool:
    try:
        rows: Any = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return True
    if rows is None:
        return False
    if not isinstance(rows, list):
        return True
    return not all(isinstance(row, dict) and _is_ours(row.get("Labels")) for row in rows)


def _is_ours(labels: object) -> bool:
    return isinstance(labels, dict) and OWNER_LABEL in labels


def _never_ready(plan: Plan) -> EngineDownError:
    message = f"The podman machine {plan.machine} does not become ready."
    return EngineDownError(
        message,
        remedy=f"Run `podman machine stop {plan.machine}`, then `podman machine start "
        f"{plan.machine}`, and see what it says.",
    )
