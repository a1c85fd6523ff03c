"""Sandboxes for runs: the backend in use, its warm pool, and what a sandbox is started with."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.errors import LaunchError
from bridge.event_loop import background_tasks
from bridge.model import Json, Limits
from bridge.private_files import in_use
from bridge.runs.program import ReadySandbox, open_guest, save_state
from bridge.sandbox.backend import Backend, Bind, LaunchSpec, limits_for
from bridge.sandbox.bundle import BOOTSTRAP_ARGV
from bridge.sandbox.ownership import reap_leftovers
from bridge.sandbox.pool import Acquire, PoolReport, Reservation, WarmPool, acquire_nothing
from bridge.sessions.checkpoints import MAX_STATE_BYTES
from bridge.settings import Settings
from bridge.settings.state import time_zone

_DEFAULTS = Limits()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The limits and mounts of a sandbox at its start. A run can take a sandbox of its recipe."""

    limits: Limits
    binds: tuple[Bind, ...] = ()


def recipe_for(limits: Limits, binds: tuple[Bind, ...] = ()) -> Recipe:
    """Return the recipe for the sandbox of a run with these limits."""
    # Limits that are enforced later have their defaults, so that more runs have equal recipes.
    later = ["output_bytes", "output_tokens", "result_bytes", "frame_bytes"]
    later += ["longest_timeout", "tool_calls", "concurrent_calls"]
    defaults = {name: getattr(_DEFAULTS, name) for name in later}
    # Backends derive the limit on CPU time from the longest timeout that a run may ask for.
    timeout = max(limits.timeout, limits.longest_timeout)
    return Recipe(limits=replace(limits, **{**defaults, "timeout": timeout}), binds=binds)


logger = logging.getLogger(__name__)

GUEST_ENVIRONMENT = {
    # The width of tables: argparse, rich and others read it, and polars its own variables.
    "COLUMNS": "200",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "POLARS_FMT_MAX_COLS": "20",
    "POLARS_TABLE_WIDTH": "200",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "/tmp",
}
"""A program's environment, without its time zone."""


Reserved = Reservation[ReadySandbox]


