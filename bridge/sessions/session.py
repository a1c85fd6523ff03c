"""One session: its queue, its sandbox while it has one, and its state between runs.

Owns the order of a session's runs, and when its sandbox comes, is saved and goes. One task does all
of that, and is there only while there is a sandbox or something waits. What is remembered of a
session is its record's; which sessions there are, and how many may be open, is the table's.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, InvalidRequestError, NotStartedError, SessionLimitError
from bridge.gate.flow import FlowState
from bridge.model import Limits, RunRequest, RunResult
from bridge.model.outcome import caught
from bridge.packages.packages import NOTHING, PackageSet, packages_of
from bridge.rpc.channel import as_base64
from bridge.sandbox.failure import Ending
from bridge.sessions.admission import MAX_WAITING
from bridge.sessions.checkpoints import Saved
from bridge.sessions.record import Holdings, Record
from bridge.sessions.state import MAX_STATE_BYTES, StateParts
from bridge.upstream.client_features import clear_caller, on_behalf_of

if TYPE_CHECKING:
    from bridge.sessions.table import Sessions

logger = logging.getLogger(__name__)

SAVE_SECONDS = 10.0  # For a session to put its state into words. The next run waits for it.


class Guest(Protocol):
    """A sandbox that a session's runs follow each other in; see `bridge.runs.session_guest`."""

    @property
    def is_whole(self) -> bool: ...

    async def wait_dead(self) -> None: ...

    async def save(self, number: int, limit: int) -> StateParts | None: ...


@dataclass(eq=False, kw_only=True)
class SessionRun:
    """One run's place in its session.

    Attributes:
        number: Of the run, from 1.
        state: What the session begins with, in a fresh sandbox; empty for nothing.
        waited: Whether the sandbox may have died since its last run.
        conclude: Called with the result and the ending; returns the result with the session's
            report.
    """

    session_id: str
    number: int
    state: bytes = field(default=b"", repr=False)
    flow: FlowState
    waited: bool = False
    packages: PackageSet = NOTHING
    begun: Callable[[Callable[[], Awaitable[None]]], None]
    conclude: Callable[[RunResult, Ending], RunResult]

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


Work = Callable[[Any, SessionRun], Awaitable[RunResult]]
"""Runs a program in the guest of a session."""


@dataclass(eq=False, kw_only=True)
class QueuedRun:
    """A run that waits in a session's queue, or the session's end.

    Attributes:
        request: None if the session is only to end.
        outcome: None if its client has gone, or the session had ended before.
        over: Set once there is nothing more to come.
        stop: Interrupts the program that is under way.
        again: Its first sandbox was gone when it was to begin.
    """

    request: RunRequest | None = None
    limits: Limits = Limits()
    caller: RunCaller | None = None
    work: Work | None = None
    ends: bool = False
    outcome: RunResult | BridgeError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    stop: Callable[[], Awaitable[None]] | None = None
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
        """Cancel it, in whichever part it is."""
        self._cancelled = True
        self._scope.cancel()

    def finish(self, outcome: RunResult | BridgeError | None) -> None:
        self.outcome = outcome
        self.over.set()


