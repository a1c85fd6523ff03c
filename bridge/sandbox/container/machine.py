"""podman's virtual machine, where podman needs one: started if needed, stopped when idle.

Owns the sequence of `podman` commands and parsing their output. A machine is stopped only by the
bridge that started it, and only when no container runs there. None is created, and a machine's
settings (rootful or not, volumes, CPUs) are never changed. Nothing here runs on Linux, unless
podman is set up there as a remote client of a machine.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.abc import TaskStatus

from bridge.errors import EngineDownError, EngineNotFoundError, SandboxError
from bridge.sandbox.container.command_runner import CommandResult, SystemRunner

DEFAULT_MACHINE = "podman-machine-default"
"""The name podman gives to a machine when it is told none."""

DETAIL_CHARS = 500  # Most of podman's own words that an error repeats.

MACHINE_PLATFORMS = frozenset({"darwin", "win32", "cygwin"})
"""Where containers cannot run without a virtual machine."""

_ALREADY_UP = re.compile(
    r"already running|already starting or running|already in the process of being started"
    r"|only one VM can be active"
)

_OTHER_UP = (
    re.compile(r"VM (?P<name>\S+) is currently running or starting: only one VM"),
    re.compile(r"(?P<name>\S+) already starting or running"),
    re.compile(r"machine (?P<name>\S+): VM already running"),
)


Action = Literal["none", "ready", "wait", "start"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One line of `podman machine list`."""

    name: str
    default: bool
    running: bool
    starting: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The next step.

    Attributes:
        action: "none": nothing, podman works without a machine. "ready": the machine is up.
            "wait": another process is starting it. "start": run podman's command.
        machine: Its name; empty for "none".
    """

    action: Action
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """podman's answers so far.

    Attributes:
        platform: `sys.platform`.
        env: The environment podman runs with; it may name another engine.
        info: `podman info --format json`.
        connections: `podman system connection list --format json`; None when not asked.
        machines: `podman machine list --format json`; None when not asked.
    """

    platform: str
    env: Mapping[str, str]
    info: CommandResult
    connections: CommandResult | None = None
    machines: CommandResult | None = None


def concerns_machine(platform: str, env: Mapping[str, str], info: CommandResult) -> bool:
    """Return whether a machine can have anything to do with how podman answered.

    On Linux podman runs containers itself unless it was told to be a remote client, which shows
    when it cannot connect. A user who names a host or a connection in the environment has an
    engine of their own somewhere, and a machine would not be it.

    Raises:
        EngineNotFoundError: There is no podman.
    """
    if info.missing:
        message = "podman is not installed."
        raise EngineNotFoundError(message, remedy="Install podman; see podman.io/docs/installation")
    if env.get("CONTAINER_HOST") or env.get("CONTAINER_CONNECTION"):
        return False
    if platform in MACHINE_PLATFORMS:
        return True
    # Only podman's remote client prints this.
    return not info.ok and "Cannot connect to Podman" in info.stderr + info.stdout


def decide(seen: Observed) -> Plan:
    """Return the next step towards a podman that answers.

    Raises:
        SandboxError: No step of ours would help; the message says why.
    """
    if not concerns_machine(seen.platform, seen.env, seen.info):
        return Plan(action="none")
    if _connects_elsewhere(seen.connections):
        if seen.info.ok:
            return Plan(action="none")
        raise _remote_engine_down(seen.info)
    machines = parse_machines(seen.machines)
    chosen = _choose(machines, _connected_machine(seen.connections))
    if seen.info.ok:
        if chosen is None:
            return Plan(action="none")
        return Plan(action="ready", machine=chosen.name)
    if seen.info.timed_out:
        message = "podman did not answer in time."
        raise EngineDownError(message, remedy="Restart its machine: `podman machine stop`, `start`")
    if chosen is None:
        if machines:
            raise _ambiguous(machines)
        if seen.platform not in MACHINE_PLATFORMS:
            # Linux in remote mode: a local podman is one package away, a VM is not called for.
            raise _remote_engine_down(seen.info)
        message = "podman has no machine."
        remedy = "Make one with `podman machine init`, which downloads about a gigabyte."
        raise EngineDownError(message, remedy=remedy)
    if chosen.running or chosen.starting:
        return Plan(action="wait", machine=chosen.name)
    return Plan(action="start", machine=chosen.name)


def parse_machines(result: CommandResult | None) -> tuple[Machine, ...]:
    """Return the machines of `podman machine list --format json`.

    Raises:
        EngineDownError: podman refused to list them, or printed something else.
    """
    if result is None:
        return ()
    if not result.ok:
        raise failure(result, "list")
    rows = _json_list(result.stdout)
    if rows is None:
        message = f"`podman machine list` printed no JSON list: {_cut(result.stdout)}"
        raise EngineDownError(message, remedy="Update podman.")
    return tuple(
        Machine(
            # The table marks the default with a star, and some versions did so in JSON.
            name=row["Name"].rstrip("*"),
            default=row.get("Default") is True,
            running=row.get("Running") is True,
            starting=row.get("Starting") is True,
        )
        for row in rows
        if isinstance(row.get("Name"), str) and row["Name"]
    )


def raced(result: CommandResult, verb: str, machine: str) -> bool:
    """Return whether a command failed only because another process was quicker."""
    said = result.stderr + result.stdout
    # podman 4 on macOS: the machine's process survived a failed stop; waiting does not help.
    if verb == "start" and _ALREADY_UP.search(said) and "another instance of" not in said:
        return other_machine(machine, said) is None
    return False


def other_machine(machine: str, said: str) -> str | None:
    """Return the machine that podman says is in the way of ours, if it names one."""
    for pattern in _OTHER_UP:
        if match := pattern.search(said):
            name = match["name"].strip('":')
            return None if name == machine else name
    return None


def failure(result: CommandResult, verb: str, machine: str = "") -> SandboxError:
    """Return the error for a `podman machine` command that failed."""
    said = result.stderr + "\n" + result.stdout
    command = f"podman machine {verb} {machine}".strip()
    if result.timed_out:
        message = f"`{command}` did not finish in time."
        return EngineDownError(message, remedy=f"Run `{command}` yourself and see where it stops.")
    message = f"`{command}` failed: {_cut(_reason(result))}"
    remedy = f"Run `{command}` yourself to see all it says."
    if other := other_machine(machine, said):
        remedy = (
            f"The machine {other} runs instead: use it with `podman system connection default "
            f"{other}`, or stop it with `podman machine stop {other}`."
        )
    return EngineDownError(message, remedy=remedy)


def _choose(machines: tuple[Machine, ...], connected: str | None) -> Machine | None:
    """Return the machine podman talks to: its connection's, the marked, the usual, or the only."""
    named = {machine.name: machine for machine in machines}
    if connected is not None and connected in named:
        return named[connected]
    for machine in machines:
        if machine.default:
            return machine
    if DEFAULT_MACHINE in named:
        return named[DEFAULT_MACHINE]
    return machines[0] if len(machines) == 1 else None


