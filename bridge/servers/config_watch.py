"""Noticing while serving that the configuration has changed, with nobody asking.

Owns which changes matter, and what happens where the kernel does not tell: on network file systems,
and once its watches are used up. Which directories are watched is discovery's business, and what is
done about a change `Servers.refresh`'s: sessions whose definition did not change stay, those of
others end when their calls have.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from watchfiles import awatch

from bridge.discovery.find import DiscoveryContext, survey
from bridge.discovery.watch import watched_paths
from bridge.tasks import background_task

logger = logging.getLogger(__name__)

SETTLE_MILLISECONDS = 400
"""Changes that follow each other within this are one: editors write in several steps."""

STEP_MILLISECONDS = 100
"""Without a change after the first, for which is waited. Also how soon an end is noticed."""

LOOK_SECONDS = 15.0
"""Between looks of our own, which take microseconds: what happened while watching began anew, or
where the kernel does not tell, is noticed then."""

POLL_SECONDS = 5.0
"""Between looks where nothing can be watched."""

GONE_SECONDS = 1.0
"""Before another try when a directory went away just as it was to be watched."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to watch.

    Attributes:
        directories: Existing ones, watched without what is below them.
        places: The paths that matter, what leads to them, and what those that are links lead to.
        whole: Directories in which any file matters.
    """

    directories: tuple[str, ...]
    places: frozenset[str]
    whole: frozenset[str]

    def concerns(self, path: str) -> bool:
        """Whether a change of this path may be one of the configuration."""
        return path in self.places or os.path.dirname(path) in self.whole  # noqa: PTH120 - pure


def configuration(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> Plan:
    """Return how to notice that the configuration changes. Asks the file system what exists.

    Args:
        references: Files that the configuration names, as `Discovery` has them.
    """
    # The working directory and a repository's own are only where a project begins and ends: what
    # happens in them says nothing, and a lot does.
    paths = [path for path in (*survey(context).paths, *references) if path != context.cwd]
    whole = [path for path in paths if path.name != ".git" and _is_directory(path)]
    places = {str(place) for path in paths for place in (path, *path.parents)}
    return Plan(
        directories=tuple(map(str, watched_paths(context, references))),
        places=frozenset(places | {os.path.realpath(path) for path in paths}),
        whole=frozenset(map(str, whole)) | {os.path.realpath(path) for path in whole},
    )


class Watching:
    """Calls `refresh` soon after something changed. Runs while `running` is open.

    Args:
        make_plan: Returns what to watch; called in a thread.
        refresh: Looks for itself whether anything did change.
    """

    def __init__(
        self,
        make_plan: Callable[[], Plan],
        refresh: Callable[[], Awaitable[object]],
        *,
        look_seconds: float = LOOK_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._make_plan = make_plan
        self._refresh = refresh
        self._look_seconds = look_seconds
        self._poll_seconds = poll_seconds

    def running(self) -> AbstractAsyncContextManager[None]:
        """Watch, as long as this is open."""
        return background_task(self._run)

    async def _run(self) -> None:
        try:
            while True:
                await self._watch()
        except Exception as error:
            # Where the kernel refuses, because its watches are used up, say, several kinds come out
            # of the library, some in groups. None of them may end the serving.
            logger.warning(
                "Configuration files cannot be watched (%s); they are looked at every %g s.",
                error,
                self._poll_seconds,
            )
        while True:
            await self._look()
            await anyio.sleep(self._poll_seconds)

    async def _watch(self) -> None:
        """Watch until something else has to be watched."""
        watched = await self._plan()
        await self._look()
        over = anyio.Event()
        async with background_task(partial(_ended, over)):
            await self._follow(watched, over)

    async def _follow(self, watched: Plan, over: anyio.Event) -> None:
        changes = awatch(
            *watched.directories,
            stop_event=over,
            watch_filter=lambda _, path: watched.concerns(path),
            debounce=SETTLE_MILLISECONDS,
            step=STEP_MILLISECONDS,
            rust_timeout=round(self._look_seconds * 1000),
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            async for _ in changes:
                await self._look()
                if await self._plan() != watched:
                    return
        except FileNotFoundError:
            await anyio.sleep(GONE_SECONDS)
        finally:
            await changes.aclose()

    async def _plan(self) -> Plan:
        return await anyio.to_thread.run_sync(self._make_plan)

    async def _look(self) -> None:
        try:
            await self._refresh()
        except Exception:
            # A defect in reading one configuration must not end the watching of all.
            logger.exception("the configuration could not be read again")


async def _ended(over: anyio.Event) -> None:
    """Set the event when this is cancelled.

    The library waits in a thread and does so shielded: cancelled itself it would notice only at its
    next look.
    """
    try:
        await anyio.sleep_forever()
    finally:
        over.set()


def _is_directory(path: Path) -> bool:
    # Unlike a Path's own method it never raises, whatever stands there and whoever may see it.
    return os.path.isdir(path)  # noqa: PTH112
