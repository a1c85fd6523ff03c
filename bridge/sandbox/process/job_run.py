"""One job in bubblewrap: whom it runs as, its pipes, its life.

Owns what differs from a program's sandbox while it runs; see `sandbox` for the rest.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel

from bridge.errors import ChannelClosedError, LaunchError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.job import JobSpec, group_of
from bridge.sandbox.process import command, host
from bridge.sandbox.process.pipes import READ_BYTES, Pipes, read_now, wait_ready
from bridge.sandbox.process.sandbox import ProcessSandbox, Start, run_sandbox

_CLOSED = -1


class JobPipes(Pipes):
    """Three pipes of which both outputs are wanted and each can be ended by itself."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        super().__init__(stdin, stdout, stderr)
        for descriptor in (stdin, stdout):
            # Fewer turns between stages. A user's pipes may hold only so much in all.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, READ_BYTES)
        self.on_error: Callable[[bytes], None] | None = None

    def _drain(self) -> None:
        """Pass on what is there of stderr; before anybody wants it, keep its end."""
        if self.on_error is None:
            super()._drain()
            return
        for _ in range(16):  # by turns, when the writer is faster than we are
            if not self._stderr_open:
                return
            try:
                data = read_now(self._stderr)
            except OSError:
                data = b""
            if data is None:
                return
            if not data:
                self._end_stderr()
            self.on_error(data)

    async def drain(self) -> None:
        """Pass on all that comes of stderr, until it ends."""
        while self._stderr_open:
            self._drain()
            await anyio.lowlevel.checkpoint()
            if self._stderr_open:
                await wait_ready(anyio.wait_readable, self._stderr)

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty once it was ended here."""
        if self._stdout == _CLOSED:
            await anyio.lowlevel.checkpoint()
            return b""
        return await super().receive()

    async def send(self, data: bytes) -> None:
        """Write all of `data`; see `Job.send`."""
        if self._stdin == _CLOSED:
            message = "The command's input was ended."
            raise ChannelClosedError(message)
        await super().send(data)

    def end_input(self) -> None:
        """Close stdin."""
        self._stdin = _let_go(self._stdin)

    def end_output(self) -> None:
        """Close stdout, so that whoever writes to it finds nobody there."""
        self._stdout = _let_go(self._stdout)


def _let_go(descriptor: int) -> int:
    if descriptor != _CLOSED:
        with suppress(OSError, ValueError):
            anyio.notify_closing(descriptor)
        os.close(descriptor)
    return _CLOSED


class ProcessJob:
    """A command in a sandbox of this machine's kernel; see `bridge.sandbox.job.Job`."""

    def __init__(self, sandbox: ProcessSandbox, pipes: JobPipes) -> None:
        self._sandbox = sandbox
        self._pipes = pipes

    @property
    def isolation(self) -> Isolation:
        """What was put in force."""
        return self._sandbox.isolation

    def find_group(self) -> None:
        """Look up the control group that systemd made. Blocks."""
        self._sandbox.find_group()

    async def send(self, data: bytes) -> None:
        """Write to stdin; see `Job.send`."""
        await self._pipes.send(data)

    def end_input(self) -> None:
        """Let stdin end."""
        self._pipes.end_input()

    async def receive(self) -> bytes:
        """Read from stdout; see `Job.receive`."""
        return await self._pipes.receive()

    async def stop_output(self) -> None:
        """Close the reading end; the next write is answered with SIGPIPE."""
        self._pipes.end_output()
        await anyio.lowlevel.checkpoint()

    async def drain(self) -> None:
        """Take in the rest of stderr; see `Job.drain`."""
        await self._pipes.drain()

    async def kill(self) -> None:
        """Kill everything inside; see `Job.kill`."""
        await self._sandbox.kill()

    async def wait(self) -> ExitReport:
        """Wait for the command's end; see `Job.wait`."""
        return await self._sandbox.wait()


@asynccontextmanager
async def run_job(start: Start, on_error: Callable[[bytes], None]) -> AsyncIterator[ProcessJob]:
    """Start a job; on leaving, everything in it has ended.

    Raises:
        SandboxError: On entering, when it cannot be started.
    """
    made: list[JobPipes] = []

    def pipes(stdin: int, stdout: int, stderr: int) -> Pipes:
        made.append(JobPipes(stdin, stdout, stderr))
        return made[0]

    async with run_sandbox(replace(start, pipes=pipes)) as sandbox:
        made[0].on_error = on_error
        yield ProcessJob(sandbox, made[0])


def ids(spec: JobSpec, *, stranger: int | None) -> tuple[int | None, int | None]:
    """Return whom a job runs as outside: user and group; None for the bridge's own. Blocks.

    A bridge that is root becomes the owner of the workspace, so that files there stay that user's;
    a workspace of root's makes it nobody. Never is it root.

    Args:
        stranger: Whom programs run as when the bridge is root; None when it is not.

    Raises:
        LaunchError: Whoever that is cannot reach what the profile grants.
    """
    if stranger is None:
        return None, None
    uid, gid = stranger, stranger
    for mount in spec.mounts:
        if mount.inside == command.WORKSPACE:
            owner = Path(mount.source).stat().st_uid
            if owner != 0 and host.is_mapped(owner, host.text("/proc/self/uid_map")):
                uid, gid = owner, group_of(owner)
    for mount in spec.mounts:
        insist_reachable(mount.source, uid, gid, writable=mount.writable)
    for tool in spec.executables:
        for path in tool.executes:
            insist_reachable(path, uid, gid, writable=False)
    return uid, gid


_REMEDY = (
    "The bridge runs as root, and commands as the owner of the workspace, or as nobody "
    "(65534) if that is root. Give the workspace to an ordinary user who may use all "
    "these paths, or run the bridge as that user."
)


def insist_reachable(
    path: str, uid: int, gid: int, *, writable: bool, remedy: str = _REMEDY
) -> None:
    """See that a user can get at a path of the host. Blocks.

    Raises:
        LaunchError: The user cannot.
    """
    problem = ""
    for parent in reversed(Path(path).parents):
        if not _may(parent, uid, gid, 0o1):
            problem = f"may not enter {parent}"
            break
    wanted = 0o4 | (0o2 if writable else 0) | (0o1 if Path(path).is_dir() else 0)
    if not problem and not _may(Path(path), uid, gid, wanted):
        problem = f"may not {'write to' if writable else 'read'} it"
    if problem:
        message = f"{path} cannot be put into a sandbox: user {uid} {problem}."
        raise LaunchError(message, remedy=remedy)


def _may(path: Path, uid: int, gid: int, wanted: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == gid else 0
    return (stat.S_IMODE(found.st_mode) >> shift) & wanted == wanted