def _default_connection(result: CommandResult | None) -> Mapping[str, Any] | None:
    if result is None or not result.ok:
        return None
    for row in _json_list(result.stdout) or ():
        if row.get("Default") is True:
            return row
    return None


def _connects_elsewhere(result: CommandResult | None) -> bool:
    row = _default_connection(result)
    # Versions before 4.1 do not say; then the machine list decides.
    return row is not None and row.get("IsMachine") is False


def _connected_machine(result: CommandResult | None) -> str | None:
    row = _default_connection(result)
    if row is None or not isinstance(row.get("Name"), str):
        return None
    # A machine has two connections: its own name, and one for root's socket inside it.
    name: str = row["Name"].rstrip("*")
    return name.removesuffix("-root")


def _json_list(text: str) -> list[Mapping[str, Any]] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if value is None:  # some versions print null for an empty list
        return []
    if not isinstance(value, list):
        return None
    return [row for row in value if isinstance(row, dict)]


def _remote_engine_down(info: CommandResult) -> EngineDownError:
    message = f"podman cannot reach the engine it is set to use: {_cut(_reason(info))}"
    return EngineDownError(message, remedy="See `podman system connection list`.")


def _ambiguous(machines: tuple[Machine, ...]) -> EngineDownError:
    names = ", ".join(machine.name for machine in machines[:10])
    message = f"podman has several machines and none is the default: {names}."
    return EngineDownError(message, remedy="Start the one to use: `podman machine start NAME`.")


