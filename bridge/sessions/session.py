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
from bridge.sessions.checkpoints import Saved
from bridge.sessions.record import Holdings, Record
from bridge.sessions.state import StateParts
from bridge.upstream.asking import forget_caller, on_behalf_of

if TYPE_CHECKING:
    from bridge.sessions.table import Sessions

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = Limits()

MAX_WAITING = 32
"""Turns in one session's queue."""

STOP_SECONDS = 5.0
"""For a program to end that nobody wants any more, once it has been interrupted. Its state is kept
then; otherwise the session's sandbox goes, and with it what was not saved."""


MAX_BYTES = 44 * 1024 * 1024
"""Of a restored state and of files together: as base64 they share a frame of at most 64 MiB with
the program and the servers' stubs."""

SAVE_SECONDS = 10.0
"""For a session to put its state into words. The next run waits for it."""


class Guest(Protocol):
    """A sandbox that a session's runs follow each other in."""

    @property
    def is_whole(self) -> bool:
        """Whether another run can be sent: no frame was left half written."""

    async def wait_dead(self) -> None:
        """Return when it has gone, or has said something that no run asked for."""

    async def save(self, number: int) -> StateParts | None:
        """Return the session's state in parts; None if the sandbox is of no use any more.

        Args:
            number: Of the session's last run.
        """


class Stoppable(Protocol):
    """A program that is under way."""

    async def stop(self) -> None:
        """Interrupt it."""


class Reserved(Protocol):
    """A sandbox that is set aside."""

    async def get(self) -> Guest:
        """Return it once it is ready."""


@dataclass(eq=False, kw_only=True)
class SessionRun:
    """One run's place in its session.

    Attributes:
        session_id: For the records.
        number: Of the run, from 1.
        state: What the session begins with, in a fresh sandbox; empty for nothing.
        servers: Those that earlier runs loaded; they stay.
        outfit: What the sandbox has for the session's packages.
        waited: Whether the sandbox may have died since its last run.
        conclude: Called with the result and the ending; returns the result with the session's
            report.
    """

    session_id: str
    number: int
    state: bytes = field(default=b"", repr=False)
    servers: tuple[str, ...] = ()
    flow: FlowState
    waited: bool = False
    outfit: PackageSet = NOTHING
    begun: Callable[[Stoppable], None]
    conclude: Callable[[RunResult, Ending], RunResult]

    @property
    def fields(self) -> dict[str, Any]:
        """What the run's frame says of it; see `run_frame`."""
        return {"number": self.number, "state": as_base64(self.state)}

    def check(self, request: RunRequest) -> None:
        """Check that what a request brings fits beside what the session begins with.

        Raises:
            InvalidRequestError: It does not.
        """
        brought = sum(len(file.data or b"") for file in request.files)
        if len(self.state) + brought > MAX_BYTES:
            message = (
                f"The files of this run ({brought:,} bytes) do not fit beside what is restored of "
                f"the session ({len(self.state):,} bytes): together {MAX_BYTES:,} at most."
            )
            remedy = "Run something without files first; the next run can have them."
            raise InvalidRequestError(message, remedy=remedy)


Work = Callable[[Any, SessionRun], Awaitable[RunResult]]
"""Runs a program in the guest that `Reserved` gave."""


@dataclass(eq=False, kw_only=True)
class QueuedRun:
    """One thing that is wanted of a session.

    Attributes:
        request: None where only its end is wanted.
        limits: Of the run.
        caller: Who asked for it.
        ends: Whether the session ends with it.
        outcome: None if nobody waits for it any more, or the session had ended before.
        over: Set once there is nothing more to come.
        program: What is under way.
        stopped: Whoever asked for it has gone.
        again: Its first sandbox was gone when it was to begin.
    """

    request: RunRequest | None = None
    limits: Limits = DEFAULT_LIMITS
    caller: RunCaller | None = None
    work: Work | None = None
    ends: bool = False
    outcome: RunResult | BridgeError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    program: Stoppable | None = None
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


