"""The Protocols between runs and the backends that execute code, and the values they exchange.

A backend starts one isolated process: a program's guest, or a command of `run_command`. The
process's stdin and stdout are byte streams. `tests/contract` runs one suite on every backend.
"""

from __future__ import annotations

import pwd
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any, Protocol, Self, runtime_checkable

import anyio.lowlevel

from bridge.errors import LaunchError, SandboxError
from bridge.model import MEBIBYTE, Isolation, Limits
from bridge.settings import Settings

WORKSPACE, TMP, SHM = "/workspace", "/tmp", "/dev/shm"  # The writable directories, in memory.

HOME = "/home/sandbox"  # A command's home: read-only, and empty but for `CommandSpec.files`.

HOSTNAME = "sandbox"  # The host name inside. The host's name and container ids stay private.

SHM_BYTES = 16 * MEBIBYTE  # For multiprocessing's locks; counts towards the memory limit.

TMPFS_INODES = 16_384  # Most files of each writable mount: small files cost kernel memory.

PENDING_SIGNALS = 1024  # Timers and queued signals. The kernel also counts them for the host user.

NOBODY_ID = 65534  # A user and a group that own nothing anywhere.

READ_ONLY = "read-only:"  # Start of the layer of a read-only directory; its path inside follows.

SIGNAL_BASE = 128  # Engines report death by signal n as exit status 128 + n, as shells do.


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A host directory or file that is mounted at a path inside the sandbox."""

    source: str
    inside: str
    writable: bool = False
    # Whether code may be loaded from it. Packages with native parts need this.
    executable: bool = False

    @property
    def is_file(self) -> bool:
        return not Path(self.source).is_dir()


@dataclass
class LayerReport:
    """The layers of a sandbox, and what is weaker, as a backend adds them."""

    layers: list[str]
    weaker: list[str] = field(default_factory=list)

    def add(self, layer: str, in_force: object, otherwise: str = "") -> None:
        """Add a layer if it is in force, or else the weakness, if there is a text."""
        if in_force:
            self.layers.append(layer)
        elif otherwise:
            self.weaker.append(otherwise)

    def add_binds(self, binds: Iterable[Bind]) -> None:
        for bind in binds:
            name = bind.inside.rpartition("/")[2]
            writable = f"directory {name}: the host's own, writable at {bind.inside}"
            self.add(f"{READ_ONLY}{bind.inside}", not bind.writable, writable)

    def isolation(self, backend: str, **more: Any) -> Isolation:
        layers, weaker = tuple(self.layers), tuple(self.weaker)
        return Isolation(backend=backend, layers=layers, weaker=weaker, **more)


def has_user_directories(binds: Iterable[Bind]) -> bool:
    """Return whether a bind is the user's directory, which other users may be unable to read."""
    return any(not bind.executable for bind in binds)


def reject_binds(backend: str, binds: Iterable[Bind]) -> None:
    """Reject host directories for a backend that cannot mount them."""
    paths = [bind.inside for bind in binds]
    if paths:
        message = f"{backend} has no mounts, so it cannot show programs {', '.join(paths)}."
        remedy = "Set MCP_BRIDGE_RUNTIME to bubblewrap, podman or docker; or do without packages, "
        remedy += "and without [directories]."
        raise LaunchError(message, remedy=remedy)


def group_of(uid: int) -> int:
    """Return a user's primary group, or `NOBODY_ID` instead of root's. Blocks.

    A directory's group is not used: it may give access to more than the directory.
    """
    try:
        return pwd.getpwuid(uid).pw_gid or NOBODY_ID
    except KeyError:
        return NOBODY_ID


