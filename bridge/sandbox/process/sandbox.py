"""One sandbox of this machine's kernel, from start to end.

Enforces: a sandbox is yielded only after the stage has reported that the program is confined. If
the first process inside ends, the kernel ends all others; without a pid namespace the monitor does.

Also enforces: if the bridge is killed, its launches end. bubblewrap ties its life to the bridge's
before it releases its child. If the bridge is killed in between, bubblewrap leaves a child that
waits forever, so a watchdog next to the bridge lists the current launches.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.lowlevel
import anyio.to_thread

from bridge.descriptor_reader import Pipes, failed_call, let_go, read_now, wait_ready
from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport, code_and_signal
from bridge.sandbox.process import stage
from bridge.sandbox.process.cgroups import MemoryWatch, SandboxCgroups
from bridge.sandbox.process.command import Descriptors

logger = logging.getLogger(__name__)


class Monitor:
    """The process outside the sandbox, which reports on the first process inside.

    It is bubblewrap, or `monitor` (`LaunchPlan.own_monitor`), which ends in order on SIGTERM.
    Signals go by pidfd. Where the system has none, only the monitor ends the first process inside,
    since another process may have got its pid.
    """

    def __init__(self, process: subprocess.Popen[bytes], info: int, start: LaunchPlan) -> None:
        self._process = process
        self.pid = process.pid
        self._handle = os.pidfd_open(process.pid) if start.use_pidfds else -1
        self._ending = signal.SIGTERM if start.own_monitor else signal.SIGKILL
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
        data: bytes | None = b""
        while self._info >= 0 and len(self._received) < 64 * 1024:
            data = read_now(self._info)
            if not data:
                break
            self._received += data
        report = parse_status(self._received)
        self.exit_code = report.get("exit-code")
        if not self.child and "child-pid" in report:
            self.child = report["child-pid"]
            # Its parent has not reaped it, or only just now, so no other process has the pid.
            if self._handle >= 0:
                with suppress(ProcessLookupError):
                    self._child_handle = os.pidfd_open(self.child)
        return data is not None

    def kill_child(self) -> None:
        """Kill the first process inside and thereby all others. Idempotent."""
        if self._child_handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child_handle, signal.SIGKILL)
        elif not self.ended:
            self._process.send_signal(self._ending)

    def kill(self) -> None:
        """Kill the monitor; the kernel then kills its children. Harmless once it is reaped."""
        self._process.kill()

    def close(self) -> None:
        self._handle, self._info, self._child_handle = map(
            let_go, (self._handle, self._info, self._child_handle)
        )


def parse_status(received: bytes) -> dict[str, int]:
    """Return the complete numbers in a monitor's JSON documents, of which the last may be cut."""
    numbers = re.findall(rb'"(child-pid|exit-code)": *(\d+)\s*[,}]', received)
    return {name.decode(): int(value) for name, value in numbers}


class LaunchPipes:
    """The pipes and files of one launch; it closes those that were not taken."""

    def __init__(self, opened: ExitStack, files: Sequence[bytes], *, examines: bool) -> None:
        self._open: set[int] = set()
        opened.callback(lambda: self.close(*self._open))
        self.stdin, self.stdout, self.stderr = self._pipe(), self._pipe(), self._pipe()
        self.info, self.status, self.options = self._pipe(), self._pipe(), self._pipe()
        with suppress(AttributeError, OSError):  # only Linux has it
            # Room for the whole guest before Python reads. The kernel bounds a user's pipes in
            # total.
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


LAUNCH_SECONDS = 30.0  # For one start, which usually takes 0.05 s.

Judge = Callable[[Mapping[str, Any]], Isolation]


class ProcessLaunch(NamedTuple):
    """The command and its input, once the descriptors are known."""

    inside: Sequence[str]
    stage: bytes
    options: bytes


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    command: Sequence[str]
    prepare: Callable[[Descriptors], ProcessLaunch]
    group: SandboxCgroups | None
    isolation: Isolation
    # Return the error for the output of the outer process, and of the stage.
    monitor_failed: Callable[[str], SandboxError]
    stage_failed: Callable[[str], SandboxError]
    # The environment of the outer process; the sandbox gets none of it.
    environ: Mapping[str, str] = field(default_factory=dict)
    # Whether the outer process is `monitor`, which ends with its instructions' pipe.
    own_monitor: bool = False
    use_pidfds: bool = True  # Whether the system has pidfds (Linux).
    files: tuple[bytes, ...] = field(default=(), repr=False)
    # Called with the program's stderr; without it the bridge keeps the end.
    on_error: Callable[[bytes], None] | None = None
    # Checks the stage's report. It returns the isolation as seen from inside, or raises a
    # `SandboxError`, and then nothing runs.
    judge: Judge | None = None
    # Ends the launch if the bridge is killed; None if the monitor does.
    watchdog: LaunchWatchdog | None = None
    # The memory limit that the bridge applies; None if a cgroup does.
    memory_bytes: int | None = None
    memory_directories: tuple[str, ...] = ()  # The memory-backed directories, as paths inside.


class ProcessSandbox:
    """A sandbox of this machine's kernel. Its `id` is the first process's pid on the host."""

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
        monitor = Monitor(process, ends.take(ends.info[0]), start)
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
                isolation, received, status = start.isolation, b"", ends.status[0]
                if (judge := start.judge) is not None:
                    seen, received = await receive_examination(status, ends.permission[1], judge)
                    isolation = seen or isolation
                received = await _read_status(status, received, 8 * 1024)
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
    """Read and judge the stage's report; write to `permission` that the stage may continue.

    Returns:
        The isolation as seen from inside, None if the stage failed before; and further bytes read.
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


_TEXT = """
held=" "
while read -r sign group; do
    case $sign in
    +) held="$held$group " ;;
    -) held="${held%% $group *} ${held#* $group }" ;;
    esac
done
for group in $held; do
    kill -s KILL -- "-$group"
done
"""
"""A shell script, since a shell takes a tenth of an interpreter's memory. It reads the process
groups of the launches; its input ends with the bridge."""


class LaunchWatchdog:
    """A process next to the bridge that kills the launches in progress if the bridge is killed."""

    def __init__(self, shell: str = "/bin/sh") -> None:
        self._shell = shell
        self._process: subprocess.Popen[bytes] | None = None
        self._input = -1
        self._watched: set[int] = set()

    def start(self) -> None:
        """Start the process; log a warning if it cannot start. Idempotent; blocks for a ms."""
        if self._process is not None:
            return
        try:
            self._process = subprocess.Popen(
                [self._shell, "-c", _TEXT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                # A signal to the bridge's group, such as Ctrl-C, must not end it first.
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("the launch watchdog did not start: %s: %s", self._shell, error)
            return
        assert self._process.stdin is not None
        self._input = self._process.stdin.fileno()
        os.set_blocking(self._input, False)

    def watch(self, group: int) -> None:
        """Kill a process group if the bridge is killed before `unwatch`."""
        self._watched.add(group)
        self._send("+", group)

    def unwatch(self, group: int) -> None:
        """Remove a process group from the list. Idempotent."""
        if group in self._watched:
            self._watched.discard(group)
            self._send("-", group)

    def close(self) -> None:
        """End the process. Blocks for a millisecond; idempotent."""
        self._input = -1
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, sign: str, group: int) -> None:
        # A watchdog that was killed or stopped must not fail the launch.
        if self._input >= 0:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._input, f"{sign} {group}\n".encode("ascii"))
