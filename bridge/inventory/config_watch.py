"""Watches the configuration files while the bridge serves, and refreshes the servers on a change.

It polls where the kernel reports no changes: on network file systems, and once its watches are
used up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from watchfiles import awatch

from bridge.discovery.finder import DiscoveryContext, survey
from bridge.discovery.watch import watched_paths
from bridge.tasks import background_task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatchPlan:
    """The paths to watch.

    Attributes:
        directories: Existing directories, watched without their subdirectories.
        paths: The configuration's paths, their parents, and the targets of links among them.
        whole: Directories in which any file matters.
    """

    directories: tuple[str, ...]
    paths: frozenset[str]
    whole: frozenset[str]

    def concerns(self, path: str) -> bool:
        return path in self.paths or os.path.dirname(path) in self.whole  # noqa: PTH120 - pure


def watch_plan(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> WatchPlan:
    """Return the paths to watch, with the files that the configuration names. Reads files."""
    # The working directory and a repository's only delimit a project: their many changes do not
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


class ConfigWatcher:
    """Calls `refresh` soon after a change of the paths to watch, while `running` is open."""

    def __init__(
        self,
        make_plan: Callable[[], WatchPlan],
        refresh: Callable[[], Awaitable[object]],
        *,
        check_seconds: float = 15.0,  # A check finds changes that the kernel does not report.
        poll_seconds: float = 5.0,  # Between checks where nothing can be watched.
    ) -> None:
        self._make_plan = make_plan
        self._refresh = refresh
        self._check_seconds = check_seconds
        self._poll_seconds = poll_seconds

    def running(self) -> AbstractAsyncContextManager[None]:
        return background_task(self._run)

    async def _run(self) -> None:
        try:
            while True:
                await self._watch()
        except Exception as error:
            # If the kernel refuses, as when its watches are used up, the library raises several
            # kinds of exceptions, some in groups. None of them may end the serving.
            logger.warning(
                "Configuration files cannot be watched (%s); they are checked every %g s.",
                error,
                self._poll_seconds,
            )
        while True:
            await self._refresh_safely()
            await anyio.sleep(self._poll_seconds)

    async def _watch(self) -> None:
        plan = await anyio.to_thread.run_sync(self._make_plan)
        await self._refresh_safely()
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
            rust_timeout=round(self._check_seconds * 1000),
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        async with background_task(set_when_cancelled), aclosing(changes):
            try:
                async for _ in changes:
                    await self._refresh_safely()
                    if await anyio.to_thread.run_sync(self._make_plan) != plan:
                        return
            except FileNotFoundError:
                await anyio.sleep(1.0)  # A directory was removed just before it was watched.

    async def _refresh_safely(self) -> None:
        try:
            await self._refresh()
        except Exception:
            # A bug in reading one configuration must not end the watching.
            logger.exception("the configuration could not be read again")
