"""One sandbox of this machine's kernel, from start to end.

Enforces: a sandbox is yielded only after the stage has reported that the program is confined. If
the first process inside ends, the kernel ends all others, or the monitor without a pid namespace.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from bridge.descriptor_reader import Pipes, failed_call, read_now, wait_ready
from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport, code_and_signal
from bridge.sandbox.process import stage
from bridge.sandbox.process.cgroups import SandboxCgroups
from bridge.sandbox.process.command import Descriptors
from bridge.sandbox.process.memory_watch import MemoryWatch
from bridge.sandbox.process.watchdog import LaunchWatchdog


class Monitor:
    """The process outside, which reports on the first process inside.

    Args:
        own_monitor: Whether it is `monitor`, which ends in order on SIGTERM.
        use_pidfds: Whether to signal processes by pidfd (Linux). Otherwise the monitor ends the
            first process inside, since its pid may be reused.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        info: int,
        *,
        own_monitor: bool = False,
        use_pidfds: bool = True,
    ) -> None:
        self._process = process
        self.pid = process.pid
        self._handle = os.pidfd_open(process.pid) if use_pidfds else -1
        self._ending = signal.SIGTERM if own_monitor else signal.SIGKILL
        self._info = info
        self._received = b""
        self._child_handle = -1
        self.child = 0
        self.exit_code: int | None = None
        os.set_blocking(info, False)

    @property
    def ended(self) -> bool:
        """Whether the monitor has ended, and so everything inside."""
        return self._process.poll() is not None

    async def wait(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self._handle < 0:
            # Only the monitor holds the other end.
            while not self.read_status():
                await wait_ready(anyio.wait_readable, self._info)
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return
        while not self.ended:
            await wait_ready(anyio.wait_readable, self._handle)
        self.read_status()

    async def wait_child(self) -> None:
        """Wait until the monitor has reported its child's pid, or has ended."""
        while not self.read_status() and not self.child and not self.ended:
            await wait_ready(anyio.wait_readable, self._info)

    def read_status(self) -> bool:
        """Read the monitor's new output; return whether it has ended."""
        while self._info >= 0 and len(self._received) < 64 * 1024:
            data = read_now(self._info)
            if data is None:
                self._parse()
                return False
            if not data:
                break
            self._received += data
        self._parse()
        return True

    def kill_child(self) -> None:
        """Kill the first process inside and thereby all others. Idempotent."""
        if self._child_handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child_handle, signal.SIGKILL)
        elif not self.ended:
            self._process.send_signal(self._ending)

    def kill(self) -> None:
        """Kill the monitor; the kernel then kills its children."""
        # Not yet collected, or `send_signal` sees that it was: the id is no other's.
        self._process.kill()

    def close(self) -> None:
        for descriptor in (self._handle, self._info, self._child_handle):
            if descriptor >= 0:
                with suppress(OSError, ValueError):
                    anyio.notify_closing(descriptor)
                os.close(descriptor)
        self._handle = self._info = self._child_handle = -1

    def _parse(self) -> None:
        for key, value in parse_status(self._received).items():
            if key == "exit-code":
                self.exit_code = value
            elif key == "child-pid" and not self.child:
                self.child = value
                # Not yet collected by its parent, or gone permanently: the id cannot be another's,
                # unless it was in the instant between.
                if self._handle >= 0:
                    with suppress(ProcessLookupError):
                        self._child_handle = os.pidfd_open(value)


def parse_status(received: bytes) -> dict[str, int]:
    """Parse bubblewrap's status: a sequence of JSON objects, the last possibly incomplete."""
    text = received.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    found: dict[str, int] = {}
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        try:
            document, position = decoder.raw_decode(text, position)
        except ValueError:
            return found
        if isinstance(document, dict):
            found.update({k: v for k, v in document.items() if isinstance(v, int)})


