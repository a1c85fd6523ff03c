"""The control groups of one backend: each made for a sandbox, and removed with it or later.

Owns what is still to be removed; the file operations are `group`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from bridge.model import Limits
from bridge.sandbox.process.group import Group, Shelf, make_group
from bridge.sandbox.reaper import Owner

MAX_UNREMOVED = 100
"""Control groups remembered that could not be removed; beyond it the next bridge reaps them."""


class Grouping:
    """Makes control groups, and remembers those that could not be removed."""

    def __init__(self) -> None:
        self._unremoved: dict[str, Group] = {}
        # Its one thread starts when first needed.
        self._visitor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="control-groups")

    def __len__(self) -> int:
        return len(self._unremoved)

    @asynccontextmanager
    async def group(
        self, shelf: Shelf, owner: Owner, limits: Limits
    ) -> AsyncIterator[Group | None]:
        """Make a sandbox's groups, where they can be made; leaving kills what is in them."""
        if not shelf.places:
            yield None
            return
        for left in list(self._unremoved.values()):
            await self._remove(left)
        # A thread cannot be interrupted, so a cancelled call still returns what it made.
        group = await anyio.to_thread.run_sync(make_group, shelf, owner, limits)
        group.visitor = self._visitor
        try:
            yield group
        finally:
            with anyio.CancelScope(shield=True):
                await self._remove(group)

    async def aclose(self) -> None:
        """Try once more to remove what is left. Idempotent."""
        with anyio.CancelScope(shield=True):
            for group in list(self._unremoved.values()):
                await self._remove(group)

    async def _remove(self, group: Group) -> None:
        self._unremoved.pop(group.name, None)
        gone = await anyio.to_thread.run_sync(group.remove)
        if not gone and len(self._unremoved) < MAX_UNREMOVED:
            self._unremoved[group.name] = group
