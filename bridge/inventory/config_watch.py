"""Watches the configuration files while the bridge serves, and refreshes the servers on a change.

It polls if the kernel reports no changes, as on network file systems or without free watches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from watchfiles import awatch

from bridge.discovery.finder import DiscoveryContext, survey, watched_paths
from bridge.event_loop import background_task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatchPlan:
    """The paths to watch."""

    directories: tuple[str, ...]  # Existing ones, watched without their subdirectories.
    paths: frozenset[str]  # With their parents, and the targets of links among them.
    whole: frozenset[str]  # Directories in which any file matters.

    def concerns(self, path: str) -> bool:
        return path in self.paths or os.path.dirname(path) in self.whole  # noqa: PTH120 - pure


def watch_plan(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> WatchPlan:
    """Return the paths to watch, with the files that the configuration names. Reads files."""
    # The working directory and a repository only delimit a project. Their many changes do not
    # concern the configuration.
    paths = [path for path in (*survey(context).paths, *references) if path != context.cwd]
    # Unlike `Path.is_dir` this never raises, also not without permission.
    whole = [path for path in paths if path.name != ".git" and os.path.isdir(path)]  # noqa: PTH112
    watched = {str(each) for path in paths for each in (path, *path.parents)}
    return WatchPlan(
        directories=tuple(map(str, watched_paths(context, references))),
        paths=frozenset(watched | {os.path.realpath(path) for path in paths}),
        whole=frozenset(map(str, whole)) | {os.path.realpath(path) for path in whole},
    )


def watch_config(
    make_plan: Callable[[], WatchPlan],
    refresh: Callable[[], Awaitable[object]],
    *,
    check_seconds: float = 15.0,  # A check finds changes that the kernel does not report.
    poll_seconds: float = 5.0,  # Between checks if nothing can be watched.
) -> AbstractAsyncContextManager[None]:
    """Call `refresh` soon after a change of the paths to watch, while the context is open."""

    async def refresh_safely() -> None:
        try:
            await refresh()
        except Exception:
            # A bug in reading one configuration must not end the watching.
            logger.exception("the configuration could not be read again")

    async def watch() -> None:
        # A client that starts has its tools sooner without it, and each of its requests refreshes.
        await anyio.sleep(1.0)
        try:
            while True:
                await _follow(make_plan, refresh_safely, check_seconds)
        except Exception as error:
            # If the kernel refuses, as without free watches, the library raises several
            # kinds of exceptions, some in groups. None of them may end the serving.
            text = "Configuration files cannot be watched (%s); they are checked every %g s."
            logger.warning(text, error, poll_seconds)
        while True:
            await refresh_safely()
            await anyio.sleep(poll_seconds)

    return background_task(watch)


async def _follow(
    make_plan: Callable[[], WatchPlan], refresh: Callable[[], Awaitable[None]], check_seconds: float
) -> None:
    plan = await anyio.to_thread.run_sync(make_plan)
    await refresh()
    stop = anyio.Event()

    async def set_when_cancelled() -> None:
        # The library waits in a thread, shielded from cancellation, until its timeout.
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()

    changes = awatch(
        *plan.directories,
        stop_event=stop,
        watch_filter=lambda _, path: plan.concerns(path),
        debounce=400,  # Editors write in several steps.
        step=100,  # also the longest delay before stopping is noticed
        rust_timeout=round(check_seconds * 1000),
        yield_on_timeout=True,
        recursive=False,
        ignore_permission_denied=True,
    )
    # The library's thread is one more, since a bridge with many clients watches for each of them.
    threads = anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens += 1
    async with background_task(set_when_cancelled), aclosing(changes):
        try:
            async for _ in changes:
                await refresh()
                if await anyio.to_thread.run_sync(make_plan) != plan:
                    return
        except FileNotFoundError:
            await anyio.sleep(1.0)  # A directory was removed just before it was watched.
        finally:
            threads.total_tokens -= 1
