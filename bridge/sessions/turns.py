"""A run in a session's queue, and its turn with the session's sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, InvalidRequestError
from bridge.model import Limits, Loss, RunRequest, RunResult, SessionReport
from bridge.packages.packages import PackageSet
from bridge.rpc.channel import as_base64
from bridge.sandbox.failure import Ending, Verdict
from bridge.sandbox.pool import Reservation
from bridge.sessions.checkpoints import MAX_STATE_BYTES, Saved
from bridge.sessions.record import Record


class Guest(Protocol):
    """The sandbox of a session; see `bridge.runs.program`."""

    @property
    def is_whole(self) -> bool: ...

    async def wait_dead(self) -> None: ...


@dataclass(eq=False, kw_only=True)
class Turn:
    """A run's turn: it has the session's sandbox."""

    queued: QueuedRun
    record: Record
    guest: Guest
    saved: Saved | None  # To restore in a new sandbox.
    packages: PackageSet
    sandbox: Reservation[Any]
    concluded: bool = False  # Whether the run has reported its end.
    lost: tuple[Loss, ...] = ()  # The variables that the save after this run could not include.
    unsaved: str = ""  # A note if the state after this run is not saved.

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of `run_frame` for a session's run."""
        return {"number": self.record.runs + 1, "state": as_base64(self._state)}

    @property
    def _state(self) -> bytes:
        return b"" if self.saved is None else self.saved.data

    def conclude(self, verdict: Verdict, ending: Ending) -> tuple[Verdict, SessionReport]:
        """Record the end of the run; return the verdict on it, and the session's report."""
        self.concluded = True
        return self.record.ended(
            verdict,
            ending,
            saved=self.saved,
            sound=self.guest.is_whole,
            cancelled=self.queued.stopped,
            overtaken=self.queued.overtaken,
            ends=self.queued.ends,
        )

    def check(self, request: RunRequest) -> None:
        """Check that the request's files and the restored state fit into one frame."""
        brought = sum(len(file.data or b"") for file in request.files)
        if len(self._state) + brought > MAX_STATE_BYTES:
            message = (
                f"The files of this run ({brought:,} bytes) do not fit beside what is restored of "
                f"the session ({len(self._state):,} bytes): together {MAX_STATE_BYTES:,} at most."
            )
            remedy = "Run something without files first; the next run can have them."
            raise InvalidRequestError(message, remedy=remedy)

    def with_losses(self, result: RunResult) -> RunResult:
        """Return a result that says what was not saved after the run."""
        note, session = self.unsaved, result.session
        large = [f"{loss.name} ({loss.why})" for loss in self.lost if "bytes" in loss.why]
        if large:
            note = (
                f"Held in memory only, and lost once the session is idle: {', '.join(large[:8])}. "
                "Keep it as a compressed file in out/; the user can raise MCP_BRIDGE_SESSION_BYTES."
            )
        if not note or session is None:
            return result
        note = " ".join(filter(None, (session.note, note)))
        state = "unsaved" if self.unsaved else session.state
        return replace(result, session=replace(session, state=state, note=note))


@dataclass(eq=False, kw_only=True)
class QueuedRun:
    """A run, or the end of the session, in the session's queue."""

    request: RunRequest | None = None  # None for the end of the session.
    limits: Limits = Limits()
    caller: RunCaller | None = None
    # The result of the end, or the error of a run without a turn.
    outcome: RunResult | BridgeError | None = None
    # Set when the session has saved its state after the run.
    over: anyio.Event = field(default_factory=anyio.Event)
    # Interrupts the program; None before the program has begun.
    stop: Callable[[], Awaitable[None]] | None = None
    stopped: bool = False
    failure: Exception | None = None  # The error that ended its turn.
    overtaken: str = ""  # Why the session is another bridge's now, if it is.
    again: bool = False  # Whether its first sandbox was dead.
    is_gone: bool = False  # Whether it was cancelled.
    _turn: Turn | None = None
    _ready: anyio.Event = field(default_factory=anyio.Event)
    _left: anyio.Event = field(default_factory=anyio.Event)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def ends(self) -> bool:
        """Whether the session ends with it."""
        return self.request is None or self.request.end_session

    def section(self, *, shield: bool = False) -> anyio.CancelScope:
        """Return a scope that `cancel` cancels."""
        self._scope = anyio.CancelScope(shield=shield)
        if self.is_gone:
            self._scope.cancel()
        return self._scope

    def cancel(self) -> None:
        """Cancel the run in its current section."""
        self.is_gone = self.stopped = True
        self._scope.cancel()

    def finish(self, outcome: RunResult | BridgeError | None = None) -> None:
        self.outcome = outcome
        self.over.set()
        self._ready.set()

    async def wait_turn(self) -> Turn | None:
        """Wait for the run's turn; return None if the session ended first."""
        await self._ready.wait()
        if isinstance(self.outcome, BridgeError):
            raise self.outcome
        return self._turn

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Hold the session's sandbox while this is open.

        A cancellation first interrupts the program, so that the session keeps its state.
        """
        failure: Exception | None = None
        scope = anyio.CancelScope()
        if (turn := await self.wait_turn()) is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._give_up_when_cancelled)
                try:
                    with self.section(shield=True) as scope:
                        try:
                            yield turn
                        except Exception as error:
                            # Raised below: the task group would wrap it.
                            failure = error
                finally:
                    self.leave(failure)
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if turn is None or scope.cancelled_caught:
            raise BridgeError("The bridge is ending.", code="session_limit")

    def leave(self, failure: Exception | None = None) -> None:
        """Return the sandbox to the session."""
        self.failure, self._turn, self._ready = failure, None, anyio.Event()
        self._left.set()

    async def hand_over(self, turn: Turn) -> None:
        """Give the run its turn, and wait until it leaves."""
        self._turn, self._left = turn, anyio.Event()
        self._ready.set()
        if not self.is_gone:
            await self._left.wait()

    async def _give_up_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if self._turn is not None:
                with anyio.CancelScope(shield=True):
                    await self.give_up()

    async def give_up(self) -> None:
        """End the run's turn within ten seconds: its client is gone, or the bridge ends."""
        self.stopped = True
        if self._turn is not None and self.stop is not None:
            # If the interrupted program ends, its state is kept. Otherwise the sandbox and the
            # unsaved state are lost.
            with anyio.move_on_after(5.0):
                await self.stop()
                await self._left.wait()
                return
        self.cancel()
        if self._turn is not None:
            with anyio.move_on_after(5.0):
                await self._left.wait()
