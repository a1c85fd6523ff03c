"""Waiting for what announces itself to no one: a file, a process, another program's state."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

PATIENCE_SECONDS = 120.0
"""How long a test waits for what must happen: it only ends what hangs, on a busy machine too."""

LOOK_SECONDS = 0.01
"""How often it looks, at most."""

PAUSE_SHARE = 4
"""How many times as long as a look the pause after it is: some start podman, or read all of /proc,
and would take the processor from what they wait for."""


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; fail when it does not in time."""
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
    """Meanwhile type each once a question stands at a terminal, at its end.

    What is typed earlier than that answers nothing.

    Yields:
        What has in the end all that stood there, as its only item.
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
