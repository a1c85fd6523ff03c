"""Waits for events without notification: files, processes, states of other programs."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

PATIENCE_SECONDS = 120.0
"""Time limit of a wait. It only ends a hanging test, on a busy machine too."""

LOOK_SECONDS = 0.01
"""Minimum time between two checks."""

PAUSE_SHARE = 4
"""Minimum pause as a multiple of the check's time, since some checks start podman or read all of
/proc.
"""


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; fail if it does not in time."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            begun = time.monotonic()
            if condition():
                return
            await anyio.sleep(max(LOOK_SECONDS, PAUSE_SHARE * (time.monotonic() - begun)))


async def until_exists(path: Path) -> None:
    await until(path.exists)


@asynccontextmanager
async def typing_answers(typist: int, *answers: str) -> AsyncIterator[list[str]]:
    """Type each answer when a question ends the terminal's output.

    Yields:
        A list that finally has the terminal's whole output as its only item.
    """
    told: list[str] = []

    async def type_all() -> None:
        shown = b""
        with anyio.fail_after(PATIENCE_SECONDS):
            for answer in answers:
                while not shown.endswith((b": ", b"[y/N] ", b"[Y/n] ")):
                    await anyio.wait_readable(typist)
                    shown += os.read(typist, 65536)
                os.write(typist, answer.encode())
                shown += b"\r\n"
        told.append(shown.decode().replace("\r\n", "\n"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(type_all)
        yield told