def _reason(result: CommandResult) -> str:
    """Return the line that says why: podman's last "Error:" line, or whatever there is."""
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines()]
    for line in reversed(lines):
        if line.startswith("Error:"):
            return line.removeprefix("Error:").strip()
    return next((line for line in reversed(lines) if line), "it wrote nothing")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_CHARS else text[: DETAIL_CHARS - 1] + "…"


logger = logging.getLogger(__name__)

ASK_SECONDS = 30.0
"""Bound of podman's questions. They take well under a second, but podman tries a machine that
is just going down for several."""

START_SECONDS = 300.0
"""Bound of `machine start`: some 20 s usually, minutes on a first boot that lays out the disk."""

STOP_SECONDS = 150.0
"""Bound of `machine stop`; podman kills a machine that does not shut down within about 90 s."""

READY_POLLS = 120  # Times podman is asked again while a machine comes up by another's hand.

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
        progress: Called with podman's output while it starts a machine.
        clock: Seconds, monotonic.
        sleep: Waits that many seconds.
    """

    run: SystemRunner
    env: Mapping[str, str] = field(default_factory=dict)
    podman: str = "podman"
    platform: str = sys.platform
    idle_timeout: float = 300.0
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    async def ask(self, *arguments: str) -> CommandResult:
        return await self.run([self.podman, *arguments], timeout=ASK_SECONDS)

    async def run_slowly(self, timeout: float, *arguments: str) -> CommandResult:
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
    """Query podman and return the next step."""
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
        self.started_by_us = False
        self._up = False
        self._closed = False

    async def __aenter__(self) -> PodmanMachine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def touch(self) -> None:
        """Note that the machine was used just now."""
        self._last_use = self._context.clock()

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        """Keep the machine up for as long as this is held; bring it up again if it was stopped."""
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
        self.started_by_us = False

    async def bring_up(self) -> None:
        """Make podman answer, starting the machine if it does not.

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
        given = {"start": 0, "wait": 0}
        most = {"start": MAX_STEPS, "wait": READY_POLLS}
        while (plan := await _look(self._context)).action not in ("ready", "none"):
            if given[plan.action] == most[plan.action]:
                raise _never_ready(plan)
            given[plan.action] += 1
            if plan.action == "wait":
                await self._context.sleep(READY_POLL_SECONDS)
            elif await self._start():
                self.started_by_us = True
            else:
                # Another process is starting it, which the machine list may not show yet.
                await self._context.sleep(READY_POLL_SECONDS)

    async def _start(self) -> bool:
        """Run `podman machine start`; return False if another was quicker."""
        result = await self._context.run_slowly(START_SECONDS, "machine", "start", self.name)
        if result.ok:
            return True
        if raced(result, "start", self.name):
            return False
        raise failure(result, "start", self.name)

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
        if not self.started_by_us:
            return False
        if self.before_stop is not None:
            await self.before_stop()
        running = await self._context.ask("ps", "--quiet")
        if not running.ok or running.stdout.strip():
            logger.info("The podman machine %s stays up: it may run containers.", self.name)
            return False
        result = await self._context.run_slowly(STOP_SECONDS, "machine", "stop", self.name)
        if not result.ok and "does not exist" not in result.stderr:
            raise failure(result, "stop", self.name)
        self.started_by_us = False
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
