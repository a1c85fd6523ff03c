"""Starts podman's virtual machine if podman needs it, and stops an idle one.

Only the bridge that started a machine stops it, and only if no container runs there. The bridge
creates no machine and changes no settings of one. On Linux it only serves a remote podman client.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import anyio

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.endpoints import EngineEndpoint
from bridge.sandbox.container.faults import one_line

logger = logging.getLogger(__name__)

READY_POLLS = 120  # Looks, a second apart, at a machine that another process starts.
_MACHINE_PLATFORMS = ("darwin", "win32", "cygwin")  # Systems where containers need a machine.
_JSON = ("--format", "json")

Action = Literal["none", "ready", "wait", "start"]


class MachinePlan(NamedTuple):
    """The next step, and the machine's name; "none" if podman needs no machine."""

    action: Action
    machine: str = ""


def concerns_machine(platform: str, env: Mapping[str, str], info: CompletedCommand) -> bool:
    """Return whether podman's answer may depend on a machine; on Linux a remote client's may."""
    if info.missing:
        remedy = "Install podman; see podman.io/docs/installation"
        raise SandboxError("podman is not installed.", remedy=remedy, code="engine_not_found")
    if env.get("CONTAINER_HOST") or env.get("CONTAINER_CONNECTION"):
        return False  # The user names another engine.
    # Only podman's remote client prints this.
    unconnected = not info.ok and "Cannot connect to Podman" in info.stderr + info.stdout
    return platform in _MACHINE_PLATFORMS or unconnected


def decide(
    platform: str, info: CompletedCommand, connections: CompletedCommand, machines: CompletedCommand
) -> MachinePlan:
    """Return the next step towards a podman that answers, from the output of three commands."""
    default = next((row for row in _rows(connections) or () if row.get("Default") is True), {})
    # Versions before 4.1 do not report it; then the list of machines decides.
    remote = default.get("IsMachine") is False
    if remote and not info.ok:
        raise _remote_engine_down(info)
    listed = [] if remote else _rows(machines)
    if listed is None and machines.ok:
        message = f"`podman machine list` printed no JSON list: {one_line(machines.stdout)}"
        raise EngineDownError(message, remedy="Update podman.")
    if listed is None:
        raise failure(machines, "list")
    rows = [row for row in listed if isinstance(row.get("Name"), str) and row["Name"]]
    chosen = _choose(rows, str(default.get("Name") or ""))
    if info.ok:
        return MachinePlan("ready", _name(chosen)) if chosen else MachinePlan("none")
    if info.timed_out:
        message = "podman did not answer in time."
        raise EngineDownError(message, remedy="Restart its machine: `podman machine stop`, `start`")
    if chosen:
        up = chosen.get("Running") is True or chosen.get("Starting") is True
        return MachinePlan("wait" if up else "start", _name(chosen))
    if rows:
        names = ", ".join(map(_name, rows[:10]))
        message = f"podman has several machines and none is the default: {names}."
        raise EngineDownError(message, remedy="Start the one to use: `podman machine start NAME`.")
    if platform not in _MACHINE_PLATFORMS:
        # On Linux a local podman is better than a new machine.
        raise _remote_engine_down(info)
    remedy = "Make one with `podman machine init`, which downloads about a gigabyte."
    raise EngineDownError("podman has no machine.", remedy=remedy)


def failure(result: CompletedCommand, verb: str, machine: str = "") -> EngineDownError:
    command = f"podman machine {verb} {machine}".strip()
    remedy = f"Run `{command}` yourself to see its whole output."
    if verb == "start":
        remedy += " If another machine runs, stop that with `podman machine stop NAME` first."
    return EngineDownError(f"`{command}` failed: {_reason(result)}", remedy=remedy)


def _name(row: Mapping[str, Any]) -> str:
    # Some versions mark the default with a star, as in the table.
    return str(row["Name"]).rstrip("*")


def _choose(rows: list[Mapping[str, Any]], connection: str) -> Mapping[str, Any] | None:
    """Return podman's machine: its connection's, the marked, the usual or the only one."""
    named = {_name(row): row for row in rows}
    # A machine has two connections: its own name, and one for root's socket inside it.
    by_connection = named.get(connection.rstrip("*").removesuffix("-root"))
    marked = next((row for row in rows if row.get("Default") is True), None)
    only = rows[0] if len(rows) == 1 else None
    return by_connection or marked or named.get("podman-machine-default") or only


def _rows(result: CompletedCommand) -> list[Mapping[str, Any]] | None:
    if not result.ok:
        return None
    try:
        value = json.loads(result.stdout)
    except (ValueError, RecursionError):
        return None
    if value is None:  # some versions print null for an empty list
        return []
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else None


def _remote_engine_down(info: CompletedCommand) -> EngineDownError:
    message = f"podman cannot reach the engine it is set to use: {_reason(info)}"
    return EngineDownError(message, remedy="See `podman system connection list`.")


def _reason(result: CompletedCommand) -> str:
    if result.timed_out:
        return "it did not finish in time"
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines()]
    errors = [line.removeprefix("Error:").strip() for line in lines if line.startswith("Error:")]
    return one_line((errors or [line for line in lines if line] or ["it wrote nothing"])[-1])


