"""A sandbox that says what a test wants, and a program carried out in it by a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import anyio

from bridge.event_loop import Clock
from bridge.guest.protocol.wire import Run
from bridge.model import Limits
from bridge.runs.program import Program, ProgramEnd, ReadySandbox
from bridge.sandbox.backend import ExitReport
from tests.fuzz.clock import run

LIMITS = Limits(timeout=5)


class Scripted:
    """A sandbox and its channel: it says each frame so many seconds after the one before.

    None is its end. After the last frame it says nothing any more.

    Attributes:
        replies: What it was answered.
    """

    id = "scripted"
    last_cost = 0

    def __init__(self, *frames: tuple[float, object]) -> None:
        self._frames = list(frames)
        self.replies: list[bytes] = []

    async def send(self, frame: object) -> None:
        """Take the program in."""

    async def write(self, pieces: Iterable[bytes], *, batched: bool = False) -> None:
        self.replies.append(b"".join(pieces))

    async def receive(self) -> Any:
        if not self._frames:
            await anyio.sleep_forever()
        seconds, frame = self._frames.pop(0)
        await anyio.sleep(seconds)
        return frame

    async def kill(self) -> None:
        """Be gone already."""

    async def wait(self) -> ExitReport:
        return ExitReport()

    def diagnostics(self) -> str:
        return ""


def session_of(sandbox: object) -> ReadySandbox:
    return cast("ReadySandbox", SimpleNamespace(sandbox=sandbox, channel=sandbox))


async def refuse(method: str, params: Mapping[str, Any]) -> object:
    raise AssertionError(method)


def carried_out(
    sandbox: Scripted, limits: Limits = LIMITS, *, asked: bool = False, **options: Any
) -> tuple[ProgramEnd, float]:
    """Carry a program out; return how it ended, and after how long.

    Args:
        asked: Whether the run's time stands still, for a question that no one answers.
    """

    async def play() -> tuple[ProgramEnd, float]:
        clock = Clock()
        program = Program(session_of(sandbox), refuse, limits, clock=clock, **options)
        start = anyio.current_time()
        await program.start(Run(code=""))
        with clock.stop() if asked else nullcontext(), anyio.fail_after(2000):
            return await program.finish(), anyio.current_time() - start

    return run(play)
