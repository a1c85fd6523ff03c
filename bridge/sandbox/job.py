"""The seam between `run_command` and whatever runs its stages.

Owns the Protocols and the values that cross it. A job is one command with what of the host it is
given: paths, files, a network. It differs from a program's sandbox in that both its streams are
wanted, its input ends, and whoever reads its output may stop reading.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport, LaunchSpec

HOME = "/home/sandbox"
"""Of a job. Read-only and empty, but for what `JobSpec.files` puts there."""

STRANGER = 65534
"""A user and a group that own nothing anywhere."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A path of the host, and where the sandbox has it."""

    source: str
    inside: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class HostFile:
    """A file that the sandbox has a copy of, or sees read-only where copies cannot be made.

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
class JobSpec(LaunchSpec):
    """What to start.

    Attributes:
        file: The executable on the host, links resolved; empty in a container, where the first
            word of `argv` is looked up in the image.
        cwd: The working directory inside.
        mounts: What of the host is there, shortest path first.
        files: Files that are there besides.
        writable: Directories inside that are in memory, empty at the start.
        executables: All that may be executed; empty in a container.
        network: Whether there is one.
        cpu_seconds, file_bytes: Of each process, and of each file it writes.
        image, user: In a container; the latter is "uid:gid", the backend's choice.
    """

    file: str = ""
    cwd: str
    mounts: tuple[Mount, ...]
    files: tuple[HostFile, ...] = ()
    writable: tuple[str, ...] = ()
    executables: tuple[Executable, ...] = ()
    network: bool = False
    cpu_seconds: int
    file_bytes: int
    image: str = ""
    user: str = ""


class Job(Protocol):
    """One running command."""

    @property
    def isolation(self) -> Isolation:
        """What the backend put in force."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data` to stdin, waiting while it is not read.

        Raises:
            ChannelClosedError: Nobody reads it any more.
        """
        ...

    def end_input(self) -> None:
        """Let stdin end. Idempotent."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty at its end; stderr is taken in meanwhile.

        Raises:
            ChannelClosedError: The stream broke.
        """
        ...

    async def stop_output(self) -> None:
        """Let whoever writes to stdout find that nobody reads it."""
        ...

    async def drain(self) -> None:
        """Take in what is left of stderr, until it ends."""
        ...

    async def kill(self) -> None:
        """End every process of it now. Harmless when it has ended."""
        ...

    async def wait(self) -> ExitReport:
        """Wait until it has ended and say how."""
        ...


class JobBackend(Protocol):
    """Something that runs jobs."""

    @property
    def name(self) -> str:
        """ "bubblewrap", "podman", "docker"."""
        ...

    def launch_job(
        self, spec: JobSpec, on_error: Callable[[bytes], None]
    ) -> AbstractAsyncContextManager[Job]:
        """Start a command; leaving the context destroys it and all it started, always.

        Args:
            on_error: Given what is written to stderr, while somebody receives or drains.

        Raises:
            SandboxError: On entering, when it cannot be started.
        """
        ...


def group_of(uid: int) -> int:
    """Return the group a job of that user runs as: the user's own, never root's. Blocks.

    A directory's group is no answer: it may be one that opens more than the directory.
    """
    try:
        found = pwd.getpwuid(uid).pw_gid
    except KeyError:
        return STRANGER
    return found or STRANGER