@dataclass(frozen=True, kw_only=True)
class HostFile:
    """A file that a command gets as a copy, or read-only where copies are impossible."""

    source: str
    inside: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A host program that a command may execute, with the files it needs to start."""

    name: str
    file: str
    # The files that the kernel executes for it: itself, its interpreter, their loader.
    executes: tuple[str, ...]
    needs: tuple[str, ...] = ()  # Directories and files that `executes` read.
    # Symbolic links on the way to them: target, and the link's own path.
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """The part of a `LaunchSpec` that only a user's command has.

    A command sees no host files but `LaunchSpec.binds` and its own files. The bridge passes on
    both its stdout and its stderr.
    """

    cwd: str
    cpu_seconds: int  # A limit of each process.
    file_bytes: int  # A limit of each file that a process writes.
    # Called with the command's stderr, during `receive`.
    on_error: Callable[[bytes], None] = field(default=lambda _: None, compare=False, repr=False)
    # The executable on the host, links resolved. Empty in a container, whose image resolves the
    # first word of the command.
    file: str = ""
    files: tuple[HostFile, ...] = ()
    writable: tuple[str, ...] = ()  # Directories inside that are in memory and empty at the start.
    executables: tuple[Executable, ...] = ()  # All that it may execute; empty in a container.
    network: bool = False  # Whether it has the host's network, or the engine's default one.
    image: str = ""  # The container image; empty outside of containers.


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    run_id: str  # Unique; becomes part of the sandbox's name.
    argv: tuple[str, ...]  # The command. Its first word is resolved inside the sandbox ("python3").
    env: Mapping[str, str]  # The whole environment of the process, which inherits nothing.
    limits: Limits
    # Chosen by the configuration only, never by a program or a client.
    binds: tuple[Bind, ...] = ()
    command: CommandSpec | None = None  # None for a program.


def limits_for(settings: Settings, timeout: float | None = None) -> Limits:
    """Return the limits of a run that asks for `timeout` seconds."""
    return Limits(
        timeout=min(timeout or settings.timeout, settings.max_timeout),
        longest_timeout=settings.max_timeout,
        memory_bytes=settings.memory,
        pids=settings.pids,
        cpus=settings.cpus,
        tmp_bytes=max(min(Limits.tmp_bytes, settings.memory // 4), settings.memory // 8),
        workspace_bytes=settings.memory // 4,
        # Both streams and the files must fit into a run's artifact limit. The beginning and the
        # end of an output that a result shows take 256 KiB.
        output_bytes=max(min(Limits.output_bytes, settings.artifact_run_bytes // 3), 256 * 1024),
        output_tokens=settings.output_tokens,
        out_bytes=settings.artifact_run_bytes,
        shown_bytes=settings.shown_bytes,
        directories=bool(settings.offered_directories),
    )


def guest_limits(isolation: Isolation, limits: Limits) -> dict[str, int]:
    """Return the limits that the guest must set, because the backend does not."""
    wanted: dict[str, int] = {}
    if not {"memory-limit", "memory-watch"} & set(isolation.layers):
        # Half more: the limit also counts memory that is not used yet, such as threads' stacks.
        wanted["data_bytes"] = limits.memory_bytes * 3 // 2
    if "pids-limit" not in isolation.layers:
        # The kernel counts processes per user id, which several sandboxes share.
        wanted["processes"] = limits.pids * 4
    if "ulimits" not in isolation.layers:
        wanted["open_files"] = limits.open_files
    return wanted


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """How a sandbox's first process ended, as the backend reports it."""

    exit_code: int | None = None  # None if a signal killed the process, or if the code is unknown.
    signal: int | None = None
    # Whether the kernel killed a process of the sandbox for memory; None if unknown.
    oom_killed: bool | None = None
    detail: str = ""  # The engine's own message, for errors.


def code_and_signal(status: int) -> tuple[int | None, int | None]:
    """Return a process's exit code, or the signal that ended it, from an engine's exit status.

    Exit status 128 + n is indistinguishable from death by signal n.
    """
    try:
        return None, int(Signals(status - SIGNAL_BASE))
    except ValueError:
        return status, None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The Python and the packages that programs find."""

    python: str = ""  # The version, such as "3.11"; empty if unknown.
    packages: tuple[tuple[str, str], ...] = ()  # Names and versions, the best known first.


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Whether a backend works here, found by running a program in it."""

    backend: str
    ok: bool  # It started a process, exchanged data with it and removed it.
    summary: str
    error_code: str = ""  # Code of the `BridgeError` that stopped it; empty when ok.
    remedy: str = ""
    isolation: Isolation | None = None
    # Further facts for `doctor`, name to text.
    details: Mapping[str, str] = field(default_factory=dict)
    contents: Contents = Contents()


class Sandbox(Protocol):
    """One running isolated process."""

    @property
    def id(self) -> str:
        """The engine's identifier of the sandbox, for logs."""
        ...

    @property
    def isolation(self) -> Isolation: ...

    async def send(self, data: bytes) -> None:
        """Write all of `data` to stdin; wait while the pipe is full.

        If the process or the engine is gone, raise ChannelClosedError.
        """
        ...

    def end_input(self) -> None:
        """Close the process's stdin. Idempotent."""
        ...

    async def end_output(self) -> None:
        """Close this end of stdout. Writers get SIGPIPE; if that is impossible, kill them."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of stdout; empty at its end, which for a command is stderr's too.

        If the engine broke the stream, raise ChannelClosedError.
        """
        ...

    def diagnostics(self) -> str:
        """Return the end of the process's stderr, bounded."""
        ...

    async def kill(self) -> None:
        """End every process in the sandbox now. Harmless if it has ended."""
        ...

    async def wait(self) -> ExitReport:
        """Wait without a limit until the process has ended; report how."""
        ...


@runtime_checkable
class DistantSandbox(Protocol):
    """A sandbox on another machine, which can fall silent without an end of its stream."""

    async def why_lost(self, silence: str) -> SandboxError:
        """Find the cause of `silence` and return its error."""
        ...


class Backend(Protocol):
    """Runs processes in isolation. Enter it before use.

    A backend without an engine keeps the defaults of `in_use`, `tend` and `problem`.
    """

    capacity: int | None = None  # Sandboxes that there is room for at once; None if unknown.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def name(self) -> str: ...

    async def probe(self) -> Probe:
        """Run a program and report. A backend that does not work raises nothing."""
        ...

    def launch(self, spec: LaunchSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Start a sandbox; leaving the context always destroys it and all its processes and data.

        Raises:
            SandboxError: On entering, if the sandbox cannot start.
        """
        ...

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Enter this while a program runs, so that its engine is not stopped as idle."""
        return nullcontext()

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Stop what the backend holds open once it is idle; return when nothing is left to stop.

        `drain` destroys the waiting sandboxes, before their engine is stopped.
        """
        await anyio.lowlevel.checkpoint()

    async def problem(self) -> str:
        """Return why no sandbox can start now; empty if a quick look, in bounded time, finds none.

        The bridge calls this every few seconds.
        """
        return ""

    async def reap(self) -> int:
        """Remove what dead bridges left; return the number of sandboxes removed."""
        ...

    async def aclose(self) -> None: ...
