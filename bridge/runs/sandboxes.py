"""Sandboxes for runs: which backend, the warm pool, and what a sandbox is started with.

Owns the backend in use, the sandboxes waiting in it, and the recipe by which two count as alike.
What is done with a sandbox is the engine's business; how one waits, `bridge.sandbox.pool`'s.
"""

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

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.errors import LaunchError
from bridge.model import Json, Limits
from bridge.private_files import in_use
from bridge.runs.program import save_state
from bridge.runs.ready_sandbox import ReadySandbox, open_guest
from bridge.sandbox.backend import Backend, Bind, LaunchSpec
from bridge.sandbox.bundle import BOOTSTRAP_ARGV
from bridge.sandbox.limits import limits_for
from bridge.sandbox.ownership import reap_leftovers
from bridge.sandbox.pool import Acquire, PoolReport, Reservation, WarmPool, acquire_nothing
from bridge.sessions.state import MAX_STATE_BYTES
from bridge.settings import Settings
from bridge.settings.time_zone import time_zone
from bridge.tasks import background_tasks

_DEFAULTS = Limits()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is fixed when a sandbox starts: two runs with equal recipes can share a pool.

    Attributes:
        limits: What the sandbox is started under. Its timeout is the longest that a run may ask
            for: the deadline itself comes with the `Run` frame, but the limit on CPU time that
            backends derive from it is set before. What else is enforced later has its default
            here, since it makes no difference to a sandbox.
    """

    limits: Limits
    binds: tuple[Bind, ...] = ()


def recipe_for(limits: Limits, binds: tuple[Bind, ...] = ()) -> Recipe:
    """Return what the sandbox of a run with these limits is made from."""
    later = ["output_bytes", "output_tokens", "result_bytes", "frame_bytes"]
    later += ["longest_timeout", "tool_calls", "concurrent_calls"]
    defaults = {name: getattr(_DEFAULTS, name) for name in later}
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
"""Everything a program finds in its environment, but for its time zone."""


Reserved = Reservation[ReadySandbox]  # A sandbox that is one run's until the reservation ends.


class Sandboxes:
    """Hands out sandboxes whose guest is up, while it is `opened`; then every one of them ends."""

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
        """Hand out sandboxes while this is open; entering starts none."""
        # All three hold task groups, so they are entered here, in the task that will leave them.
        try:
            async with background_tasks() as self._tasks, self._pool, self._session_pool:
                yield
        finally:
            backend, self._backend = self._backend, None
            if backend is not None:
                await backend.aclose()

    @property
    def report(self) -> PoolReport:
        """What waits, and how runs came by their sandboxes so far."""
        return self._pool.report

    async def backend(self) -> Backend:
        """Return the backend in use, choosing it at the first call.

        Raises:
            SandboxError: None works; the next call tries again.
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
    ) -> AbstractAsyncContextManager[Reserved]:
        """Set a sandbox aside for one run, starting one if none waits; leaving destroys it.

        Args:
            fresh: Whether one that waited will not do, because the last that did was broken.
            binds: What of the host it is to have.
            keep: Keeps what is the run's until its sandbox is gone.
        """
        directories = self._directories if limits.directories else ()
        recipe = recipe_for(limits, (*directories, *binds))
        return self._pool.reserve(recipe, fresh=fresh, keep=keep)

    @asynccontextmanager
    async def reserve_permanent(
        self, limits: Limits, *, binds: tuple[Bind, ...] = ()
    ) -> AsyncIterator[Reserved]:
        """Set a sandbox aside that runs of one session follow each other in; it is never shared.

        What it is in is not stopped for being idle while it is there.

        Raises:
            SandboxError: There is no backend.
        """
        # The kernel counts a process's time over all of its runs.
        # CPU time of a session's process in all
        limits = replace(limits, longest_timeout=max(limits.longest_timeout, 24 * 3600.0))
        backend = await self.backend()
        recipe = recipe_for(limits, (*self._directories, *binds))
        async with backend.in_use(), self._session_pool.reserve(recipe) as reservation:
            yield reservation

    async def facts(self) -> tuple[Mapping[str, Any], Json]:
        """Return what the guest of a sandbox tells of it, such as its Python, and its packages."""
        async with self.reserve(limits_for(self._settings)) as reservation:
            guest = await reservation.get()
            state = await save_state(guest, 1, MAX_STATE_BYTES, "distributions")
            data = state.data if state is not None else None
            return guest.facts, json.loads(data or b"[]")

    async def look(self, source: Path, inside: str, task: str) -> bytes | None:
        """Return what a guest reports of packages; None if a sandbox cannot tell.

        Args:
            inside: Where programs see them, which becomes part of tracebacks.
        """
        bind = Bind(source=str(source), inside=inside, executable=True)
        recipe = recipe_for(limits_for(self._settings), (bind,))
        async with self._open_guest(recipe) as guest:
            state = await save_state(guest, 1, MAX_STATE_BYTES, task, [inside])
            return None if state is None else state.data

    def start_soon(self, job: Callable[[], Awaitable[None]]) -> None:
        async def run_guarded() -> None:
            try:
                await job()
            except Exception:
                # A named boundary: nothing waits for it.
                logger.exception("a job in the background failed")

        self._tasks.start_soon(run_guarded)

    @asynccontextmanager
    async def _open_guest(self, recipe: Recipe) -> AsyncIterator[ReadySandbox]:
        backend = await self.backend()
        await self._see_unmoved()
        async with AsyncExitStack() as stack:
            for bind in recipe.binds:
                if bind.executable:
                    # While it is mounted no bridge evicts it.
                    stack.enter_context(in_use(Path(bind.source)))
            async with backend.in_use():
                session = await stack.enter_async_context(open_guest(backend, self._launch(recipe)))
            yield session

    async def _see_unmoved(self) -> None:
        """Check that directories are still where they were when the settings were read.

        Engines follow links: one that was put there later would be mounted.
        """
        for bind in self._directories:
            real = await anyio.to_thread.run_sync(os.path.realpath, bind.source)
            if real != bind.source:
                name = bind.inside.rpartition("/")[2]
                message = f"The directory {name!r} has become a link to another place."
                remedy = "Put it back, or name the other in config.toml and start the bridge again."
                # Where it leads is not for programs to know.
                raise LaunchError(message, remedy=remedy)

    def _launch(self, recipe: Recipe) -> LaunchSpec:
        return LaunchSpec(
            run_id=uuid.uuid4().hex,
            argv=BOOTSTRAP_ARGV,
            env={**GUEST_ENVIRONMENT, "TZ": time_zone(self._settings.environ)},
            limits=recipe.limits,
            binds=recipe.binds,
        )
