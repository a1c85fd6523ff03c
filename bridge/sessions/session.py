"""One session: its queue, its sandbox while it has one, and its state between runs.

Owns the order of a session's runs, and when its sandbox comes, is saved and goes. One task does all
of that, and is there only while there is a sandbox or something waits. What is remembered of a
session is its record's; which sessions there are, and how many may be open, is the table's.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, InvalidRequestError, NotStartedError
from bridge.gate.flow import FlowState
from bridge.model import Limits, Loss, RunRequest, RunResult
from bridge.packages.packages import NOTHING, PackageSet, packages_of
from bridge.rpc.channel import as_base64
from bridge.sandbox.failure import Ending
from bridge.sandbox.pool import Reservation
from bridge.sessions.admission import MAX_WAITING, SessionAdmission
from bridge.sessions.checkpoints import Checkpoints, Claims, Saved
from bridge.sessions.record import Holdings, Record
from bridge.sessions.state import MAX_STATE_BYTES, StateParts
from bridge.upstream.client_features import clear_caller, on_behalf_of

logger = logging.getLogger(__name__)

SAVE_SECONDS = 10.0  # For a session to put its state into words. The next run waits for it.


class Guest(Protocol):
    """A sandbox that a session's runs follow each other in; see `bridge.runs.ready_sandbox`."""

    @property
    def is_whole(self) -> bool: ...

    async def wait_dead(self) -> None: ...