@dataclass(frozen=True, kw_only=True)
class MachineContext:
    """podman's command, its environment and a clock."""

    run: SystemRunner
    env: Mapping[str, str] = field(default_factory=dict)
    podman: str = "podman"
    platform: str = sys.platform
    # Seconds without a run after which the bridge stops a machine that it started.
    idle_timeout: float = 300.0
    clock: Callable[[], float] = time.monotonic  # Seconds, monotonic.
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    async def ask(self, *arguments: str) -> CompletedCommand:
        # Answers take less than a second, but seconds while a machine stops.
        return await self.run([self.podman, *arguments], timeout=30.0)

    async def command(self, verb: str, machine: str) -> CompletedCommand:
        argv = [self.podman, "machine", verb, machine]
        logger.info(" ".join(argv))
        return await self.run(argv, timeout=300.0, on_line=logger.info)

    async def look(self) -> MachinePlan:
        info = await self.ask("info", *_JSON)
        if not concerns_machine(self.platform, self.env, info):
            return MachinePlan("none")
        connections = await self.ask("system", "connection", "list", *_JSON)
        return decide(self.platform, info, connections, await self.ask("machine", "list", *_JSON))


async def ensure_machine(context: MachineContext) -> PodmanMachine | None:
    """Make podman answer; return its machine, which the caller closes, or None."""
    plan = await context.look()
    if plan.action == "none":
        return None
    machine = PodmanMachine(context, plan.machine)
    try:
        await machine.bring_up()
    except BaseException:
        await machine.aclose()
        raise
    return machine


class PodmanMachine:
    """A podman machine; `before_stop` removes warm sandboxes before it is stopped."""

    def __init__(self, context: MachineContext, name: str) -> None:
        self.name = name
        self.before_stop: Callable[[], Awaitable[None]] | None = None
        self.started_by_us = False
        self._context = context
        self._gate = anyio.Lock()  # for starting and stopping
        self._active = 0
        self._last_use = context.clock()
        self._up = False
        self._closed = False

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        self._active += 1
        try:
            await self.bring_up()
            yield
        finally:
            self._active -= 1
            self._last_use = self._context.clock()

    def lost(self) -> None:
        """Record that the engine is gone. The bridge does not stop a restarted machine."""
        self._up = False
        self.started_by_us = False

    async def endpoint(self) -> EngineEndpoint:
        """Start the machine if needed; return the endpoint of its forwarded socket."""
        await self.bring_up()
        template = "{{.ConnectionInfo.PodmanSocket.Path}}"
        result = await self._context.ask("machine", "inspect", "--format", template, self.name)
        path = result.stdout.strip()
        if not result.ok or not path.startswith("/"):
            raise failure(result, "inspect", self.name)
        origin = f"podman machine {self.name}"
        return EngineEndpoint(url=f"unix://{path}", origin=origin, explicit=True)

    async def bring_up(self) -> None:
        async with self._gate:
            if self._up:
                return
            await self._step_until_ready()
            self._up = True
            self._last_use = self._context.clock()

    async def _step_until_ready(self) -> None:
        results: list[CompletedCommand] = []
        for _ in range(READY_POLLS):
            plan = await self._context.look()
            if plan.action in ("ready", "none"):
                return
            if plan.action == "start":
                # If another process started it first, the next look shows it.
                if results and not results[-1].ok:
                    raise failure(results[-1], "start", self.name)
                if len(results) == 2:  # another bridge keeps stopping it
                    break
                results.append(await self._context.command("start", self.name))
                self.started_by_us = results[-1].ok
            await self._context.sleep(1.0)
        stop, start = (f"`podman machine {verb} {self.name}`" for verb in ("stop", "start"))
        message = f"The podman machine {self.name} does not become ready."
        raise EngineDownError(message, remedy=f"Run {stop}, then {start}, and read its output.")

    async def stop_when_idle(self) -> None:
        """Stop the machine after each idle period if this bridge started it, until cancelled."""
        context, idle = self._context, self._context.idle_timeout
        while not self._closed:
            await context.sleep(max(0.0, self._last_use + idle - context.clock()))
            if context.clock() - self._last_use < idle:
                continue
            await self._try_to_stop("was not stopped", unless_used=True)
            # After any result, wait for another idle period.
            self._last_use = context.clock()

    async def aclose(self) -> None:
        """Stop the machine if this bridge started it and no container runs. Never raises."""
        if not self._closed:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await self._try_to_stop("was left running")

    async def _try_to_stop(self, otherwise: str, *, unless_used: bool = False) -> None:
        """Stop the machine if this bridge started it and no container of others runs."""
        async with self._gate:
            if not self.started_by_us or (unless_used and (self._active or not self._up)):
                return
            # A new run now waits at the gate, then looks again, also after a failed stop.
            self._up = False
            try:
                if self.before_stop is not None:
                    await self.before_stop()
                running = await self._context.ask("ps", "--quiet")
                if not running.ok or running.stdout.strip():
                    logger.info("The podman machine %s stays up: it may run containers.", self.name)
                    self._up = True
                    return
                result = await self._context.command("stop", self.name)
                if not result.ok and "does not exist" not in result.stderr:
                    raise failure(result, "stop", self.name)
                self.started_by_us = False
            except SandboxError as error:
                logger.warning("The podman machine %s %s: %s", self.name, otherwise, error)
