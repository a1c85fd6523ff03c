"""Opens the engine for a command, and imports it only then: help does without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.runs import Engine


@asynccontextmanager
async def open_engine(settings: Settings) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers."""
    from bridge.runs import open_engine as opened

    async with opened(settings) as engine:
        yield engine
