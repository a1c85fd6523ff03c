"""Starts, observes and removes one container."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from bridge.errors import ChannelClosedError, EngineDownError, SandboxError
from bridge.model import Isolation, Json
from bridge.sandbox.backend import ExitReport, code_and_signal
from bridge.sandbox.container import hardening
from bridge.sandbox.container.api import AttachedStream, EngineApi
from bridge.sandbox.layers import of_command, require_mandatory_layers
from bridge.sandbox.probe import probe_argv, receive_facts

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 30.0  # A removal takes 0.5 s; after a failure the next launch tries again.


def pauses() -> Iterator[float]:
    pause = 0.01
    while True:
        yield pause
        pause = min(pause * 2, 1.0)


@dataclass
class ContainerSandbox:
    api: EngineApi
    id: str
    stream: AttachedStream
    isolation: Isolation
    reports_oom: bool
    _refused: bool = False
    _ending: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.send, self.end_input = self.stream.send, self.stream.end_input

    async def end_output(self) -> None:
        """Kill the command: its outputs share a connection, so stdout cannot be closed alone."""
        self._refused = True
        self.stream.close()
        await self.kill()

    async def receive(self) -> bytes:
        data = b"" if self._refused else await self.stream.receive()
        if not data:
            self._ending.set()
        return data

    def diagnostics(self) -> str:
        return self.stream.stderr

    async def kill(self) -> None:
        await self.api.kill(self.id)
        self._ending.set()

    async def wait(self) -> ExitReport:
        hurried, pause = False, pauses()
        while True:
            seen = await self.api.inspect(self.id)
            if seen is None:
                return ExitReport(detail="The container was removed from outside.")
            report = exit_report(seen.get("State") or {}, reports_oom=self.reports_oom)
            if report is not None:
                return report
            if self._ending.is_set() and not hurried:
                hurried, pause = True, pauses()
            if hurried:
                await anyio.sleep(next(pause))
            else:
                with anyio.move_on_after(next(pause)):
                    await self._ending.wait()


def exit_report(state: Mapping[str, Json], *, reports_oom: bool) -> ExitReport | None:
    """Return the first process's end, from an engine's `State`; None while it runs."""
    if state.get("Running") or state.get("Status") in ("created", "running", "paused"):
        return None
    status = state.get("ExitCode")
    code, signal = code_and_signal(status) if isinstance(status, int) else (None, None)
    oom = bool(state.get("OOMKilled"))
    return ExitReport(
        exit_code=code,
        signal=signal,
        # Engines do not report the host's OOM killer, which acts without a memory limit.
        oom_killed=oom if oom or reports_oom else None,
        detail=str(state.get("Error") or ""),
    )


@asynccontextmanager
async def run_container(
    api: EngineApi,
    name: str,
    config: Mapping[str, Json],
    *,
    isolation: Isolation,
    not_removed: Callable[[str], None],
    reports_oom: bool = False,
    separate_streams: bool = False,
    drained: bool = False,
) -> AsyncIterator[ContainerSandbox]:
    """Start a container with a unique name; remove it on leaving.

    Args:
        not_removed: Called with the name if the engine does not remove it.
        separate_streams: Passed to `EngineApi.attach`.
        drained: Whether to read the output until the removal. OpenSSH does not report the end of a
            connection that is full in both directions, and the engine's monitor would wait.
    """
    stream: AttachedStream | None = None
    try:
        container = await api.create(config, name)
        # Attach first, so that no output is missed: there is no log to read it from later.
        stream = await api.attach(container, separately=separate_streams)
        await api.start(container)
        yield ContainerSandbox(api, container, stream, isolation=isolation, reports_oom=reports_oom)
    finally:
        if stream is not None and not drained:
            stream.close()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                if stream is not None and drained:
                    tasks.start_soon(stream.discard)
                # By name, which is known even if the answer to the creation was lost.
                if not await remove_with_retries(api, name):
                    not_removed(name)
                tasks.cancel_scope.cancel()
        if stream is not None:
            stream.close()


async def remove_with_retries(api: EngineApi, name: str) -> bool:
    """Remove a container, even when cancelled; return whether it is gone.

    podman refuses to remove a container that is ending, so this tries again.
    """
    refusal = f"no answer within {REMOVE_SECONDS:g} s"
    with anyio.CancelScope(shield=True), anyio.move_on_after(REMOVE_SECONDS):
        for pause in pauses():
            try:
                await api.remove(name)
                return True
            except EngineDownError as error:
                refusal = error.message
                break
            except SandboxError as error:
                refusal = error.message
                await anyio.sleep(pause)
    logger.warning("%s was not removed: %s", name, refusal)
    return False


UNEXAMINED = "verification: not examined from inside, since the image has no usable python3"

# The fields of a create call's body that decide how its container is isolated.
_SHAPING = ("Image", "User", "NetworkDisabled", "HostConfig")

_NO_PYTHON = re.compile(
    r"python3.{0,80}(not found|no such file)|(not found|error finding).{0,80}python3",
    re.IGNORECASE | re.DOTALL,
)

# Facts by the `_SHAPING` fields, as JSON; None if an image has no Python.
Examinations = dict[str, Mapping[str, Any] | None]


async def examined_isolation(
    api: EngineApi,
    config: Mapping[str, Json],
    isolation: Isolation,
    examinations: Examinations,
    not_removed: Callable[[str], None],
) -> Isolation:
    """Return a container's isolation, as seen from inside one with the same configuration."""
    key = json.dumps([config[name] for name in _SHAPING], sort_keys=True)
    if key not in examinations:
        examinations[key] = await look_inside(api, config, not_removed)
    return judge_facts(isolation, examinations[key])


def judge_facts(isolation: Isolation, facts: Mapping[str, Any] | None) -> Isolation:
    if facts is None:
        require_mandatory_layers(isolation, {})
        return replace(isolation, weaker=(*isolation.weaker, UNEXAMINED), host_kernel=None)
    return of_command(isolation, facts)


def examination_config(config: Mapping[str, Json]) -> dict[str, Json]:
    # That attempt would write to the user's workspace; the mount options show the layer too.
    argv = probe_argv(untried=("sized-tmpfs-noexec",))
    return {**config, "Entrypoint": list(argv), "Cmd": [], "Env": [], "WorkingDir": "/"}


async def look_inside(
    api: EngineApi, config: Mapping[str, Json], not_removed: Callable[[str], None]
) -> Mapping[str, Any] | None:
    """Run the probe in a container and return its facts; None if the image has no Python."""
    name = hardening.container_name("look", secrets.token_hex(4))
    asked, unknown = examination_config(config), Isolation(backend="")
    run = run_container(api, name, asked, isolation=unknown, not_removed=not_removed)
    try:
        async with run as sandbox:
            with anyio.move_on_after(60.0):
                return await receive_facts(sandbox)
    except ChannelClosedError:
        return None  # the image's python3 is not a usable Python
    except SandboxError as error:
        if not lacks_python(error.message):
            raise
    return None


def lacks_python(said: str) -> bool:
    return _NO_PYTHON.search(said) is not None