@dataclass(eq=False, kw_only=True)
class Turn:
    """One run's turn in its session, which has the session's sandbox.

    Attributes:
        number: Of the run, from 1.
        state: What the session begins with, in a fresh sandbox; empty for nothing.
        waited: Whether the sandbox may have died since its last run.
        begun: Called with what interrupts the program, once that has begun.
        conclude: Called with the result and the ending; returns the result with the session's
            report.
        lost: What of the session is in memory only, after it was saved.
    """

    session_id: str
    number: int
    state: bytes = field(default=b"", repr=False)
    flow: FlowState
    waited: bool = False
    packages: PackageSet = NOTHING
    sandbox: Reservation[Any]
    begun: Callable[[Callable[[], Awaitable[None]]], None]
    conclude: Callable[[RunResult, Ending], RunResult]
    concluded: bool = False
    lost: tuple[Loss, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """What the run's frame says of it."""
        return {"number": self.number, "state": as_base64(self.state)}

    def check(self, request: RunRequest) -> None:
        """Check that what a request brings fits beside what the session begins with."""
        brought = sum(len(file.data or b"") for file in request.files)
        if len(self.state) + brought > MAX_STATE_BYTES:
            message = (
                f"The files of this run ({brought:,} bytes) do not fit beside what is restored of "
                f"the session ({len(self.state):,} bytes): together {MAX_STATE_BYTES:,} at most."
            )
            remedy = "Run something without files first; the next run can have them."
            raise InvalidRequestError(message, remedy=remedy)

    def with_losses(self, result: RunResult) -> RunResult:
        """Return a run's result with what is in memory only and will be lost."""
        large = [f"{loss.name} ({loss.why})" for loss in self.lost if "bytes" in loss.why]
        if not large or result.session is None:
            return result
        note = (
            f"Held in memory only, and lost once the session is idle: {', '.join(large[:8])}. "
            "Keep it as a compressed file in out/; the user can raise MCP_BRIDGE_SESSION_BYTES."
        )
        notes = " ".join(filter(None, (result.session.note, note)))
        return replace(result, session=replace(result.session, note=notes))


@dataclass(eq=False, kw_only=True)
class QueuedRun:
    """A run that waits in a session's queue, or the session's end.

    Attributes:
        request: None if the session is only to end.
        outcome: The end's result, or why the run gets no turn; None if the session ended before.
        over: Set once the session has nothing more to do for it.
        stop: Interrupts its program; None before that has begun.
        failure: What its turn ended with.
        again: Its first sandbox was gone when it was to begin.
        is_gone: Whether it was cancelled.
    """

    request: RunRequest | None = None
    limits: Limits = Limits()
    caller: RunCaller | None = None
    ends: bool = False
    outcome: RunResult | BridgeError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    stop: Callable[[], Awaitable[None]] | None = None
    stopped: bool = False
    failure: Exception | None = None
    again: bool = False
    is_gone: bool = False
    _turn: Turn | None = None
    _ready: anyio.Event = field(default_factory=anyio.Event)
    _left: anyio.Event = field(default_factory=anyio.Event)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def section(self, *, shield: bool = False) -> anyio.CancelScope:
        """Return the scope for the next part of it, which `cancel` ends."""
        self._scope = anyio.CancelScope(shield=shield)
        if self.is_gone:
            self._scope.cancel()
        return self._scope

    def cancel(self) -> None:
        """Cancel it, in whichever part it is."""
        self.is_gone = self.stopped = True
        self._scope.cancel()

    def finish(self, outcome: RunResult | BridgeError | None = None) -> None:
        self.outcome = outcome
        self.over.set()
        self._ready.set()

    async def wait_turn(self) -> Turn | None:
        """Return its turn once that has come; None if the session ended before."""
        await self._ready.wait()
        if isinstance(self.outcome, BridgeError):
            raise self.outcome
        return self._turn

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Have the session's sandbox while this is open.

        A cancellation from outside first interrupts the program, which keeps the session's state.

        Raises:
            BridgeError: The bridge is ending.
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
        """Give the session's sandbox back."""
        self.failure, self._turn, self._ready = failure, None, anyio.Event()
        self._left.set()

    async def hand_over(self, turn: Turn) -> None:
        """Let it have the session's sandbox; return once it has left that."""
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
        """End it: its client has gone, or the bridge ends. Bounded."""
        self.stopped = True
        if self._turn is not None and self.stop is not None:
            # A program that is interrupted may end, and its state is kept then. Otherwise the
            # sandbox goes, and with it what was not saved.
            with anyio.move_on_after(5.0):
                await self.stop()
                await self._left.wait()
                return
        self.cancel()
        if self._turn is not None:
            with anyio.move_on_after(5.0):
                await self._left.wait()


Reserve = Callable[..., AbstractAsyncContextManager[Reservation[Any]]]
"""Sets a sandbox aside that stays; given the limits, and `binds` where there are any."""

ResolvePackages = Callable[[RunRequest, RunCaller, tuple[str, ...]], Awaitable[PackageSet]]
"""Says what a sandbox needs for the packages that a request is for, with some versions fixed."""

SaveState = Callable[[Any, int, int], Awaitable[StateParts | None]]
"""Returns the state that a sandbox sends, given the run's number and the most bytes; None if it is
of no use any more."""


@dataclass(frozen=True, kw_only=True)
class SessionServices:
    """What all sessions of a bridge use.

    Attributes:
        claims: Which of several bridges has a session; None if this one is alone.
        idle_timeout: Seconds after which a session without a run gives up its sandbox.
        state_bytes: The most bytes of a session's state that are saved.
    """

    reserve: Reserve
    resolve_packages: ResolvePackages
    save_state: SaveState
    admission: SessionAdmission
    checkpoints: Checkpoints
    claims: Claims | None
    idle_timeout: float
    state_bytes: int


class Session:
    """One session.

    Attributes:
        since: When it was last used, in seconds as `anyio.current_time` has them.
        memory_bytes: What its sandbox may use; 0 while it never had one.
        claimed: Whether this bridge has it, of several; `claiming` is held to change that.
    """

    def __init__(self, record: Record, services: SessionServices) -> None:
        self.record = record
        self.memory_bytes = 0
        self.since = anyio.current_time()
        self.over = False
        self.claimed = False
        self.claiming = anyio.Lock()
        self._services = services
        self._queue: deque[QueuedRun] = deque()
        self._open = self._leaving = self._active = False
        self._busy: QueuedRun | None = None
        self._woken = anyio.Event()
        self._closed = anyio.Event()
        self._packages = NOTHING
        self._grown: PackageSet | None = None  # For its next sandbox.

    @property
    def owner(self) -> str:
        return self.record.owner

    @property
    def is_open(self) -> bool:
        """Whether it has a sandbox, or is about to."""
        return self._open

    @property
    def in_use(self) -> bool:
        return self._busy is not None or bool(self._queue)

    def put(self, queued: QueuedRun) -> bool:
        """Queue something, if there is room; return whether its task has to be started."""
        if len(self._queue) >= MAX_WAITING:
            raise BridgeError(
                f"{MAX_WAITING} runs wait for session {self.record.name!r} already.",
                remedy="Wait for their results, or use another session: they run side by side.",
                code="session_limit",
            )
        self._queue.append(queued)
        self._woken.set()
        start, self._active = not self._active, True
        return start

    def withdraw(self, queued: QueuedRun) -> None:
        """Take back a run whose client went before its turn."""
        if queued in self._queue:
            self._queue.remove(queued)
        queued.cancel()
        queued.leave()

    async def put_away(self) -> None:
        """Release its sandbox once its run has ended, and wait for that."""
        if self._open:
            self._leaving = True
            self._woken.set()
            await self._closed.wait()

    async def stop(self) -> None:
        """Put it away now; a run in it is cancelled."""
        while self._queue:
            waiting = self._queue.popleft()
            waiting.cancel()
            waiting.finish()
        if self._busy is not None:
            await self._busy.give_up()
        await self.put_away()

    async def serve(self) -> None:
        """Serve what waits, in one sandbox after another if need be."""
        # This task was started by one run, and serves others.
        clear_caller()
        try:
            while self._queue:
                try:
                    await self._serve_queue()
                except Exception:
                    # A named boundary: a defect here must not end other sessions.
                    logger.exception("session %s failed inside the bridge", self.record.name)
                    message = "The bridge failed; its log has the details."
                    self.record.lose("the bridge failed in it")
                    self._refuse_all(BridgeError(message))
        finally:
            # Something is left only if this is cancelled, as the engine ends.
            self._refuse_all(None)
            self._active = False

    async def release(self) -> None:
        """Let other bridges have it, unless something waits for it here."""
        claims = self._services.claims
        if claims is None:
            return
        async with self.claiming:
            if self.claimed and not self.in_use:
                await claims.release(self.owner, self.record.session_id)
                self.claimed = False

    async def _serve_queue(self) -> None:
        if self.over:
            while self._queue:
                # The next request for the name gets a new session.
                self._queue.popleft().finish()
            return
        first = self._queue[0]
        if first.request is None:
            await self._end(self._queue.popleft())
        else:
            await self._live(first, first.limits)

    def _refuse_all(self, error: BridgeError | None) -> None:
        if self._busy is not None:
            self._busy.finish(error)
            self._busy = None
        while self._queue:
            self._queue.popleft().finish(error)

    async def _live(self, first: QueuedRun, limits: Limits) -> None:
        self._closed, self._leaving = anyio.Event(), False
        self.record.opened()
        try:
            with first.section():
                await self._services.admission.admit(self)
                self._open = True
            if not self._open:
                return
            with first.section():
                self._packages = self._grown or await self._resolved_packages(first)
                self._grown = None
            async with self._services.reserve(limits, binds=self._packages.binds) as reservation:
                guest: Guest | None = None
                with first.section():
                    guest = await reservation.get()
                if guest is not None:
                    self.memory_bytes = limits.memory_bytes
                    await self._use(guest, reservation)
        except BridgeError as error:
            # There is no sandbox. The run that waits for it gets the error.
            if first in self._queue:
                self._queue.remove(first)
                first.finish(error)
            else:
                logger.warning("session %s: %s", self.record.name, error)
        finally:
            self._open = False
            self._services.admission.dismiss(self)
            self._closed.set()

    async def _resolved_packages(self, queued: QueuedRun) -> PackageSet:
        """Return what a sandbox needs for the session's packages and those of a run."""
        request, run, record = queued.request, queued.caller, self.record
        assert request is not None  # a sandbox is opened for a run only
        assert run is not None
        packages = tuple(dict.fromkeys((*record.packages, *packages_of(request))))
        with on_behalf_of(run):
            wanted = replace(request, packages=packages)
            found = await self._services.resolve_packages(wanted, run, record.pins)
        record.packages, record.pins = packages, found.pins
        return found

    async def _grow(self, queued: QueuedRun) -> None:
        """Find the packages that a run needs and its sandbox lacks, and put it off for another.

        If they cannot be used the run is finished, and the sandbox stays.
        """
        request = queued.request
        assert request is not None
        # After a defect it stays so, and `serve` finishes the run.
        self._busy = queued
        try:
            lacking = {*self._packages.lacks(packages_of(request))} - {*self.record.packages}
            if lacking and self.record.begun and not request.loses_state:
                self.record.check_move()
            with queued.section():
                if lacking:
                    self._grown = await self._resolved_packages(queued)
                    self._queue.appendleft(queued)
            if lacking and queued not in self._queue:
                queued.finish()
        except BridgeError as error:
            queued.finish(error)
        self._busy = None

    async def _use(self, guest: Guest, reservation: Reservation[Any]) -> None:
        """Serve runs until the sandbox must be released."""
        record = self.record
        saved = None
        if record.runs:
            saved, why = await self._services.checkpoints.load(record.owner, record.session_id)
            record.began_from(saved, why)
        while (queued := await self._next(guest)) is not None:
            if queued.request is None:
                await self._end(queued)
                return
            await self._grow(queued)
            if queued in self._queue:
                return
            if queued.over.is_set():
                continue
            turn = self._turn(queued, guest, saved, reservation)
            try:
                await self._hand_over(queued, guest, turn)
                if record.begun and record.intact and not self.over:
                    saved = None
                    turn.lost = await self._save(guest)
                    if record.recoverable:
                        await self.release()
            finally:
                # One that had no turn failed in the bridge, which `serve` tells.
                if self._busy is None and queued not in self._queue:
                    queued.finish()
            if self.over or not record.intact:
                return

    async def _next(self, guest: Guest) -> QueuedRun | None:
        """Wait for the next run; None when the sandbox must be released."""
        if not self._queue and not self.record.begun:
            # The client that it was opened for has gone.
            return None
        if self.record.begun and self._services.admission.gives_way(self):
            # What waits in the queue asks for a place again, when it is served.
            return None
        if not self._queue and not self._leaving and await self._rest(guest):
            self.record.lose("its sandbox ended while it was idle")
            return None
        return self._queue.popleft() if self._queue and not self._leaving else None

    async def _rest(self, guest: Guest) -> bool:
        """Wait for a run, or until it has been idle for long; return whether the sandbox died."""
        died = False
        with anyio.move_on_after(self._services.idle_timeout):
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    nonlocal died
                    await guest.wait_dead()
                    died = True
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                while not self._queue and not self._leaving:
                    self._woken = anyio.Event()
                    await self._woken.wait()
                tasks.cancel_scope.cancel()
        return died

    def _turn(
        self, queued: QueuedRun, guest: Guest, saved: Saved | None, reservation: Reservation[Any]
    ) -> Turn:
        record = self.record

        def begun(stop: Callable[[], Awaitable[None]]) -> None:
            queued.stop = stop

        def conclude(result: RunResult, ending: Ending) -> RunResult:
            turn.concluded = True
            return record.ended(
                result,
                ending,
                saved=saved,
                sound=guest.is_whole,
                cancelled=queued.stopped,
                ends=queued.ends,
            )

        turn = Turn(
            session_id=record.session_id,
            number=record.runs + 1,
            state=b"" if saved is None else saved.data,
            flow=record.flow,
            waited=record.begun,
            packages=self._packages,
            sandbox=reservation,
            begun=begun,
            conclude=conclude,
        )
        return turn

    async def _hand_over(self, queued: QueuedRun, guest: Guest, turn: Turn) -> None:
        """Let a run have the sandbox, and note how it left that."""
        record = self.record
        self._busy = queued
        await queued.hand_over(turn)
        self._busy = None
        self.since = anyio.current_time()
        if isinstance(queued.failure, NotStartedError):
            record.lose("its sandbox was gone when the next run was to begin")
            if not queued.again and not queued.stopped:
                queued.again = True
                self._queue.appendleft(queued)
                return
        elif not turn.concluded and (queued.stop is not None or not guest.is_whole):
            record.given_up()
        if queued.ends:
            await self._forget()
        if self._services.claims is None and not record.is_large(self._services.state_bytes):
            # Of several bridges another may get the next run, and needs what is saved of this one.
            # What is large may not be saved whole, which the result says.
            queued.finish()

    async def _save(self, guest: Guest) -> tuple[Loss, ...]:
        """Keep the state, so that losing the sandbox is not losing that; return what was lost."""
        record = self.record
        state = await self._services.save_state(guest, record.runs, self._services.state_bytes)
        if state is None or not guest.is_whole:
            record.lose("it did not answer any more when it was to be saved")
        elif state.data is None:
            record.set_unsaved(state.problem)
        elif problem := await self._services.checkpoints.save(
            record.owner, record.to_save(state.data, state.lost)
        ):
            record.set_unsaved(problem)
        else:
            record.kept(state.lost)
            return state.lost
        return ()

    async def _end(self, queued: QueuedRun) -> None:
        await self._forget()
        message = f"Session {self.record.name!r} has ended."
        result = RunResult(run_id=uuid.uuid4().hex, status="success", summary=message)
        queued.finish(replace(result, session=self.record.report("ended")))

    async def _forget(self) -> None:
        self.over = True
        self.record.holdings = Holdings()
        await self._services.checkpoints.forget(self.record.owner, self.record.session_id)
