"""Waiting for what announces itself to nobody: a file, a process, another program's state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio

PATIENCE_SECONDS = 30.0
"""How long a test waits for what must happen; long, since the machine may be busy."""

LOOK_SECONDS = 0.01
"""How often it looks."""


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; fail when it does not in time."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(LOOK_SECONDS)


async def until_exists(path: Path) -> None:
    """Return once there is a file at `path`."""
    await until(path.exists)


async def until_shown(typist: int, text: str, times: int = 1) -> str:
    """Return what stands at a terminal, once `text` stands there so often.

    The kernel hands over in pieces what was written to it, and some time later.
    """
    shown = b""
    with anyio.fail_after(PATIENCE_SECONDS):
        while shown.count(text.encode()) < times:
            await anyio.wait_readable(typist)
            shown += os.read(typist, 65536)
    return shown.decode().replace("\r\n", "\n")