class LaunchPipes:
    """The pipes and files of one launch; it closes those that were not taken."""

    def __init__(self, opened: ExitStack, files: Sequence[bytes], *, examines: bool) -> None:
        self._open: set[int] = set()
        opened.callback(lambda: self.close(*self._open))
        self.stdin, self.stdout, self.stderr = self._pipe(), self._pipe(), self._pipe()
        self.info, self.status, self.options = self._pipe(), self._pipe(), self._pipe()
        with suppress(AttributeError, OSError):  # only Linux has it
            # It holds the whole guest before Python is up. The kernel bounds a user's
            # pipes in total.
            fcntl.fcntl(self.stdin[1], fcntl.F_SETPIPE_SZ, 512 * 1024)
        self.permission = self._pipe() if examines else (-1, -1)
        self.descriptors = Descriptors(
            info=self.info[1],
            status=self.status[1],
            files=tuple(map(self._file, files)),
            permission=self.permission[0],
            stage=self._file(b""),
        )

    @property
    def inherited(self) -> tuple[int, ...]:
        """The inherited descriptors without stdin, stdout and stderr."""
        given = self.descriptors
        ends = (given.info, given.status, self.options[0], given.permission, given.stage)
        return tuple(end for end in (*ends, *given.files) if end >= 0)

    def take(self, descriptor: int) -> int:
        """Pass a descriptor to the caller, who closes it."""
        self._open.discard(descriptor)
        return descriptor

    def close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            if descriptor in self._open:
                self._open.discard(descriptor)
                os.close(descriptor)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def _file(self, content: bytes) -> int:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        self._open.add(descriptor)
        _fill(descriptor, content)
        return descriptor