class Session:
    """One session.

    Attributes:
        since: When it was last used, in seconds as `anyio.current_time` has them.
        memory_bytes: What its sandbox may use; 0 while it never had one.
        claimed: Whether this bridge has it, of several; `claiming` is held to change that.
    """

    def __init__(self, record: Record, table: Sessions) -> None:
        self.record = record
        self.memory_bytes = 0
        self.since = anyio.current_time()
        self.over = False
        self.claimed = False
        self.claiming = anyio.Lock()
        self._table = table
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
            raise SessionLimitError(
                f"{MAX_WAITING} runs wait for session {self.record.name!r} already.",
                remedy="Wait for their results, or use another session: they run side by side.",
            )
        self._queue.append(queued)
        self._woken.set()
        start, self._active = not self._active, True
        return start

    async def give_up(self, queued: QueuedRun) -> None:
        """End a run whose client has gone. Bounded."""
        queued.stopped = True
        if queued in self._queue:
            self._queue.remove(queued)
            queued.cancel()
            return

        async def cancel() -> None:
            queued.cancel()

        # A program that is interrupted may end, and its state is kept then. Otherwise the sandbox
        # goes, and with it what was not saved.
        for end in (queued.stop or cancel, cancel):
            with anyio.move_on_after(5.0):
                await end()
                await queued.over.wait()

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
            waiting.finish(None)
        if self._busy is not None:
            await self.give_up(self._busy)
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
            self._table.settled(self)
            with anyio.CancelScope(shield=True):
                await self._table.release(self)

    async def _serve_queue(self) -> None:
        if self.over:
            while self._queue:
                # The next request for the name gets a new session.
                self._queue.popleft().finish(None)
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
                await self._table.admission.admit(self)
                self._open = True
            if not self._open:
                return
            with first.section():
                self._packages = self._grown or await self._resolved_packages(first)
                self._grown = None
            async with self._table.reserve(limits, binds=self._packages.binds) as reserved:
                guest: Guest | None = None
                with first.section():
                    guest = await reserved()
                if guest is not None:
                    self.memory_bytes = limits.memory_bytes
                    await self._use(guest)
        except BridgeError as error:
            # There is no sandbox. The run that waits for it gets the error.
            if first in self._queue:
                self._queue.remove(first)
                first.finish(error)
            else:
                logger.warning("session %s: %s", self.record.name, error)
        finally:
            self._open = False
            self._table.admission.dismissed(self)
            self._closed.set()

    async def _resolved_packages(self, queued: QueuedRun) -> PackageSet:
        """Return what a sandbox needs for the session's packages and those of a run."""
        request, run, record = queued.request, queued.caller, self.record
        assert request is not None  # a sandbox is opened for a run only
        assert run is not None
        packages = tuple(dict.fromkeys((*record.packages, *packages_of(request))))
        with on_behalf_of(run):
            wanted = replace(request, packages=packages)
            found = await self._table.resolve_packages(wanted, run, record.pins)
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
                queued.finish(None)
        except BridgeError as error:
            queued.finish(error)
        self._busy = None

    async def _use(self, guest: Guest) -> None:
        """Serve runs until the sandbox must be released."""
        record = self.record
        saved = None
        if record.runs:
            saved, why = await self._table.checkpoints.load(record.owner, record.session_id)
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
            try:
                await self._run(queued, guest, saved)
                if record.begun and record.intact and not self.over:
                    saved = None
                    await self._save(guest, queued)
                    if record.recoverable:
                        await self._table.release(self)
            finally:
                # Without an outcome it failed in the bridge, which `serve` tells.
                if queued.outcome is not None:
                    queued.finish(queued.outcome)
            if queued not in self._queue:
                queued.finish(queued.outcome)
            if self.over or not record.intact:
                return

    async def _next(self, guest: Guest) -> QueuedRun | None:
        """Wait for the next run; None when the sandbox must be released."""
        if not self._queue and not self.record.begun:
            # The client that it was opened for has gone.
            return None
        if self.record.begun and self._table.admission.gives_way(self):
            # What waits in the queue asks for a place again, when it is served.
            return None
        if not self._queue and not self._leaving and await self._rest(guest):
            self.record.lose("its sandbox ended while it was idle")
            return None
        return self._queue.popleft() if self._queue and not self._leaving else None

    async def _rest(self, guest: Guest) -> bool:
        """Wait for a run, or until it has been idle for long; return whether the sandbox died."""
        died = False
        with anyio.move_on_after(self._table.idle_timeout):
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

    async def _run(self, queued: QueuedRun, guest: Guest, saved: Saved | None) -> None:
        self._busy = queued
        request, caller, work, record = queued.request, queued.caller, queued.work, self.record
        assert request is not None
        assert caller is not None
        assert work is not None
        heard = False

        def begun(stop: Callable[[], Awaitable[None]]) -> None:
            queued.stop = stop

        def conclude(result: RunResult, ending: Ending) -> RunResult:
            nonlocal heard
            heard = True
            return record.ended(
                result,
                ending,
                saved=saved,
                sound=guest.is_whole,
                cancelled=queued.stopped,
                ends=queued.ends,
            )

        seat = SessionRun(
            session_id=self.record.session_id,
            number=record.runs + 1,
            state=b"" if saved is None else saved.data,
            flow=record.flow,
            waited=record.begun,
            packages=self._packages,
            begun=begun,
            conclude=conclude,
        )
        outcome: RunResult | BridgeError | None = None
        with queued.section(), on_behalf_of(caller):
            outcome = await caught(work(guest, seat))
        self._busy = None
        self.since = anyio.current_time()
        if isinstance(outcome, NotStartedError):
            record.lose("its sandbox was gone when the next run was to begin")
            if not queued.again and not queued.stopped:
                queued.again = True
                self._queue.appendleft(queued)
                return
        elif not heard and (queued.stop is not None or not guest.is_whole):
            record.given_up()
        if queued.ends:
            await self._forget()
        queued.outcome = outcome
        if self._table.claims is None and not record.is_large(self._table.state_bytes):
            # Of several bridges another may get the next run, and needs what is saved of this one.
            # What is large may not be saved whole, which the result says.
            queued.finish(outcome)

    async def _save(self, guest: Guest, queued: QueuedRun) -> None:
        """Keep the state, so that losing the sandbox is not losing that."""
        record = self.record
        state = await guest.save(record.runs, self._table.state_bytes)
        if state is None or not guest.is_whole:
            record.lose("it did not answer any more when it was to be saved")
        elif state.data is None:
            record.unsaved(state.problem)
        elif problem := await self._table.checkpoints.save(
            record.owner, record.to_save(state.data, state.lost)
        ):
            record.unsaved(problem)
        else:
            record.kept(state.lost)
            if isinstance(queued.outcome, RunResult):
                queued.outcome = record.with_losses(queued.outcome, state.lost)

    async def _end(self, queued: QueuedRun) -> None:
        await self._forget()
        message = f"Session {self.record.name!r} has ended."
        result = RunResult(run_id=uuid.uuid4().hex, status="success", summary=message)
        queued.finish(replace(result, session=self.record.report("ended")))

    async def _forget(self) -> None:
        self.over = True
        self.record.holdings = Holdings()
        await self._table.checkpoints.forget(self.record.owner, self.record.session_id)
