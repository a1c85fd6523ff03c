"""The seam between the engine and whatever runs code.

Owns the Protocols and the values that cross them. A backend starts one process in isolation and
offers its stdin and stdout as a byte stream; it knows nothing of frames, tools or Python. The
process is a program's guest, or a command of the user's that `run_command` names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from bridge.model import Isolation, Limits


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A directory of the host, and where the sandbox has it.

    Attributes:
        executable: Whether code in it may be loaded, as packages with native parts need.
    """

    source: str
    inside: str
    writable: bool = False
    executable: bool = False


HOME = "/home/sandbox"
"""Of a command. Read-only and empty, but for what `CommandSpec.files` puts there."""


@dataclass(frozen=True, kw_only=True)
class HostFile:
    """A file that a command has a copy of, or sees read-only where copies cannot be made.

    Attributes:
        data: Its content; copied where there is no need to show the file itself.
    """

    source: str
    inside: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Executable:
    """Something of the host that may be executed, and the least it needs to start.

    Attributes:
        name: How it is called.
        file: Where it is, links resolved.
        executes: The files that the kernel executes for it: itself, its interpreter, their loader.
        needs: Directories and files that those read.
        links: Symbolic links on the way to them: what each leads to, and its own place.
    """

    name: str
    file: str
    executes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """What differs where a command of the user's runs instead of a program.

    It sees of the host's files only what it is granted (`LaunchSpec.binds`), both of its outputs
    are wanted, and its input ends.

    Attributes:
        cwd: The working directory inside.
        cpu_seconds, file_bytes: Of each process, and of each file it writes.
        on_error: Given what is written to stderr, while somebody receives.
        file: The executable on the host, links resolved; empty in a container, where the first
            word of the command is looked up in the image.
        files: Files that are there besides.
        writable: Directories inside that are in memory, empty at the start.
        executables: All that may be executed; empty in a container.
        network: Whether there is one.
        image: In a container.
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
        limits: What the process may use.
        binds: What of the host is there besides; the configuration's own choice, never a
            program's or a client's.
        command: What differs for a command of the user's; None for a program.
    """

    run_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    binds: tuple[Bind, ...] = ()
    command: CommandSpec | None = None


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """How a sandbox's first process ended, as its engine tells it.

    Attributes:
        exit_code: None when killed by a signal or unknown.
        signal: The signal that ended it, if one did.
        oom_killed: Whether the kernel killed anything in the sandbox for memory; None if unknown.
        detail: The engine's own words, for errors.
    """

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Whether a backend works here, found out by running something in it.

    Attributes:
        ok: It started a process, spoke with it and removed it.
        summary: One line for a person ("podman 4.3.1, rootless, runc").
        error_code: Code of the `BridgeError` that stopped it; empty when ok.
        remedy: What to do when not ok.
        isolation: What was in force, when ok.
        details: Further facts for `doctor`, name to text.
    """

    backend: str
    ok: bool
    summary: str
    error_code: str = ""
    remedy: str = ""
    isolation: Isolation | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class Sandbox(Protocol):
    """One running isolated process."""

    @property
    def id(self) -> str:
        """What the engine calls it, for logs."""
        ...

    @property
    def isolation(self) -> Isolation:
        """What the backend put in force."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data` to the process's stdin, waiting while it does not read.

        Raises:
            ChannelClosedError: The process or the engine is gone.
        """
        ...

    def end_input(self) -> None:
        """Let the process's stdin end. Idempotent."""
        ...

    async def end_output(self) -> None:
        """Let whoever writes to stdout find that nobody reads it; or end it, without such a way."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of the process's stdout; empty at its end.

        Of a command's, empty when its stderr has ended as well.

        Raises:
            ChannelClosedError: The engine broke the stream.
        """
        ...

    def diagnostics(self) -> str:
        """Return the last part of the process's own stderr, bounded."""
        ...

    async def kill(self) -> None:
        """End every process in the sandbox now. Harmless when it has ended."""
        ...

    async def wait(self) -> ExitReport:
        """Wait until the process has ended and say how.

        The wait is not bounded here; callers kill first or set a deadline.
        """
        ...


class Backend(Protocol):
    """Something that can run a process in isolation. Enter it before use."""

    @property
    def name(self) -> str:
        """ "podman", "docker", ..."""
        ...

    async def probe(self) -> Probe:
        """Try to run something and report; never raises for what it finds."""
        ...

    def launch(self, spec: LaunchSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Start a sandbox; leaving the context destroys it and all it holds, always.

        Raises:
            SandboxError: On entering, when it cannot be started.
        """
        ...

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Hold this while a program runs: nothing that it runs in is stopped for being idle."""
        ...

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Look after what the backend holds open. Returns when there is nothing (left) to do.

        Args:
            drain: Destroys the sandboxes that only wait; called before what they are in is stopped.
        """
        ...

    async def reap(self) -> int:
        """Remove what dead bridges left behind; return how many sandboxes that were."""
        ...

    async def aclose(self) -> None:
        """Release what the backend holds open. Idempotent."""
        ...
