"""The Protocols between runs and whatever executes code, and the values that cross them.

A backend starts one process in isolation, a program's guest or a command of `run_command`, and
exposes its stdin and stdout as byte streams. `tests/contract` runs one suite on every backend.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Protocol, Self, runtime_checkable

import anyio.lowlevel

from bridge.errors import SandboxError
from bridge.model import MEBIBYTE, Isolation, Limits
from bridge.sandbox.contents import Contents

_SIGNAL_BASE = 128  # Engines report death by signal n as exit status 128 + n, as shells do.


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A host directory or file, and its path inside the sandbox.

    Attributes:
        executable: Whether code may be loaded from it, as packages with native parts need.
    """

    source: str
    inside: str
    writable: bool = False
    executable: bool = False

    @property
    def is_file(self) -> bool:
        return not Path(self.source).is_dir()


WORKSPACE, TMP, SHM = "/workspace", "/tmp", "/dev/shm"
"""The writable directories inside, in memory."""

HOSTNAME = "sandbox"
"""The host name inside, so that a guest sees neither the host's name nor a container's id."""

SHM_BYTES = 16 * MEBIBYTE
"""For /dev/shm, which multiprocessing's locks need; counts towards the memory limit."""

TMPFS_INODES = 16_384
"""Most files and directories of each writable mount: small files cost kernel memory."""

PENDING_SIGNALS = 1024
"""Timers and queued signals. Those of a namespace count to its user outside as well."""

HOME = "/home/sandbox"
"""A command's home directory. Read-only and empty, but for `CommandSpec.files`."""


@dataclass(frozen=True, kw_only=True)
class HostFile:
    """A file that a command gets as a copy, or read-only where copies cannot be made."""

    source: str
    inside: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A host program that may be executed, and the least it needs to start.

    Attributes:
        executes: The files that the kernel executes for it: itself, its interpreter, their loader.
        needs: Directories and files that those read.
        links: Symbolic links on the way to them: target, and the link's own path.
    """

    name: str
    file: str
    executes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """What differs for one of the user's commands, compared with a program.

    Of the host's files it sees only what it is granted (`LaunchSpec.binds`); stdout and stderr are
    both passed on, and its stdin ends.

    Attributes:
        cpu_seconds, file_bytes: Limits of each process, and of each file it writes.
        on_error: Called with what is written to stderr, during `receive`.
        file: The executable on the host, links resolved; empty in a container, where the first
            word of the command is looked up in the image.
        writable: Directories inside that are in memory, empty at the start.
        executables: All that may be executed; empty in a container.
        network: Whether it has the host's network, or the engine's default one.
        image: The container image; empty outside of containers.
    """

    cwd: str
    cpu_seconds: int
    file_bytes: int
    on_error: Callable[[bytes], None] = field(default=lambda _: None, compare=False, repr=False)
    file: str = ""
    files: tuple[HostFile, ...] = ()
    writable: tuple[str, ...] = ()
    executables: tuple[Executable, ...] = ()
    network: bool = False
    image: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What to start.

    Attributes:
        run_id: Unique; becomes part of the sandbox's name.
        argv: The command, its first word looked up inside the sandbox ("python3").
        env: The whole environment of the process; nothing is inherited.
        binds: Host directories to mount; chosen by the configuration only, never by a program or
            a client.
        command: Set for one of the user's commands; None for a program.
    """

    run_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    binds: tuple[Bind, ...] = ()
    command: CommandSpec | None = None


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """How a sandbox's first process ended, as the backend reports it.

    Attributes:
        exit_code: None when killed by a signal or unknown.
        oom_killed: Whether the kernel killed anything in the sandbox for memory; None if unknown.
        detail: The engine's own message, for errors.
    """

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    detail: str = ""


def code_and_signal(status: int) -> tuple[int | None, int | None]:
    """Return a process's exit code, or the signal that ended it, from an engine's exit status.

    Exit status 128 + n is indistinguishable from death by signal n.
    """
    try:
        return None, int(Signals(status - _SIGNAL_BASE))
    except ValueError:
        return status, None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Whether a backend works here, determined by running something in it.

    Attributes:
        ok: It started a process, exchanged data with it and removed it.
        error_code: Code of the `BridgeError` that stopped it; empty when ok.
        details: Further facts for `doctor`, name to text.
    """

    backend: str
    ok: bool
    summary: str
    error_code: str = ""
    remedy: str = ""
    isolation: Isolation | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    contents: Contents = Contents()


class Sandbox(Protocol):
    """One running isolated process."""

    @property
    def id(self) -> str:
        """The engine's identifier of it, for logs."""
        ...

    @property
    def isolation(self) -> Isolation: ...

    async def send(self, data: bytes) -> None:
        """Write all of `data` to the process's stdin; wait while the pipe is full.

        Raises:
            ChannelClosedError: The process or the engine is gone.
        """
        ...

    def end_input(self) -> None:
        """Close the process's stdin. Idempotent."""
        ...

    async def end_output(self) -> None:
        """Close this end of stdout: writers get SIGPIPE, or are killed where that is impossible."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of the process's stdout; empty at its end.

        For a command, empty only when its stderr has ended as well.

        Raises:
            ChannelClosedError: The engine broke the stream.
        """
        ...

    def diagnostics(self) -> str:
        """Return the end of the process's stderr, bounded."""
        ...

    async def kill(self) -> None:
        """End every process in the sandbox now. Harmless when it has ended."""
        ...

    async def wait(self) -> ExitReport:
        """Wait until the process has ended and report how.

        Not bounded here; callers kill first or set a deadline.
        """
        ...


@runtime_checkable
class DistantSandbox(Protocol):
    """A sandbox on another machine, which can fall silent without an end of its stream."""

    async def why_lost(self, silence: str) -> SandboxError:
        """Return the error of its loss, by what can be found out of it."""
        ...


class Backend(Protocol):
    """Runs processes in isolation. Enter it before use.

    By default it has no engine that can stop or end.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def name(self) -> str:
        """ "podman", "docker", ..."""
        ...

    async def probe(self) -> Probe:
        """Run something and report; raises nothing for a backend that does not work."""
        ...

    def launch(self, spec: LaunchSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Start a sandbox; leaving the context always destroys it and all its processes and data.

        Raises:
            SandboxError: On entering, when it cannot be started.
        """
        ...

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Enter this while a program runs, so that its engine is not stopped as idle."""
        return nullcontext()

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Stop what the backend holds open once it is idle; return when nothing is left to stop.

        Args:
            drain: Destroys the waiting sandboxes; called before their engine is stopped.
        """
        await anyio.lowlevel.checkpoint()

    async def problem(self) -> str:
        """Return why no sandbox could be started now, as far as a look shows; empty if one could.

        Bounded, and cheap enough for every few seconds.
        """
        return ""

    async def reap(self) -> int:
        """Remove what dead bridges left; return the number of sandboxes removed."""
        ...

    async def aclose(self) -> None: ...
