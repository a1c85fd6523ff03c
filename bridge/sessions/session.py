"""One session: its queue, its sandbox while it has one, and its state between runs.

One task serves the queue while a sandbox exists or a run waits. It opens the sandbox, hands it to
one run after another, and saves the state after each run.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, NotStartedError
from bridge.model import Limits, RunRequest, RunResult
from bridge.packages.packages import NOTHING, PackageSet, packages_of
from bridge.sandbox.pool import Reservation
from bridge.sessions.admission import MAX_WAITING, SessionAdmission
from bridge.sessions.checkpoints import (
    Checkpoints,
    Claims,
    Saved,
    StateParts,
    elsewhere_error,
    takeover,
)
from bridge.sessions.record import Holdings, Record
from bridge.sessions.turns import Guest, QueuedRun, Turn
from bridge.upstream.client_features import clear_caller, on_behalf_of

logger = logging.getLogger(__name__)

SAVE_SECONDS = 10.0  # A guest may take so long to send its state; the next run waits.


Reserve = Callable[..., AbstractAsyncContextManager[Reservation[Any]]]
"""Reserves a sandbox for several runs; takes the limits and `binds`."""

ResolvePackages = Callable[[RunRequest, RunCaller, tuple[str, ...]], Awaitable[PackageSet]]
"""Returns the package set for a request, with some versions fixed."""

SaveState = Callable[[Any, int, int], Awaitable[StateParts | None]]
"""Returns the state of a sandbox, given the run's number and the most bytes; None if the sandbox no
longer works."""


@dataclass(frozen=True, kw_only=True)
class SessionServices:
    """The parts of a bridge that its sessions share."""

    reserve: Reserve
    resolve_packages: ResolvePackages
    save_state: SaveState
    admission: SessionAdmission
    checkpoints: Checkpoints
    claims: Claims | None  # None for a single bridge.
    idle_timeout: float  # Seconds without a run after which a session gives up its sandbox.
    state_bytes: int  # The largest state to save.


class Session:
    """One session."""

    def __init__(self, record: Record, services: SessionServices) -> None:
        self.record = record
        self.memory_bytes = 0  # The memory limit of its last sandbox.
        self.since = anyio.current_time()  # The time of its last use.
        self.over = False
        self.claimed = False  # Whether this one of several bridges has it; see `claiming`.
        self.claiming = anyio.Lock()
        self.is_open = False  # Whether it has a sandbox, or starts one.
        self._services = services
        self._queue: deque[QueuedRun] = deque()
        self._leaving = self._active = False
        self._busy: QueuedRun | None = None
        self._woken = anyio.Event()
        self._closed = anyio.Event()
        self._packages = NOTHING
        self._grown: PackageSet | None = None  # For its next sandbox.
        self._unwritten: Saved | None = None  # What the store could not take yet.

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
        await self.end_run()

    async def yield_to(self, bridge: str) -> None:
        """End what runs or waits here: another bridge has taken the session over."""
        self.claimed = False
        while self._queue:
            self._queue.popleft().finish(elsewhere_error(self.record.session_id, bridge))
        await self.end_run(takeover(bridge))

    async def end_run(self, why: str = "") -> None:
        """End the current run and release the sandbox, without a save if there is a reason."""
        if why:
            self.record.lose(why)
        if self._busy is not None:
            self._busy.overtaken = why
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
            with anyio.CancelScope(shield=True):
                await self._write()
            self._unwritten = None
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
            kept = self._services.checkpoints
            saved, why = await kept.run(kept.load, record.owner, record.session_id)
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
                    await self._save(guest, turn)
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
                tasks.start_soon(self._write_later)
                while not self._queue and not self._leaving and self.record.intact:
                    self._woken = woken = anyio.Event()
                    if self.record.recoverable:
                        # The run that had the claim was withdrawn.
                        await self.release()
                    await woken.wait()
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
            record.runs += 1
            record.lose("its last run was given up, and had to be killed")
        if queued.ends:
            await self._forget()
        size = sum(held.size or 0 for held in record.holdings.holds)
        if self._services.claims is None and size <= self._services.state_bytes // 2:
            # The result need not wait for the save. Of several bridges another one may serve the
            # next run, and needs the saved state. A large state may be saved only in part.
            queued.finish()

    async def _save(self, guest: Guest, turn: Turn) -> None:
        """Save the state after a turn, and tell the turn what could not be saved."""
        record = self.record
        state = await self._services.save_state(guest, record.runs, self._services.state_bytes)
        self._unwritten = None
        if state is None or not guest.is_whole:
            why = "it did not answer any more when it was to be saved"
            record.lose(why)
            turn.unsaved = f"What this run changed is not saved: {why}. Its calls have happened."
        elif state.data is None:
            record.set_unsaved(state.problem)
            turn.unsaved = f"The state after this run is in this bridge only: {state.problem}."
        else:
            self._unwritten = record.to_save(state.data, state.lost)
            turn.unsaved = await self._write()
            turn.lost = () if turn.unsaved else state.lost

    async def _write(self) -> str:
        """Write down what is unwritten, and release the claim; return why that failed, or ""."""
        record, services, saved = self.record, self._services, self._unwritten
        if saved is None:
            return ""
        async with self.claiming:
            # Without the claim, another bridge may have saved a later state.
            problem, ours = takeover(), services.claims is None or self.claimed
            release = self.claimed and not self.in_use
            if ours:
                save = partial(services.checkpoints.save, record.owner, saved, release=release)
                problem = await services.checkpoints.run(save)
            if not problem:
                record.kept(saved.lost)
                self.claimed, self._unwritten = self.claimed and not release, None
                return ""
            if services.claims is not None:
                ours = ours and services.claims.holds(record.owner, record.session_id)
            if not ours:
                record.lose(problem)
                self._unwritten = None
                return f"What this run changed is not saved: {problem}. Its calls have happened."
            record.set_unsaved(problem)
        return (
            f"The state after this run is in this bridge only: {problem}. The bridge saves it once "
            "it can; it is lost if the bridge ends before, or needs the sandbox for others."
        )

    async def _write_later(self) -> None:
        """Write down what is unwritten, as soon as the store can take it."""
        wait = 1.0
        while self._unwritten is not None:
            await anyio.sleep(wait)
            wait = min(2 * wait, 8.0)
            with anyio.CancelScope(shield=True):
                await self._write()
        self._woken.set()

    async def _end(self, queued: QueuedRun) -> None:
        await self._forget()
        message = f"Session {self.record.name!r} has ended."
        result = RunResult(run_id=uuid.uuid4().hex, status="success", summary=message)
        queued.finish(replace(result, session=self.record.report("ended")))

    async def _forget(self) -> None:
        self.over = True
        self.record.holdings = Holdings()
        kept = self._services.checkpoints
        try:
            await kept.run(kept.remove, self.record.owner, self.record.session_id)
        except OSError as error:
            logger.warning("what was saved of a session cannot be removed: %s", error)
