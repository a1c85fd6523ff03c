"""Tasks that run while a context is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Yield a task group that is cancelled when the context ends.

    An exception of the body is raised as it is, not in an exception group.
    """
    stack = AsyncExitStack()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()
        await stack.aclose()


@asynccontextmanager
async def background_task(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with background_tasks() as tasks:
        tasks.start_soon(work)
        yield
