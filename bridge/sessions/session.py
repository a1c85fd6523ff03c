"""One session: its queue, its sandbox while it has one, and its state between runs.

One task serves the queue while a sandbox exists or a run waits. It opens the sandbox, hands it to
one run after another, and saves the state after each run.
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
import anyio.to_thread

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, InvalidRequestError, NotStartedError
from bridge.model import Limits, Loss, RunRequest, RunResult, SessionReport
from bridge.packages.packages import NOTHING, PackageSet, packages_of
from bridge.rpc.channel import as_base64
from bridge.sandbox.failure import Ending, Verdict
from bridge.sandbox.pool import Reservation
from bridge.sessions.admission import MAX_WAITING, SessionAdmission
from bridge.sessions.checkpoints import MAX_STATE_BYTES, Checkpoints, Claims, Saved, StateParts
from bridge.sessions.record import Holdings, Record
from bridge.upstream.client_features import clear_caller, on_behalf_of

logger = logging.getLogger(__name__)

SAVE_SECONDS = 10.0  # A guest may take so long to send its state; the next run waits.


class Guest(Protocol):
    """The sandbox of a session; see `bridge.runs.program`."""

    @property
    def is_whole(self) -> bool: ...

    async def wait_dead(self) -> None: ...


@dataclass(eq=False, kw_only=True)
class Turn:
    """A run's turn: it has the session's sandbox.

    Attributes:
        saved: The saved state to restore in a new sandbox; None for none.
        concluded: Whether the run has reported its end.
        lost: The variables that the save after this run could not include.
    """

    queued: QueuedRun
    record: Record
    guest: Guest
    saved: Saved | None
    packages: PackageSet
    sandbox: Reservation[Any]
    concluded: bool = False
    lost: tuple[Loss, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of `run_frame` for a session's run."""
        return {"number": self.record.runs + 1, "state": as_base64(self._state)}

    @property
    def _state(self) -> bytes:
        return b"" if self.saved is None else self.saved.data

    def begun(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Record that the program has begun, and the function that interrupts it."""
        self.queued.stop = stop

    def conclude(self, verdict: Verdict, ending: Ending) -> tuple[Verdict, SessionReport]:
        """Record the end of the run; return the verdict on it, and the session's report."""
        self.concluded = True
        return self.record.ended(
            verdict,
            ending,
            saved=self.saved,
            sound=self.guest.is_whole,
            cancelled=self.queued.stopped,
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
        """Return a result with a note on large variables that were not saved."""
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
    """A run, or the end of the session, in the session's queue.

    Attributes:
        request: None for the end of the session.
        outcome: The result of the end, or the error of a run without a turn.
        over: Set when the session has saved its state after the run.
        stop: Interrupts the program; None before the program has begun.
        failure: The error that ended its turn.
        again: Whether its first sandbox was dead.
        is_gone: Whether it was cancelled.
    """

    request: RunRequest | None = None
    limits: Limits = Limits()
    caller: RunCaller | None = None
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


Reserve = Callable[..., AbstractAsyncContextManager[Reservation[Any]]]
"""Reserves a sandbox for several runs; takes the limits and `binds`."""

ResolvePackages = Callable[[RunRequest, RunCaller, tuple[str, ...]], Awaitable[PackageSet]]
"""Returns the package set for a request, with some versions fixed."""

SaveState = Callable[[Any, int, int], Awaitable[StateParts | None]]
"""Returns the state of a sandbox, given the run's number and the most bytes; None if the sandbox no
longer works."""


@dataclass(frozen=True, kw_only=True)
class SessionServices:
    """The parts of a bridge that its sessions share.

    Attributes:
        claims: The claims of several bridges; None for a single bridge.
        idle_timeout: Seconds without a run after which a session gives up its sandbox.
        state_bytes: The largest state to save.
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
        since: The time of its last use, as from `anyio.current_time`.
        memory_bytes: The memory limit of its sandbox; 0 before the first one.
        is_open: Whether it has a sandbox, or starts one.
        claimed: Whether this one of several bridges has it; guarded by `claiming`.
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
        self.is_open = self._leaving = self._active = False
        self._busy: QueuedRun | None = None
        self._woken = anyio.Event()
        self._closed = anyio.Event()
        self._packages = NOTHING
        self._grown: PackageSet | None = None  # For its next sandbox.

    @property
    def owner(self) -> str:
        return self.record.owner

    @property
    def in_use(self) -> bool:
        return self._busy is not None or bool(self._queue)

    def put(self, queued: QueuedRun) -> bool:
        """Queue a run; return whether the caller must start `serve`."""
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
        """Remove a run whose client is gone."""
        if queued in self._queue:
            self._queue.remove(queued)
        queued.cancel()
        queued.leave()

    async def put_away(self) -> None:
        """Release the sandbox after the current run."""
        if self.is_open:
            self._leaving = True
            self._woken.set()
            await self._closed.wait()

    async def stop(self) -> None:
        """Release the sandbox now; a running program is interrupted."""
        while self._queue:
            waiting = self._queue.popleft()
            waiting.cancel()
            waiting.finish()
        if self._busy is not None:
            await self._busy.give_up()
        await self.put_away()

    async def serve(self) -> None:
        """Serve the queue until it is empty and no sandbox is left."""
        # One run started this task, and others use it.
        clear_caller()
        try:
            while self._queue:
                first = self._queue[0]
                try:
                    if self.over:
                        # A request for the name gets a new session.
                        self._queue.popleft().finish()
                    elif first.request is None:
                        await self._end(self._queue.popleft())
                    else:
                        await self._live(first, first.limits)
                except Exception:
                    # A named boundary: a defect here must not end other sessions.
                    logger.exception("session %s failed inside the bridge", self.record.name)
                    message = "The bridge failed; its log has the details."
                    self.record.lose("the bridge failed in it")
                    self._refuse_all(BridgeError(message))
        finally:
            # The queue has entries only if the engine ends and cancels this.
            self._refuse_all(None)
            self._active = False

    async def release(self) -> None:
        """Release the claim, unless a run waits here."""
        claims = self._services.claims
        if claims is None:
            return
        async with self.claiming:
            if self.claimed and not self.in_use:
                await claims.release(self.owner, self.record.session_id)
                self.claimed = False

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
                self.is_open = True
            if not self.is_open:
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
            # The sandbox did not start. The run that waits for it gets the error.
            if first in self._queue:
                self._queue.remove(first)
                first.finish(error)
            else:
                logger.warning("session %s: %s", self.record.name, error)
        finally:
            self.is_open = False
            self._services.admission.dismiss(self)
            self._closed.set()

    async def _resolved_packages(self, queued: QueuedRun) -> PackageSet:
        """Return the package set for the session and a run."""
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
        """Resolve packages that a run needs and the sandbox lacks, and requeue the run.

        The next sandbox has them. If they cannot be resolved, the run fails.
        """
        request = queued.request
        assert request is not None
        # If this fails inside the bridge, `serve` finishes the busy run.
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
        """Serve runs in one sandbox until it must be released."""
        record = self.record
        saved = None
        if record.runs:
            load = self._services.checkpoints.loaded
            saved, why = await anyio.to_thread.run_sync(load, record.owner, record.session_id)
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
            turn = Turn(
                queued=queued,
                record=record,
                guest=guest,
                saved=saved,
                packages=self._packages,
                sandbox=reservation,
            )
            try:
                await self._hand_over(turn)
                if record.begun and record.intact and not self.over:
                    saved = None
                    turn.lost = await self._save(guest)
                    if record.recoverable:
                        await self.release()
            finally:
                # A run without a turn failed inside the bridge; `serve` finishes it.
                if self._busy is None and queued not in self._queue:
                    queued.finish()
            if self.over or not record.intact:
                return

    async def _next(self, guest: Guest) -> QueuedRun | None:
        """Return the next run; None if the sandbox must be released."""
        if not self._queue and not self.record.begun:
            # The client of the first run is gone.
            return None
        if self.record.begun and self._services.admission.gives_way(self):
            # The queued runs ask for a place again.
            return None
        if not self._queue and not self._leaving and await self._rest(guest):
            self.record.lose("its sandbox ended while it was idle")
            return None
        return self._queue.popleft() if self._queue and not self._leaving else None

    async def _rest(self, guest: Guest) -> bool:
        """Wait for a run or for the idle timeout; return whether the sandbox died."""
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

    async def _hand_over(self, turn: Turn) -> None:
        """Give a run its turn, and record how that ended."""
        record, queued = self.record, turn.queued
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
        elif not turn.concluded and (queued.stop is not None or not turn.guest.is_whole):
            record.given_up()
        if queued.ends:
            await self._forget()
        if self._services.claims is None and not record.is_large(self._services.state_bytes):
            # The result need not wait for the save. Of several bridges another one may serve the
            # next run, and needs the saved state. A large state may be saved only in part.
            queued.finish()

    async def _save(self, guest: Guest) -> tuple[Loss, ...]:
        """Save the state; return the variables that could not be saved."""
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
