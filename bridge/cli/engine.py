"""Opens the engine for a command, and imports it only then: help does without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from bridge.cli.status import waiting
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.runs import Engine


@asynccontextmanager
async def open_engine(settings: Settings, *, patient: bool = False) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers."""
    async with AsyncExitStack() as stack:
        with waiting("finding servers and a sandbox"):
            from bridge.runs import open_engine as opened

            engine = await stack.enter_async_context(opened(settings, patient=patient))
        yield engine