def _fill(descriptor: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    os.lseek(descriptor, 0, os.SEEK_SET)


logger = logging.getLogger(__name__)

LAUNCH_SECONDS = 30.0  # A program of the host's starts each: 0.05 s usually.


Judge = Callable[[Mapping[str, Any]], Isolation]


class ProcessLaunch(NamedTuple):
    """The command and its input, once the descriptors are known."""

    inside: Sequence[str]
    stage: bytes
    options: bytes


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How to start one sandbox.

    Attributes:
        environ: The environment of the outer process; the sandbox gets none of it.
        monitor_failed, stage_failed: Make the error for the outer process's or the stage's output.
        on_error: Called with the program's stderr; without it the end is kept.
        own_monitor: Whether the outer process is `monitor`, which ends with its instructions' pipe.
        judge: Checks the stage's report: returns the isolation as seen from inside, or raises a
            `SandboxError`, and then nothing runs.
        watchdog: Ends the launch if the bridge is killed; None if the monitor does.
        memory_bytes: The memory limit that the bridge applies; None if a cgroup does.
        memory_directories: The memory-backed directories, as paths inside.
    """

    command: Sequence[str]
    prepare: Callable[[Descriptors], ProcessLaunch]
    group: SandboxCgroups | None
    isolation: Isolation
    monitor_failed: Callable[[str], SandboxError]
    stage_failed: Callable[[str], SandboxError]
    environ: Mapping[str, str] = field(default_factory=dict)
    own_monitor: bool = False
    use_pidfds: bool = True
    files: tuple[bytes, ...] = field(default=(), repr=False)
    on_error: Callable[[bytes], None] | None = None
    judge: Judge | None = None
    watchdog: LaunchWatchdog | None = None
    memory_bytes: int | None = None
    memory_directories: tuple[str, ...] = ()


class ProcessSandbox:
    """A sandbox of this machine's kernel.

    Attributes:
        id: The first process's pid on the host.
        isolation: The layers in force, as seen from inside if the stage examined them.
        group: Its cgroups, for their count of OOM kills.
    """

    def __init__(
        self,
        monitor: Monitor,
        pipes: Pipes,
        group: SandboxCgroups | None,
        isolation: Isolation,
        memory: MemoryWatch | None,
    ) -> None:
        self._monitor = monitor
        self._memory = memory
        self.id = str(monitor.child)
        self.pid = monitor.pid
        self.isolation = isolation
        self.group = group
        self.send, self.end_input = pipes.send, pipes.end_input
        self.receive, self.end_output = pipes.receive, pipes.end_output
        self.diagnostics = pipes.diagnostics

    async def kill(self) -> None:
        self._monitor.kill_child()
        await anyio.lowlevel.checkpoint()

    async def wait(self) -> ExitReport:
        await self._monitor.wait()
        kills = self.group.oom_kills() if self.group is not None else None
        if self._memory is not None:
            kills = self._memory.kills
        return exit_report(self._monitor.exit_code, oom_kills=kills)


def exit_report(code: int | None, *, oom_kills: int | None) -> ExitReport:
    oom = None if oom_kills is None else oom_kills > 0
    if code is None:
        detail = "The sandbox was killed before it could report."
        return ExitReport(signal=signal.SIGKILL, oom_killed=oom, detail=detail)
    exit_code, number = code_and_signal(code)
    return ExitReport(exit_code=exit_code, signal=number, oom_killed=oom)


@asynccontextmanager
async def run_sandbox(start: LaunchPlan) -> AsyncIterator[ProcessSandbox]:
    """Start a sandbox; leaving ends everything in it."""
    with ExitStack() as opened:
        try:
            ends = LaunchPipes(opened, start.files, examines=start.judge is not None)
            pipes = Pipes(*map(ends.take, (ends.stdin[1], ends.stdout[0], ends.stderr[0])))
        except OSError as error:
            raise LaunchError(f"No sandbox was started. {failed_call(error)}") from error
        opened.callback(pipes.close)
        launch = start.prepare(ends.descriptors)
        # No await between the start and the `try` that owns its end.
        process = _spawn(start, ends, launch)
        info = ends.take(ends.info[0])
        monitor = Monitor(process, info, own_monitor=start.own_monitor, use_pidfds=start.use_pidfds)
        options_sent = False
        watchdog = start.watchdog
        try:
            ends.close(ends.stdin[0], ends.stdout[1], ends.stderr[1], *ends.inherited)
            if watchdog is not None:
                # Before bubblewrap has its options: until then it ends with the bridge.
                watchdog.watch(monitor.pid)
            with anyio.move_on_after(LAUNCH_SECONDS) as patience:
                await _write(ends.options[1], launch.options)
                options_sent = True
                if not start.own_monitor:
                    ends.close(ends.options[1])
                await monitor.wait_child()
                isolation, received = start.isolation, b""
                if start.judge is not None:
                    seen, received = await receive_examination(
                        ends.status[0], ends.permission[1], start.judge
                    )
                    isolation = seen or isolation
                received = await _read_status(ends.status[0], received, 8 * 1024)
                if received != stage.CONFINED:
                    raise await _failure(received, monitor, pipes, start)
            if patience.cancelled_caught:
                raise LaunchError(f"The sandbox did not start within {LAUNCH_SECONDS:g} s.")
            if watchdog is not None:
                watchdog.unwatch(monitor.pid)
            pipes.on_error = start.on_error
            memory = None
            if start.memory_bytes is not None:
                pids = monitor.pid, monitor.child
                memory = MemoryWatch(*pids, start.memory_bytes, start.memory_directories)
                memory.start()
                opened.callback(memory.stop)
            yield ProcessSandbox(monitor, pipes, start.group, isolation, memory)
        finally:
            # Before its options end: bubblewrap would start another sandbox with half of them.
            await _end(monitor, options_sent=options_sent)
            if watchdog is not None:
                watchdog.unwatch(monitor.pid)
            pipes.close()
            monitor.close()


def _spawn(start: LaunchPlan, ends: LaunchPipes, launch: ProcessLaunch) -> subprocess.Popen[bytes]:
    """Start the outer process, which waits for its options. Blocks for a millisecond or two.

    It starts on the event loop's thread: the kernel ties "die with parent" to the forking thread.
    """
    _fill(ends.descriptors.stage, launch.stage)
    source = [str(ends.descriptors.files[0])] if start.own_monitor else []
    entering = start.group.entry_command() if start.group is not None else []
    words = [*entering, *start.command, *source, "--args", str(ends.options[0]), "--"]
    try:
        return subprocess.Popen(
            [*words, *launch.inside],
            stdin=ends.stdin[0],
            stdout=ends.stdout[1],
            stderr=ends.stderr[1],
            pass_fds=ends.inherited,
            env=start.environ,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise start.monitor_failed(f"{start.command[0]}: {error}") from error


def join_options(options: Sequence[str]) -> bytes:
    """Return bubblewrap's options in the format of `--args`."""
    if any("\0" in word for word in options):
        message = "An option of the sandbox, such as a variable of its environment, holds a NUL."
        raise LaunchError(message)
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in options)


