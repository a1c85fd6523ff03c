"""Keeping the catalogue of tools true in the background.

Owns when a server is asked anew although nobody waits for it: when what is known of it is old, and
when it says that its tools have changed. Servers that were started for that alone are stopped
again, so that a search over fifty servers does not leave fifty processes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import anyio

from bridge.engine.listing import Lister
from bridge.errors import BridgeError
from bridge.model import ServerSpec
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 24 * 3600.0
"""How old a listing may become. Servers change with their releases, and a run asks them anyway."""

FIRST_STARTS = 8
"""Servers that a search starts at once because it knows nothing of them: somebody waits."""

REFRESH_STARTS = 4
"""Servers started at once in the background, where nobody waits, beside the user's own work."""

SETTLE_SECONDS = 0.5
"""After word of a change. Servers that register their tools one by one say so once for each."""

RELIST_SECONDS = 10.0
"""Between two listings of a server that goes on saying so; a list may have thousands of tools."""


class Refresher:
    """Asks servers again in the background."""

    def __init__(self, pool: Pool, lister: Lister) -> None:
        self._pool = pool
        self._lister = lister
        self._first_turn = anyio.CapacityLimiter(FIRST_STARTS)
        self._refresh_turn = anyio.CapacityLimiter(REFRESH_STARTS)
        self._attempts: dict[str, tuple[ServerSpec, float]] = {}
        self._changed: set[str] = set()
        self._relisting: set[str] = set()
        self._used: set[str] = set()
        self._pruned = False

    def use(self, names: Iterable[str]) -> None:
        """Take note that these servers are wanted for more than their list of tools."""
        self._used.update(names)

    async def first(self, names: Iterable[str], *, patient: bool) -> dict[str, BridgeError]:
        """Have servers asked of which nothing is known; return why some have no answer yet.

        Args:
            patient: Wait for the slow, and try what just failed.
        """
        errors: dict[str, BridgeError] = {}

        async def ask(name: str) -> None:
            idle = self._is_idle(name)
            if patient:
                async with self._first_turn:
                    outcome = await self._lister.ask(name)
            else:
                outcome = await self._lister.ask_briefly(name, self._first_turn)
            if isinstance(outcome, BridgeError):
                errors[name] = outcome
            if idle:
                self._rest_later(name)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return errors

    def refresh_later(self, names: Iterable[str]) -> None:
        """Have the servers asked again of which what is known is old; return at once."""
        tasks = self._lister.tasks
        if tasks is None:
            return
        now = anyio.current_time()
        for name in names:
            if not self.is_old(name):
                continue
            spec = self._pool.spec(name)
            tried, when = self._attempts.get(name, (None, 0.0))
            if tried != spec or now - when >= REFRESH_SECONDS:
                self._attempts[name] = spec, now
                tasks.start_soon(self._refresh, name)
        if not self._pruned:
            self._pruned = True
            tasks.start_soon(self._lister.prune)

    def is_old(self, name: str) -> bool:
        """Whether a server's listing is older than it should become, or from the future."""
        listing = self._lister.listings.get(name)
        if listing is None or listing.listed_at < self._lister.redefined_at.get(name, 0.0):
            return True
        return not 0 <= time.time() - listing.listed_at < REFRESH_SECONDS

    def tools_changed(self, name: str) -> None:
        """Have a server's tools listed again soon: it says that they have changed."""
        self._changed.add(name)
        if name not in self._relisting and self._lister.tasks is not None:
            self._relisting.add(name)
            self._lister.tasks.start_soon(self._relist, name)

    async def _refresh(self, name: str) -> None:
        async with self._refresh_turn:
            try:
                idle = self._is_idle(name)
                await self._lister.learn_from_disk(self._pool.spec(name))
                if not self.is_old(name):
                    return
                await self._lister.request(name).done.wait()
                if idle:
                    self._rest(name)
            except BridgeError as error:
                # It is no longer configured.
                logger.debug("server %s is not asked again: %s", name, error)

    async def _relist(self, name: str) -> None:
        try:
            await anyio.sleep(SETTLE_SECONDS)
            while name in self._changed:
                self._changed.discard(name)
                # One that has gone is not started for this; it is asked when it is next needed.
                if self._pool.state(name).state != "ready":
                    return
                await self._lister.ask(name)
                await anyio.sleep(RELIST_SECONDS)
        except BridgeError as error:
            logger.debug("server %s is not asked again: %s", name, error)
        finally:
            self._relisting.discard(name)

    def _is_idle(self, name: str) -> bool:
        return name not in self._used and self._pool.state(name).state in ("idle", "failed")

    def _rest_later(self, name: str) -> None:
        """Stop a server once its answer is there, which may still be to come."""
        if self._lister.tasks is not None:
            self._lister.tasks.start_soon(self._rest_after, name)

    async def _rest_after(self, name: str) -> None:
        under_way = self._lister.under_way(name)
        if under_way is not None:
            await under_way.done.wait()
        self._rest(name)

    def _rest(self, name: str) -> None:
        if name in self._used:
            return
        try:
            self._pool.rest(name)
        except BridgeError as error:
            logger.debug("server %s is gone already: %s", name, error)
