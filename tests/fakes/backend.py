"""A backend that isolates nothing: the process runs on this machine, as this user. Tests only.

It keeps the contract of `bridge.sandbox.backend` (the contract suite runs on it first), with the
traits that matter of the real ones: output is read only when somebody asks for it, stderr comes
along with stdout, and the end of the first process is the end of everything it started.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
from anyio.abc import Process

from bridge.errors import ChannelClosedError, LaunchError, SandboxError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport, LaunchSpec, Probe, Sandbox

READ_BYTES = 256 * 1024
DIAGNOSTIC_BYTES = 16 * 1024
ISOLATION = Isolation(backend="fake", weaker=("everything: this is a process of the host",))


@dataclass
class _Channel:
    """Our ends of a process's three pipes, none of which block."""

    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor >= 0:
                with suppress(OSError):
                    anyio.notify_closing(descriptor)
                os.close(descriptor)
        self.stdin = self.stdout = self.stderr = -1


class FakeSandbox:
    """A local process in a group of its own."""

    def __init__(self, process: Process, channel: _Channel) -> None:
        self._process = process
        self._channel = channel
        self._stderr = b""
        self._stderr_open = True
        self._swept = False

    @property
    def id(self) -> str:
        return str(self._process.pid)

    @property
    def isolation(self) -> Isolation:
        return ISOLATION

    async def send(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._channel.stdin, view) :]
            except BlockingIOError:
                await _wait_ready(anyio.wait_writable, self._channel.stdin)
            except OSError as error:
                message = f"The process does not read any more: {error}."
                raise ChannelClosedError(message) from error

    def end_input(self) -> None:
        if self._channel.stdin >= 0:
            os.close(self._channel.stdin)
            self._channel.stdin = -1

    async def end_output(self) -> None:
        """End it, as engines do."""
        await self.kill()

    async def receive(self) -> bytes:
        while True:
            await anyio.lowlevel.checkpoint()
            self._drain_stderr()
            try:
                data = _read(self._channel.stdout)
            except OSError as error:
                message = f"The process's output cannot be read: {error}."
                raise ChannelClosedError(message) from error
            if data is not None:
                self._drain_stderr()
                return data
            await self._something()

    def diagnostics(self) -> str:
        self._drain_stderr()
        return self._stderr.decode("utf-8", "backslashreplace")

    async def kill(self) -> None:
        self._sweep()
        await anyio.lowlevel.checkpoint()

    async def wait(self) -> ExitReport:
        code = await self._process.wait()
        self._sweep()
        if code < 0:
            return ExitReport(signal=-code)
        return ExitReport(exit_code=code)

    async def destroy(self) -> None:
        with anyio.CancelScope(shield=True):
            self._sweep()
            await self._process.wait()
            self._channel.close()

    def _sweep(self) -> None:
        """Kill what is in the group, the first process or what it left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _drain_stderr(self) -> None:
        while self._stderr_open:
            try:
                data = _read(self._channel.stderr)
            except OSError:
                data = b""
            if data is None:
                return
            self._stderr_open = bool(data)
            self._stderr = (self._stderr + data)[-DIAGNOSTIC_BYTES:]

    async def _something(self) -> None:
        """Wait until there is output, or the first process has ended."""

        async def first(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        async def ended() -> None:
            await self._process.wait()
            self._swept = True
            self._sweep()

        async with anyio.create_task_group() as group:
            for descriptor in (self._channel.stdout, *self._open_stderr()):
                group.start_soon(first, partial(_wait_ready, anyio.wait_readable, descriptor))
            if not self._swept:
                group.start_soon(first, ended)

    def _open_stderr(self) -> tuple[int, ...]:
        return (self._channel.stderr,) if self._stderr_open else ()


@dataclass
class FakeBackend:
    """Starts `FakeSandbox`es.

    Attributes:
        failure: Raised by the next launches instead of starting anything.
        reap_error: Raised instead of reaping.
        live: Process ids of what is running.
        launched: How many were started in all.
        in_use_now: How many programs run, as the engine says.
        drain: What `tend` was given.
    """

    failure: SandboxError | None = None
    capacity: int | None = None
    reap_error: SandboxError | None = None
    live: set[int] = field(default_factory=set)
    launched: int = 0
    in_use_now: int = 0
    drain: Callable[[], Awaitable[None]] | None = None

    @property
    def name(self) -> str:
        return "fake"

    async def __aenter__(self) -> FakeBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def probe(self) -> Probe:
        if self.failure is not None:
            return Probe(
                backend="fake",
                ok=False,
                summary=self.failure.message,
                error_code=self.failure.code,
                remedy=self.failure.remedy,
            )
        return Probe(backend="fake", ok=True, summary="local processes", isolation=ISOLATION)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        if self.failure is not None:
            raise self.failure
        workspace = Path(tempfile.mkdtemp(prefix="mcp-code-bridge-fake-"))
        sandbox: FakeSandbox | None = None
        try:
            sandbox = await _start(spec, workspace)
            self.launched += 1
            self.live.add(int(sandbox.id))
            yield sandbox
        finally:
            if sandbox is not None:
                await sandbox.destroy()
                self.live.discard(int(sandbox.id))
            shutil.rmtree(workspace, ignore_errors=True)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        self.in_use_now += 1
        try:
            yield
        finally:
            self.in_use_now -= 1

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        self.drain = drain

    async def problem(self) -> str:
        return ""

    async def reap(self) -> int:
        if self.reap_error is not None:
            raise self.reap_error
        return 0

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


@dataclass
class Tap(FakeBackend):
    """A backend that records what sandboxes receive, and may start them slowly."""

    seconds: float = 0
    heard: bytearray = field(default_factory=bytearray)
    specs: list[LaunchSpec] = field(default_factory=list)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        self.specs.append(spec)
        await anyio.sleep(self.seconds)
        async with super().launch(spec) as sandbox:
            yield cast("Sandbox", _Tapped(sandbox, self.heard))


class _Tapped:
    def __init__(self, sandbox: Sandbox, heard: bytearray) -> None:
        self._sandbox = sandbox
        self._heard = heard

    async def send(self, data: bytes) -> None:
        self._heard += data
        await self._sandbox.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


async def _start(spec: LaunchSpec, workspace: Path) -> FakeSandbox:
    command = sys.executable if spec.argv[0] == "python3" else spec.argv[0]
    child_in, stdin = os.pipe()
    stdout, child_out = os.pipe()
    stderr, child_err = os.pipe()
    channel = _Channel(stdin, stdout, stderr)
    try:
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        # Cancelled in the middle, it would leave a process that no one waits for.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [command, *spec.argv[1:]],
                stdin=child_in,
                stdout=child_out,
                stderr=child_err,
                cwd=workspace,
                env=dict(spec.env),
                start_new_session=True,
            )
    except OSError as error:
        channel.close()
        message = f"{spec.argv[0]} cannot be started: {error}."
        raise LaunchError(message) from error
    except BaseException:
        channel.close()
        raise
    finally:
        for descriptor in (child_in, child_out, child_err):
            os.close(descriptor)
    return FakeSandbox(process, channel)


def _read(descriptor: int) -> bytes | None:
    """Return what is there, empty at the end, None when nothing is there yet."""
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return None


async def _wait_ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Wait; a descriptor closed meanwhile is for the next read or write to find."""
    with suppress(OSError, ValueError, anyio.ClosedResourceError):
        await wait(descriptor)
