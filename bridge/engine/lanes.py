"""Lanes for runs that may have one, and sandboxes of their own for all others.

Owns the choice between the two for a run. Nothing is ever run in a lane that could not be shut in
as it should be: then, and where nobody knows whose run it is, the run gets a sandbox of its own and
its result says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from bridge.engine.guest_session import GuestSession
from bridge.engine.lane_session import LaneSession, without_lane
from bridge.errors import LaneRefusedError
from bridge.sandbox.lanes import LanePool
from bridge.sandbox.recipe import Recipe

NO_PRINCIPAL = "this bridge cannot tell its callers apart, and a fork is for one caller's runs only"
LOST = "the shared one was gone when the program was given to it"

Lanes = LanePool[tuple[str, Recipe], LaneSession]
"""By whose runs they are for, and what the sandbox is made from."""


class Reserved(Protocol):
    """A sandbox that is one run's until the reservation ends."""

    async def get(self) -> GuestSession:
        """Return it once it is ready.

        Raises:
            SandboxError: It could not be had.
        """
        ...


class LaneFirst:
    """A reservation of a lane, or else of a sandbox; see `Reserved`."""

    def __init__(
        self,
        stack: AsyncExitStack,
        lanes: Lanes,
        key: tuple[str, Recipe],
        reserve: Callable[[], AbstractAsyncContextManager[Reserved]],
        *,
        why: str,
    ) -> None:
        self._stack = stack
        self._lanes = lanes
        self._key = key
        self._reserve = reserve
        self._why = why

    async def get(self) -> GuestSession:
        """Return the one or the other, ready for a program."""
        why = self._why
        if not why:
            try:
                lane = await self._stack.enter_async_context(self._lanes.claim(self._key))
            except LaneRefusedError as error:
                why = error.message
            else:
                return lane.session
        reservation = await self._stack.enter_async_context(self._reserve())
        return without_lane(await reservation.get(), why)


@asynccontextmanager
async def lane_first(
    lanes: Lanes,
    key: tuple[str, Recipe],
    reserve: Callable[[], AbstractAsyncContextManager[Reserved]],
    *,
    again: bool,
) -> AsyncIterator[LaneFirst]:
    """Set a lane aside for one run, or a sandbox if there is none.

    Args:
        lanes: Where they are.
        key: Whose run it is, and what its sandbox is made from.
        reserve: Sets a sandbox aside.
        again: Whether a lane was tried for this run, and was gone.
    """
    why = NO_PRINCIPAL if not key[0] else LOST if again else ""
    if not why:
        # It gets ready while the servers do.
        lanes.prepare(key)
    async with AsyncExitStack() as stack:
        yield LaneFirst(stack, lanes, key, reserve, why=why)
