"""How a program's end is told when its sandbox can no longer tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
import pytest

from bridge.engine.guest_session import GuestSession
from bridge.engine.program import Program
from bridge.guest.wire import Run
from bridge.model import Limits
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.failure import classify
from tests.fuzz.clock import run

LIMITS = Limits(timeout=5)
FRAME = Run(code="", argv=[], servers=[], discovered=[], capabilities="", limits={})


@dataclass(frozen=True, kw_only=True)
class Silent:
    """A sandbox and its channel, which ends after some seconds without a word."""

    seconds: float
    id: str = "silent"
    last_cost: int = 0

    async def send(self, frame: object) -> None:
        """Take the program in."""

    async def send_bytes(self, data: bytes) -> None:
        """Take a reply."""

    async def receive(self) -> None:
        """End, in time."""
        await anyio.sleep(self.seconds)

    async def kill(self) -> None:
        """Be gone already."""

    async def wait(self) -> ExitReport:
        """Know nothing."""
        return ExitReport()

    def diagnostics(self) -> str:
        """Say nothing."""
        return ""


@pytest.mark.parametrize(("seconds", "reason"), [(4.9, "crash"), (5.1, "timeout")])
def test_a_sandbox_that_ends_silently_at_the_deadline_ran_out_of_time(
    seconds: float, reason: str
) -> None:
    """By the host's own clock; before it, what ended it is unknown."""

    async def handle(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    async def play() -> str | None:
        silent = Silent(seconds=seconds)
        session = cast("GuestSession", SimpleSession(sandbox=silent, channel=silent))
        program = Program(session, handle, LIMITS)
        await program.start(FRAME)
        return classify((await program.finish()).ending, LIMITS).reason

    assert run(play) == reason


@dataclass(frozen=True, kw_only=True)
class SimpleSession:
    """What `Program` uses of a session."""

    sandbox: Silent
    channel: Silent