class Sandboxes:
    """Starts sandboxes and hands them out while it is `opened`; closing ends them all."""

    _tasks: TaskGroup

    def __init__(
        self, settings: Settings, choose_backend: Callable[[Settings], Awaitable[Backend]]
    ) -> None:
        self._settings = settings
        self._choose = choose_backend
        self._directories = tuple(
            Bind(source=one.path, inside=one.inside, writable=one.writable)
            for one in settings.offered_directories
        )
        self._choosing = anyio.Lock()
        self._backend: Backend | None = None
        self._pool = WarmPool(
            self._open_guest, most=settings.warm, wait_dead=ReadySandbox.wait_dead
        )
        self._session_pool = WarmPool(self._open_guest, most=0, wait_dead=ReadySandbox.wait_dead)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the pools; entering starts no sandbox."""
        # All three hold task groups, which must be left by the task that entered them.
        try:
            async with background_tasks() as self._tasks, self._pool, self._session_pool:
                yield
        finally:
            backend, self._backend = self._backend, None
            if backend is not None:
                await backend.aclose()

    @property
    def report(self) -> PoolReport:
        return self._pool.report

    @property
    def capacity(self) -> int | None:
        """How many runs the backend's place has room for; None if unknown."""
        return self._backend.capacity if self._backend is not None else None

    async def backend(self) -> Backend:
        """Return the backend in use, choosing it at the first call.

        Raises:
            SandboxError: No backend works; the next call tries again.
        """
        if self._backend is not None:
            return self._backend
        async with self._choosing:
            if self._backend is None:
                self._backend = await self._choose(self._settings)
                await reap_leftovers(self._backend)
                self._tasks.start_soon(self._backend.tend, self._pool.drain)
            return self._backend

    def reserve(
        self,
        limits: Limits,
        *,
        fresh: bool = False,
        binds: tuple[Bind, ...] = (),
        keep: Acquire = acquire_nothing,
        started: Callable[[], object] = acquire_nothing,
    ) -> AbstractAsyncContextManager[Reserved]:
        """Reserve a sandbox for one run, starting one if none waits; leaving destroys it.

        Args:
            fresh: Whether to start a new sandbox, because one that waited was dead.
            keep: Keeps the run's slot until the sandbox is gone.
            started: Called once the sandbox is ready, or cannot be.
        """
        directories = self._directories if limits.directories else ()
        recipe = recipe_for(limits, (*directories, *binds))
        return self._pool.reserve(recipe, fresh=fresh, keep=keep, started=started)

    @asynccontextmanager
    async def reserve_permanent(
        self, limits: Limits, *, binds: tuple[Bind, ...] = ()
    ) -> AsyncIterator[Reserved]:
        """Reserve a sandbox for the runs of one session; its engine is in use until it ends."""
        # The kernel counts the CPU time of a session's process over all its runs.
        limits = replace(limits, longest_timeout=max(limits.longest_timeout, 24 * 3600.0))
        backend = await self.backend()
        recipe = recipe_for(limits, (*self._directories, *binds))
        async with backend.in_use(), self._session_pool.reserve(recipe) as reservation:
            yield reservation

    async def facts(self) -> tuple[Mapping[str, Any], Json]:
        """Return a guest's facts, such as its Python version, and its packages."""
        async with self.reserve(limits_for(self._settings)) as reservation:
            guest = await reservation.get()
            state = await save_state(guest, 1, MAX_STATE_BYTES, "distributions")
            data = state.data if state is not None else None
            return guest.facts, json.loads(data or b"[]")

    async def look(self, source: Path, inside: str, task: str) -> bytes | None:
        """Return a guest's report on a directory of packages; None if it sends none.

        Args:
            inside: The directory's path in the sandbox, which tracebacks show.
        """
        bind = Bind(source=str(source), inside=inside, executable=True)
        async with self._open_guest(recipe_for(limits_for(self._settings), (bind,))) as guest:
            state = await save_state(guest, 1, MAX_STATE_BYTES, task, [inside])
            return None if state is None else state.data

    def start_soon(self, job: Callable[[], Awaitable[None]]) -> None:
        async def run_guarded() -> None:
            try:
                await job()
            except Exception:
                # A named boundary: no one awaits the job.
                logger.exception("a job in the background failed")

        self._tasks.start_soon(run_guarded)

    @asynccontextmanager
    async def _open_guest(self, recipe: Recipe) -> AsyncIterator[ReadySandbox]:
        backend = await self.backend()
        await self._check_directories()
        async with AsyncExitStack() as stack:
            for bind in recipe.binds:
                if bind.executable:
                    # No bridge evicts a mounted directory.
                    stack.enter_context(in_use(Path(bind.source)))
            spec = LaunchSpec(
                run_id=uuid.uuid4().hex,
                argv=BOOTSTRAP_ARGV,
                env={**GUEST_ENVIRONMENT, "TZ": time_zone(self._settings.environ)},
                limits=recipe.limits,
                binds=recipe.binds,
            )
            async with backend.in_use():
                guest = await stack.enter_async_context(open_guest(backend, spec))
            yield guest

    async def _check_directories(self) -> None:
        """Check that no offered directory has become a link since the settings were read.

        Engines follow links, so they would mount the link's target.
        """
        for bind in self._directories:
            if await anyio.to_thread.run_sync(os.path.realpath, bind.source) != bind.source:
                name = bind.inside.rpartition("/")[2]
                message = f"The directory {name!r} has become a link to another place."
                remedy = "Put it back, or name the other in config.toml and start the bridge again."
                # The message names no target: programs must not learn it.
                raise LaunchError(message, remedy=remedy)
