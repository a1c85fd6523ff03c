"""The life of a backend without namespaces: what Landlock's and Seatbelt's share.

Owns launching, probing and the reaping of what dead bridges left. What a backend finds out of this
machine, and how it puts a sandbox together, is its own.
"""

from __future__ import annotations

import pwd
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.binds import refuse_binds
from bridge.sandbox.process import rundir
from bridge.sandbox.process.group import Group, Shelf, reap
from bridge.sandbox.process.grouping import Grouping
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.process.rundir import RunDirectory
from bridge.sandbox.process.sandbox import Start, run_sandbox
from bridge.sandbox.process.trial import try_out
from bridge.sandbox.reaper import Owner

MAX_UNREMOVED = 100
"""Directories remembered that could not be removed; beyond it the next bridge reaps them."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What every such backend finds out once.

    Attributes:
        stage: What runs in it ahead of a program, compiled; see `stage`.
        base: Where runs' directories are made.
        uid: Whom programs run as; None for the bridge's own user.
        shelf: Where control groups are made, if anywhere.
    """

    interpreter: Interpreter
    stage: bytes
    base: Path
    uid: int | None
    owner: Owner
    shelf: Shelf


F = TypeVar("F", bound=Ground)


class PlainBackend(ABC, Generic[F]):
    """Runs programs beside the bridge. Enter it before use; it looks around when first needed."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        interpreter: str | None,
        packages: Path | None,
        limits: Limits | None,
    ) -> None:
        self._environ = environ
        self._interpreter = interpreter
        self._packages = packages
        self._limits = limits or Limits()
        self._lock = anyio.Lock()
        self._found: F | None = None
        self._groups = Grouping()
        self._unremoved: set[Path] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} unremoved={len(self._groups) + len(self._unremoved)}>"

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in settings."""

    @abstractmethod
    def _look(self) -> F:
        """Find out what is needed. Blocks.

        Raises:
            SandboxError: It cannot be had here.
        """

    @abstractmethod
    def _start(self, found: F, spec: LaunchSpec, place: RunDirectory, group: Group | None) -> Start:
        """Put one sandbox together."""

    @abstractmethod
    def _success(self, sandbox: Sandbox) -> Probe:
        """Report on a sandbox that answered."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Try once more to remove what is left; see `Backend.aclose`. Idempotent."""
        await self._groups.aclose()
        with anyio.CancelScope(shield=True):
            for path in list(self._unremoved):
                await self._remove(path)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a sandbox; see `Backend.launch`."""
        refuse_binds(self.name, spec.binds)
        found = await self._look_around()
        async with (
            # Removed last, when nobody is left who could write there.
            self._directory(found) as place,
            self._groups.group(found.shelf, found.owner, spec.limits) as group,
            run_sandbox(self._start(found, spec, place, group)) as sandbox,
        ):
            yield sandbox

    async def probe(self) -> Probe:
        """Run something in a sandbox; see `Backend.probe`."""
        return await try_out(self.name, self.launch, self._success, self._limits)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Do nothing: there is no daemon or machine that could stop; see `Backend.in_use`."""
        yield

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Do nothing, likewise; see `Backend.tend`."""
        await anyio.lowlevel.checkpoint()

    async def reap(self) -> int:
        """Remove what dead bridges left; see `Backend.reap`.

        Their keepers ended the processes; what can be left is control groups and directories.
        """
        found = await self._look_around()
        count = await anyio.to_thread.run_sync(reap, found.shelf, found.owner)
        return max(count, await anyio.to_thread.run_sync(rundir.reap, found.base, found.owner))

    async def _look_around(self) -> F:
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._look)
            return self._found

    @asynccontextmanager
    async def _directory(self, found: F) -> AsyncIterator[RunDirectory]:
        for left in list(self._unremoved):
            await self._remove(left)
        # A thread cannot be interrupted, so a cancelled call still returns what it made.
        place = await anyio.to_thread.run_sync(rundir.make, found.base, found.owner, found.uid)
        try:
            yield place
        finally:
            with anyio.CancelScope(shield=True):
                await self._remove(place.path)

    async def _remove(self, path: Path) -> None:
        self._unremoved.discard(path)
        gone = await anyio.to_thread.run_sync(rundir.remove, path)
        if not gone and len(self._unremoved) < MAX_UNREMOVED:
            self._unremoved.add(path)


def nobody() -> int:
    """Return the user id that owns nothing, as this system has it."""
    return pwd.getpwnam("nobody").pw_uid
