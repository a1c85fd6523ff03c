"""Tasks that run while a context is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def background_task(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run `work` in a task while this is open; leaving cancels it.

    An exception of the body is raised unchanged, not wrapped in a group.
    """
    stack = AsyncExitStack()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    tasks.start_soon(work)
    try:
        yield
    finally:
        tasks.cancel_scope.cancel()
        await stack.aclose()