async def _write(descriptor: int, data: bytes) -> None:
    os.set_blocking(descriptor, False)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await wait_ready(anyio.wait_writable, descriptor)
        except BrokenPipeError:
            return  # it has ended; its stderr says why


async def _read_status(status: int, received: bytes, most: int, end: bytes | None = None) -> bytes:
    """Return what the stage writes, after `received`: up to `end` if given, at most `most`."""
    os.set_blocking(status, False)
    while len(received) < most and (end is None or end not in received):
        data = read_now(status)
        if data is None:
            await wait_ready(anyio.wait_readable, status)
        elif data:
            received += data
        else:
            break
    return received


async def receive_examination(
    status: int, permission: int, judge: Judge
) -> tuple[Isolation | None, bytes]:
    """Read and judge the stage's report, then permit the stage to continue.

    Args:
        permission: The descriptor on which the stage waits.

    Returns:
        The isolation as seen from inside, None if the stage failed before; and further bytes read.

    Raises:
        SandboxError: A mandatory layer does not hold.
    """
    said = await _read_status(status, b"", 512 * 1024, b"\n")
    line, ended, rest = said.partition(b"\n")
    if not ended and len(said) < 512 * 1024:
        return None, said
    try:
        facts = json.loads(line)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        message = f"The sandbox's first process sent no report of its isolation but {line[:200]!r}."
        raise LaunchError(message)
    isolation = judge(facts)
    with suppress(BrokenPipeError):  # it ended; the missing confirmation shows that
        os.write(permission, stage.PERMISSION)
    return isolation, rest


async def _failure(
    received: bytes, monitor: Monitor, pipes: Pipes, start: LaunchPlan
) -> SandboxError:
    """End a sandbox whose stage did not confirm the confinement; return the error."""
    problem = received.removeprefix(stage.CONFINED).decode("utf-8", "replace")
    monitor.kill_child()
    await monitor.wait()
    if problem:
        # Nothing was run.
        return start.stage_failed(problem)
    said = pipes.diagnostics()
    if monitor.child and monitor.exit_code is not None and "bwrap:" not in said:
        return start.stage_failed(f"it ended with status {monitor.exit_code}. {said}")
    return start.monitor_failed(said)


async def _end(monitor: Monitor, *, options_sent: bool) -> None:
    """Kill everything and wait for its end, even if cancelled."""
    with anyio.CancelScope(shield=True):
        if options_sent and not monitor.child:
            # Killing it between its fork and its report would leave its child.
            with anyio.move_on_after(5.0):
                await monitor.wait_child()
        for kill in (monitor.kill_child, monitor.kill):
            kill()
            # Milliseconds, unless there is a lot of memory to free.
            with anyio.move_on_after(10.0):
                await monitor.wait()
                return
        logger.warning("a sandbox's process %d does not end", monitor.pid)
