"""One session: its queue, its sandbox while it has one, and its state between runs.

Owns the order of a session's runs, and when its sandbox comes, is saved and goes. One task does all
of that, and is there only while there is a sandbox or something waits. What is remembered of a
session is its record's; which sessions there are, and how many may be open, is the table's.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

import anyio

from bridge.engine.client import OneRun
from bridge.engine.guest_session import GuestSession, wait_dead
from bridge.engine.outcome import caught
from bridge.engine.packages import NOTHING, Outfit, packages_of
from bridge.engine.program import Facts, NotStartedError, Program
from bridge.engine.sandboxes import Reserved
from bridge.engine.sessions.channel import SessionChannel
from bridge.engine.sessions.checkpoints import Saved
from bridge.engine.sessions.record import Identity, Record
from bridge.engine.sessions.report import with_session
from bridge.engine.sessions.saving import save_state
from bridge.engine.sessions.turn import Seat, Turn, whole
from bridge.errors import BridgeError, SessionLimitError
from bridge.model import Limits, Loss, RunRequest, RunResult
from bridge.upstream.asking import forget_caller, on_behalf_of

logger = logging.getLogger(__name__)

MAX_WAITING = 32
"""Turns in one session's queue."""

STOP_SECONDS = 5.0
"""For a program to end that nobody wants any more, once it has been interrupted. Its state is kept
then; otherwise the session's sandbox goes, and with it what was not saved."""


class Host(Protocol):
    """What a session needs of the table."""

    @property
    def idle_timeout(self) -> float:
        """Seconds after which a sandbox that nobody uses is put away."""

    def reserve(self, limits: Limits, outfit: Outfit) -> AbstractAsyncContextManager[Reserved]:
        """Set a sandbox aside that is the session's for as long as it needs one."""

    async def outfit(self, request: RunRequest, run: OneRun) -> Outfit:
        """Return what a sandbox needs for the packages that a request is for.

        Raises:
            BridgeError: They cannot be had.
        """

    async def admit(self, session: Session) -> None:
        """Make room for one more that is open.

        Raises:
            SessionLimitError: There is none.
        """

    def dismissed(self, session: Session) -> None:
        """Note that it is open no longer."""

    def gives_way(self, session: Session) -> bool:
        """Tell whether its place is somebody's who waits, now that a run has ended in it."""

    def settled(self, session: Session) -> None:
        """Note that nothing is under way in it."""

    async def load(self, session: Session) -> tuple[Saved | None, str]:
        """Return what was saved of it last, or why that is of no use."""

    async def save(self, session: Session, data: bytes, lost: tuple[Loss, ...]) -> str:
        """Keep its state; return why that could not be done, empty if it was."""

    async def forget(self, session: Session) -> None:
        """Keep nothing of it."""