class Session:
    """One session.

    Attributes:
        record: What is known of it.
        since: When it was last used, in seconds as `anyio.current_time` has them.
        memory_bytes: What its sandbox may use; 0 while it never had one.
        over: Whether it has ended for good.
    """

    def __init__(self, record: Record, table: Sessions) -> None:
        self.record = record
        self.memory_bytes = 0
        self.since = anyio.current_time()
        self.over = False
        self._table = table
        self._queue: deque[QueuedRun] = deque()
        self._open = self._leaving = self._active = False
        self._busy: QueuedRun | None = None
        self._woken = anyio.Event()
        self._closed = anyio.Event()
        self._outfit = NOTHING

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.record.owner

    @property
    def is_open(self) -> bool:
        """Whether it has a sandbox, or is about to."""
        return self._open

    @property
    def in_use(self) -> bool:
        """Whether anybody waits for it."""
        return self._busy is not None or bool(self._queue)

    # --- for those who want something of it -----------------------------------------------------

    def put(self, turn: QueuedRun) -> bool:
        """Queue something; return whether its task has to be started.

        Raises:
            SessionLimitError: Too much waits already.
        """
        if len(self._queue) >= MAX_WAITING:
            message = f"{MAX_WAITING} runs wait for session {self.record.name!r} already."
            remedy = "Wait for their results, or use another session: they run side by side."
            raise SessionLimitError(message, remedy=remedy)
        self._queue.append(turn)
        self._woken.set()
        start, self._active = not self._active, True
        return start

    async def give_up(self, turn: QueuedRun) -> None:
        """See that nothing of a turn goes on that nobody waits for. Bounded."""
        turn.stopped = True
        if turn in self._queue:
            self._queue.remove(turn)
            turn.cancel()
            return
        if turn.program is None:
            turn.cancel()
        with anyio.move_on_after(STOP_SECONDS):
            if turn.program is not None:
                await turn.program.stop()
            await turn.over.wait()
        turn.cancel()
        with anyio.move_on_after(STOP_SECONDS):
            await turn.over.wait()

    async def put_away(self) -> None:
        """Have its sandbox go once what is under way in it has ended, and wait for that."""
        if self._open:
            self._leaving = True
            self._woken.set()
            await self._closed.wait()

    async def stop(self) -> None:
        """Put it away soon, also if a run is under way: nobody waits for that any more."""
        while self._queue:
            waiting = self._queue.popleft()
            waiting.cancel()
            waiting.finish(None)
        if self._busy is not None:
            await self.give_up(self._busy)
        await self.put_away()

    # --- its task -------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Do what waits, with one sandbox after another if need be."""
        # Started by some run, it makes calls for many.
        forget_caller()
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

    async def _serve_queue(self) -> None:
        if self.over:
            while self._queue:
                # Whoever asks for the name again gets a new one.
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
        """Have a sandbox for as long as it is wanted, or may be."""
        self._closed, self._leaving = anyio.Event(), False
        self.record.opened()
        try:
            with first.section():
                await self._table.admission.admit(self)
                self._open = True
            if not self._open:
                return
            with first.section():
                self._outfit = await self._dressed(first)
            async with self._table.reserve(limits, self._outfit) as reservation:
                guest: Guest | None = None
                with first.section():
                    guest = await reservation.get()
                if guest is not None:
                    self.memory_bytes = limits.memory_bytes
                    await self._use(guest)
        except BridgeError as error:
            # There is no sandbox: for whoever waits for one, that is the answer.
            if first in self._queue:
                self._queue.remove(first)
                first.finish(error)
            else:
                logger.warning("session %s: %s", self.record.name, error)
        finally:
            self._open = False
            self._table.admission.dismissed(self)
            self._closed.set()

    async def _dressed(self, first: QueuedRun) -> PackageSet:
        """Return what the sandbox needs for the packages that the session was begun with."""
        request, run = first.request, first.caller
        assert request is not None  # else nobody would need one
        assert run is not None
        self.record.settle_packages(packages_of(request))
        with on_behalf_of(run):
            return await self._table.outfit(replace(request, packages=self.record.packages), run)

    async def _use(self, guest: Guest) -> None:
        """Serve turns until the sandbox is to go."""
        record = self.record
        saved = None
        if record.runs:
            saved, why = await self._table.checkpoints.load(record.owner, record.session_id)
            record.began_from(saved, why)
        while (turn := await self._next(guest)) is not None:
            if turn.request is None:
                await self._end(turn)
                return
            await self._run(turn, guest, saved)
            if record.begun and record.intact and not self.over:
                saved = None
                await self._save(guest)
            if self.over or not record.intact:
                return

    async def _next(self, guest: Guest) -> QueuedRun | None:
        """Wait for something to do; None when the sandbox is to go."""
        if not self._queue and not self.record.begun:
            # Whoever it was opened for has gone meanwhile.
            return None
        if self.record.begun and self._table.admission.gives_way(self):
            # What waits in the queue asks for a place again, when it is served.
            return None
        if not self._queue and not self._leaving and await self._rest(guest):
            self.record.lose("its sandbox ended while nobody used it")
            return None
        return self._queue.popleft() if self._queue and not self._leaving else None

    async def _rest(self, guest: Guest) -> bool:
        """Wait until somebody wants something, or nobody did for long; tell whether it died."""
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

    # --- one run --------------------------------------------------------------------------------

    async def _run(self, turn: QueuedRun, guest: Guest, saved: Saved | None) -> None:
        self._busy = turn
        request, caller, work, record = turn.request, turn.caller, turn.work, self.record
        assert request is not None
        assert caller is not None
        assert work is not None
        heard = False
        try:
            record.settle_packages(packages_of(request))
        except BridgeError as error:
            self._busy = None
            turn.finish(error)
            return

        def begun(program: Stoppable) -> None:
            turn.program = program

        def conclude(result: RunResult, ending: Ending) -> RunResult:
            nonlocal heard
            heard = True
            return record.ended(
                result,
                ending,
                saved=saved,
                sound=guest.is_whole,
                cancelled=turn.stopped,
                ends=turn.ends,
            )

        seat = SessionRun(
            session_id=self.record.session_id,
            number=record.runs + 1,
            state=b"" if saved is None else saved.data,
            servers=record.servers,
            flow=record.flow,
            waited=record.begun,
            outfit=self._outfit,
            begun=begun,
            conclude=conclude,
        )
        outcome: RunResult | BridgeError | None = None
        with turn.section(), on_behalf_of(caller):
            outcome = await caught(work(guest, seat))
        self._busy = None
        self.since = anyio.current_time()
        if isinstance(outcome, NotStartedError):
            record.lose("its sandbox was gone when the next run was to begin")
            if not turn.again and not turn.stopped:
                turn.again = True
                self._queue.appendleft(turn)
                return
        elif not heard and (turn.program is not None or not guest.is_whole):
            record.given_up()
        if turn.ends:
            await self._forget()
        turn.finish(outcome)

    # --- what is kept, and the end --------------------------------------------------------------

    async def _save(self, guest: Guest) -> None:
        """Keep the state, so that losing the sandbox is not losing that."""
        record = self.record
        state = await guest.save(record.runs)
        if state is None or not guest.is_whole:
            record.lose("it did not answer any more when it was to be saved")
        elif state.data is None:
            record.unsaved(state.problem)
        elif problem := await self._table.checkpoints.save(
            record.owner, record.to_save(state.data, state.lost)
        ):
            record.unsaved(problem)
        else:
            record.kept()

    async def _end(self, turn: QueuedRun) -> None:
        """End it without a run."""
        await self._forget()
        message = f"Session {self.record.name!r} has ended."
        result = RunResult(run_id=uuid.uuid4().hex, status="success", summary=message)
        turn.finish(replace(result, session=self.record.report("ended")))

    async def _forget(self) -> None:
        self.over = True
        self.record.holdings = Holdings()
        await self._table.checkpoints.forget(self.record.owner, self.record.session_id)
