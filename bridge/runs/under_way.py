"""The runs under way in this process, and their end when the process is to end.

Owns which runs there are, that no more begin once it drains, and that those which are left at the
deadline are ended as runs: each gets a typed error as its result, and one end in the audit log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from bridge.errors import BridgeError

logger = logging.getLogger(__name__)


LOOK_SECONDS = 0.05  # Between looks at whether anything is left.


class UnderWay:
    """The runs.

    Args:
        replica: This process's name among several; empty if it is alone.
    """

    def __init__(self, replica: str = "") -> None:
        self.draining = False
        self._called = f"replica {replica!r} of the bridge" if replica else "bridge"
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def count(self) -> int:
        return len(self._scopes)

    @contextmanager
    def one(self) -> Iterator[None]:
        if self.draining:
            message = f"This {self._called} is ending, and begins no more runs. Nothing was run."
            raise BridgeError(message, code="draining")
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            message = (
                f"The run was ended in the middle: this {self._called} is ending, and the time "
                "for its last runs is over. What it had called by then has happened."
            )
            remedy = "See on the servers what it did before any of it is done again."
            raise BridgeError(message, remedy=remedy, code="draining")

    async def drain(self, seconds: float, waits: Callable[[], bool] = lambda: False) -> None:
        """Let no more runs begin, wait for those there are, and end what is left.

        Args:
            seconds: For them to end by themselves.
            waits: Whether something else is to be waited for as well.
        """
        self.draining = True

        async def none_left() -> None:
            while self._scopes or waits():  # noqa: ASYNC110 - `waits` announces nothing
                await anyio.sleep(LOOK_SECONDS)

        with anyio.move_on_after(seconds):
            await none_left()
            return
        logger.warning("%d runs are ended: %g s are over", self.count, seconds)
        for scope in self._scopes:
            scope.cancel()
        # A session's program is interrupted first, which keeps its state. So long a client that
        # answers a question, or looks after its task, is told too.
        with anyio.move_on_after(12.0):
            await none_left()