class Session:
    """One session.

    Attributes:
        record: What is known of it.
        since: When it was last used, in seconds as `anyio.current_time` has them.
        memory_bytes: What its sandbox may use; 0 while it never had one.
        over: Whether it has ended for good.
    """

    def __init__(self, record: Record, host: Host) -> None:
        self.record = record
        self.memory_bytes = 0
        self.since = anyio.current_time()
        self.over = False
        self._host = host
        self._queue: deque[Turn] = deque()
        self._open = self._leaving = self._active = False
        self._busy: Turn | None = None
        self._woken = anyio.Event()
        self._closed = anyio.Event()
        self._outfit = NOTHING

    @property
    def identity(self) -> Identity:
        """Whose it is, and what it goes by."""
        return self.record.identity

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.record.identity.owner

    @property
    def is_open(self) -> bool:
        """Whether it has a sandbox, or is about to."""
        return self._open

    @property
    def in_use(self) -> bool:
        """Whether anybody waits for it."""
        return self._busy is not None or bool(self._queue)

    # --- for those who want something of it -----------------------------------------------------

    def put(self, turn: Turn) -> bool:
        """Queue something; return whether its task has to be started.

        Raises:
            SessionLimitError: Too much waits already.
        """
        if len(self._queue) >= MAX_WAITING:
            message = f"{MAX_WAITING} runs wait for session {self.identity.name!r} already."
            remedy = "Wait for their results, or use another session: they run side by side."
            raise SessionLimitError(message, remedy=remedy)
        self._queue.append(turn)
        self._woken.set()
        start, self._active = not self._active, True
        return start

    async def give_up(self, turn: Turn) -> None:
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
                    logger.exception("session %s failed inside the bridge", self.identity.name)
                    message = "The bridge failed; its log has the details."
                    self.record.lose("the bridge failed in it")
                    self._refuse_all(BridgeError(message))
        finally:
            # Something is left only if this is cancelled, as the engine ends.
            self._refuse_all(None)
            self._active = False
            self._host.settled(self)

    async def _serve_queue(self) -> None:
        if self.over:
            while self._queue:
                # Whoever asks for the name again gets a new one.
                self._queue.popleft().finish(None)
            return
        first = self._queue[0]
        if first.job is None:
            await self._end(self._queue.popleft())
        else:
            await self._live(first, first.job.limits)

    def _refuse_all(self, error: BridgeError | None) -> None:
        if self._busy is not None:
            self._busy.finish(error)
            self._busy = None
        while self._queue:
            self._queue.popleft().finish(error)

    async def _live(self, first: Turn, limits: Limits) -> None:
        """Have a sandbox for as long as it is wanted, or may be."""
        self._closed, self._leaving = anyio.Event(), False
        self.record.opened()
        try:
            with first.section():
                await self._host.admit(self)
                self._open = True
            if not self._open:
                return
            with first.section():
                self._outfit = await self._dressed(first)
            async with self._host.reserve(limits, self._outfit) as reservation:
                guest: GuestSession | None = None
                with first.section():
                    guest = await reservation.get()
                if guest is not None:
                    self.memory_bytes = limits.memory_bytes
                    await self._use(replace(guest, channel=SessionChannel(guest.sandbox)))
        except BridgeError as error:
            # There is no sandbox: for whoever waits for one, that is the answer.
            if first in self._queue:
                self._queue.remove(first)
                first.finish(error)
            else:
                logger.warning("session %s: %s", self.identity.name, error)
        finally:
            self._open = False
            self._host.dismissed(self)
            self._closed.set()

    async def _dressed(self, first: Turn) -> Outfit:
        """Return what the sandbox needs for the packages that the session was begun with."""
        assert first.job is not None  # else nobody would need one
        request, run = first.job.request, first.job.run
        self.record.settle_packages(packages_of(request))
        with on_behalf_of(run):
            return await self._host.outfit(replace(request, packages=self.record.packages), run)

    async def _use(self, guest: GuestSession) -> None:
        """Serve turns until the sandbox is to go."""
        record = self.record
        saved = None
        if record.runs:
            saved, why = await self._host.load(self)
            record.began_from(saved, why)
        while (turn := await self._next(guest)) is not None:
            if turn.job is None:
                await self._end(turn)
                return
            await self._run(turn, guest, saved)
            if record.begun and record.intact and not self.over:
                saved = None
                await self._save(guest)
            if self.over or not record.intact:
                return

    async def _next(self, guest: GuestSession) -> Turn | None:
        """Wait for something to do; None when the sandbox is to go."""
        if not self._queue and not self.record.begun:
            # Whoever it was opened for has gone meanwhile.
            return None
        if self.record.begun and self._host.gives_way(self):
            # What waits in the queue asks for a place again, when it is served.
            return None
        if not self._queue and not self._leaving and await self._rest(guest):
            self.record.lose("its sandbox ended while nobody used it")
            return None
        return self._queue.popleft() if self._queue and not self._leaving else None

    async def _rest(self, guest: GuestSession) -> bool:
        """Wait until somebody wants something, or nobody did for long; tell whether it died."""
        died = False
        with anyio.move_on_after(self._host.idle_timeout):
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    nonlocal died
                    await wait_dead(guest)
                    died = True
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                while not self._queue and not self._leaving:
                    self._woken = anyio.Event()
                    await self._woken.wait()
                tasks.cancel_scope.cancel()
        return died

    # --- one run --------------------------------------------------------------------------------

    async def _run(self, turn: Turn, guest: GuestSession, saved: Saved | None) -> None:
        self._busy = turn
        job, work, record = turn.job, turn.work, self.record
        assert job is not None
        assert work is not None
        heard = False
        try:
            record.settle_packages(packages_of(job.request))
        except BridgeError as error:
            self._busy = None
            turn.finish(error)
            return

        def begun(program: Program) -> None:
            turn.program = program

        def conclude(result: RunResult, facts: Facts) -> RunResult:
            nonlocal heard
            heard = True
            return record.ended(
                result,
                facts,
                saved=saved,
                sound=whole(guest),
                cancelled=turn.stopped,
                ends=turn.ends,
            )

        seat = Seat(
            session_id=self.identity.session_id,
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
        with turn.section(), on_behalf_of(job.run):
            outcome = await caught(work(guest, seat))
        self._busy = None
        self.since = anyio.current_time()
        if isinstance(outcome, NotStartedError):
            record.lose("its sandbox was gone when the next run was to begin")
            if not turn.again and not turn.stopped:
                turn.again = True
                self._queue.appendleft(turn)
                return
        elif not heard and (turn.program is not None or not whole(guest)):
            record.given_up()
        if turn.ends:
            await self._forget()
        turn.finish(outcome)

    # --- what is kept, and the end --------------------------------------------------------------

    async def _save(self, guest: GuestSession) -> None:
        """Keep the state, so that losing the sandbox is not losing that."""
        record = self.record
        found = await save_state(guest, record.runs)
        if found is None or not whole(guest):
            record.lose("it did not answer any more when it was to be saved")
        elif found.data is None:
            record.unsaved(found.problem)
        elif problem := await self._host.save(self, found.data, found.lost):
            record.unsaved(problem)
        else:
            record.kept()

    async def _end(self, turn: Turn) -> None:
        """End it without a run."""
        await self._forget()
        message = f"Session {self.identity.name!r} has ended."
        result = RunResult(run_id=uuid.uuid4().hex, status="success", summary=message)
        turn.finish(with_session(result, self.record.report("ended")))

    async def _forget(self) -> None:
        self.over = True
        self.record.over()
        await self._host.forget(self)
