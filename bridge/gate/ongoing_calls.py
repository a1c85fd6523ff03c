"""Lets a call continue that its program cancels, where that would tell the server something.

A server notices which of its calls are cancelled, and when. After a program has read what a flow
rule keeps from that server, these are messages that no rule judges. So the program stops waiting,
and the call runs to its end or its time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from bridge.tasks import background_tasks

Result = TypeVar("Result")


class OngoingCalls:
    """The calls that outlive who waits for them; use `open` around all of them."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take calls while this is open; leaving cancels what is left."""
        async with background_tasks() as self._tasks:
            yield

    async def finish(
        self, call: Callable[[], Awaitable[Result]], may_cancel: Callable[[], bool]
    ) -> Result:
        """Return a call's result.

        Args:
            may_cancel: Asked when the waiting is cancelled: whether the call is cancelled, too.
        """
        if self._tasks is None:
            return await call()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        scope, ended = anyio.CancelScope(), anyio.Event()

        async def run() -> None:
            try:
                with scope:
                    result = await call()
                    if not answer.done():
                        answer.set_result(result)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            finally:
                # Of a call that was cancelled from elsewhere nobody shall wait.
                answer.cancel()
                ended.set()

        self._tasks.start_soon(run)
        try:
            return await answer
        except anyio.get_cancelled_exc_class():
            if answer.done() and not answer.cancelled():
                answer.exception()  # or asyncio says that nobody has taken it
            if may_cancel():
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await ended.wait()
            raise
