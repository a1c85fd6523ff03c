"""What waits in a session's queue: a run, the session's end, or both.

Owns what whoever asked for it and the session's own task tell each other, and a run's place in the
session while it lasts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from bridge.engine.guest_session import GuestSession
from bridge.engine.job import Job
from bridge.engine.packages import NOTHING, Outfit
from bridge.engine.program import Facts, Program
from bridge.engine.sessions.channel import SessionChannel
from bridge.errors import BridgeError, InvalidRequestError
from bridge.gate.flow import FlowState
from bridge.model import RunResult
from bridge.rpc.channel import as_base64

MAX_BYTES = 44 * 1024 * 1024
"""Of a restored state and of files together: as base64 they share a frame of at most 64 MiB with
the program and the servers' stubs."""


@dataclass(eq=False, kw_only=True)
class Seat:
    """One run's place in its session.

    Attributes:
        session_id: For the records.
        number: Of the run, from 1.
        state: What the session begins with, in a fresh sandbox; empty for nothing.
        servers: Those that earlier runs loaded; they stay.
        outfit: What the sandbox has for the session's packages.
        waited: Whether the sandbox may have died since its last run.
        conclude: Called with the result and the facts; returns the result with the session's
            report.
    """

    session_id: str
    number: int
    state: bytes = field(default=b"", repr=False)
    servers: tuple[str, ...] = ()
    flow: FlowState
    waited: bool = False
    outfit: Outfit = NOTHING
    begun: Callable[[Program], None]
    conclude: Callable[[RunResult, Facts], RunResult]

    @property
    def fields(self) -> dict[str, Any]:
        """What the run's frame says of it; see `run_frame`."""
        return {"number": self.number, "state": as_base64(self.state)}

    def placed(self, job: Job) -> Job:
        """Return a job as it is carried out in a session.

        What earlier runs read counts for it, and its stubs are whole: what earlier programs defined
        may call any tool.

        Raises:
            InvalidRequestError: It brings more than fits beside what the session begins with.
        """
        brought = sum(len(file.data or b"") for file in job.request.files)
        if len(self.state) + brought > MAX_BYTES:
            message = (
                f"The files of this run ({brought:,} bytes) do not fit beside what is restored of "
                f"the session ({len(self.state):,} bytes): together {MAX_BYTES:,} at most."
            )
            remedy = "Run something without files first; the next run can have them."
            raise InvalidRequestError(message, remedy=remedy)
        return replace(job, watch=job.watch.in_session(self.flow), reach=None, outfit=self.outfit)


Work = Callable[[GuestSession, Seat], Awaitable[RunResult]]
"""Runs a program in a session's sandbox, in its seat."""


@dataclass(eq=False, kw_only=True)
class Turn:
    """One thing that is wanted of a session.

    Attributes:
        job: None where only its end is wanted.
        ends: Whether the session ends with it.
        outcome: None if nobody waits for it any more, or the session had ended before.
        over: Set once there is nothing more to come.
        program: What is under way.
        stopped: Whoever asked for it has gone.
        again: Its first sandbox was gone when it was to begin.
    """

    job: Job | None = None
    work: Work | None = None
    ends: bool = False
    outcome: RunResult | BridgeError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    program: Program | None = None
    stopped: bool = False
    again: bool = False
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _cancelled: bool = False

    def section(self) -> anyio.CancelScope:
        """Return the scope for the next part of it, which `cancel` ends."""
        self._scope = anyio.CancelScope()
        if self._cancelled:
            self._scope.cancel()
        return self._scope

    def cancel(self) -> None:
        """End what is done for it at this moment, and whatever would follow."""
        self._cancelled = True
        self._scope.cancel()

    def finish(self, outcome: RunResult | BridgeError | None) -> None:
        """Hand over what came of it."""
        self.outcome = outcome
        self.over.set()


def whole(guest: GuestSession) -> bool:
    """Tell whether another run can be sent to a session's sandbox."""
    return isinstance(guest.channel, SessionChannel) and guest.channel.whole
