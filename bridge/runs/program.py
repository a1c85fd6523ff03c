"""A running program in one sandbox.

Owns the loop from the `Run` frame to the end: frames in, calls out, the host's own deadline, and
the facts from which the verdict is reached. Also the program without code that has a session's
guest send its state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from bridge.clock import Clock, current_time
from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    NotStartedError,
    SandboxError,
    SandboxLostError,
)
from bridge.guest.protocol.wire import (
    Call,
    Cancel,
    Done,
    Exited,
    File,
    GuestFrame,
    Hello,
    Output,
    Ping,
    Pong,
    Progress,
    Run,
    Shown,
    State,
    Stop,
    WireError,
)
from bridge.model import Json, Limits
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES, Redact
from bridge.rpc.dispatcher import CallFailedError, Dispatcher, DispatchLimits, Handler
from bridge.runs.collect import Collected
from bridge.runs.collect.collector import Collector
from bridge.runs.ready_sandbox import MISSED_PINGS, ReadySandbox
from bridge.sandbox.backend import DistantSandbox
from bridge.sandbox.failure import Ending
from bridge.sessions.session import SAVE_SECONDS
from bridge.sessions.state import StateParts

logger = logging.getLogger(__name__)

_STILL_REMEDY = "Something on this machine pauses its containers; see the engine's events."

GRACE_SECONDS = 2.0
"""How long the guest may take to end its program after the time limit, which keeps the tail of the
output. Then the host ends the sandbox."""

COLLECT_SECONDS = 30.0  # A guest may send files for so long, whatever its time limit was.

YIELD_EVERY = 64
"""Frames handled in a row before other tasks run: one read may contain thousands."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How a program ended, and its collected output."""

    ending: Ending
    left: Collected


class Program:
    """Drives one program from its start to its end. Used once."""

    def __init__(
        self,
        session: ReadySandbox,
        handler: Handler,
        limits: Limits,
        *,
        collector: Collector | None = None,
        waited: bool = False,
        keeps: bool = False,
        clock: Clock | None = None,
        clear: Redact | None = None,
        clear_for: Callable[[Call], Redact] | None = None,
    ) -> None:
        """Make one.

        Args:
            waited: Whether the sandbox may have died while it waited.
            keeps: Whether the sandbox belongs to a session, so that further programs follow.
            clock: The run's total time; it stops during questions.
            clear: Redacts secrets in every error.
            clear_for: Returns the redactor for the answer to a call.
        """
        self._clear, self._clear_for = clear, clear_for
        self._waited = waited
        self._keeps = keeps
        self._clock = clock or Clock()
        # The program's own time; it stops while a call is open.
        self._own = Clock()
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._session = session
        self._handler = handler
        self._stopped = False
        self._limits = limits
        self._collector = collector or Collector(limits)
        self._done: Done | None = None
        self._exited: Exited | None = None
        self._protocol_error = ""
        self._lost: SandboxError | None = None
        self._started = self._own_started = 0.0
        self._heard = self._silent = False
        self._limit = anyio.CancelScope()

    async def start(self, frame: Run) -> None:
        """Send the program to the guest.

        Raises:
            NotStartedError: The sandbox is gone, or reads nothing.
        """
        self._started, self._own_started = self._clock.now(), self._own.now()
        # It takes milliseconds; megabytes have been seen to take seconds.
        with anyio.move_on_after(10.0):
            try:
                await self._session.channel.send(frame)
            except ChannelClosedError as error:
                raise NotStartedError(error.message, remedy=error.remedy) from error
            return
        message = "The sandbox did not read the program within 10 s."
        raise NotStartedError(message, remedy=_STILL_REMEDY)

    async def finish(self) -> Facts:
        """Serve the program to its end, and return how it ended.

        Raises:
            NotStartedError: The sandbox was dead before the program began.
        """
        try:
            return await self._finish()
        except BaseException:
            # Remove output that is only half stored.
            self._collector.discard()
            raise

    async def _finish(self) -> Facts:
        deadline_passed = True
        with self._limit:
            async with anyio.create_task_group() as tasks:
                dispatcher = Dispatcher(
                    tasks,
                    self._session.channel.write,
                    self._answer,
                    DispatchLimits(
                        concurrent=self._limits.concurrent_calls,
                        reply_bytes=self._limits.frame_bytes,
                    ),
                    clear=self._clear,
                    clear_for=self._clear_for,
                )
                distant = self._session.sandbox
                if isinstance(distant, DistantSandbox):
                    tasks.start_soon(self._watch_over, distant)
                try:
                    self._keep_time(tasks)
                    await self._serve(dispatcher)
                finally:
                    if self._timer is not None:
                        self._timer.cancel()
                if self._keeps and self._exited is not None and self._exited.kept:
                    # Half a reply would corrupt the channel for the next programs. The session's
                    # process reads all replies until its next run.
                    with anyio.move_on_after(5.0):
                        await dispatcher.cancel_all()
                dispatcher.close()
                if dispatcher.under_way or self._late or isinstance(distant, DistantSandbox):
                    # No one receives the answers to the program's open calls. Without open calls,
                    # cancelling would only cost the time that anyio needs to describe the task.
                    tasks.cancel_scope.cancel()
            deadline_passed = self._ended_late()
        if deadline_passed and self._collector.collecting:
            # The program's own end is known if the guest reported it.
            self._collector.give_up_files()
            deadline_passed = self._done is None
        if self._was_dead():
            raise NotStartedError("The sandbox was gone before its program began.")
        return await self._facts(deadline_passed=deadline_passed)

    async def stop(self) -> None:
        self._stopped = True
        try:
            await self._session.channel.send(Stop(late=self._late))
        except ChannelClosedError as error:
            logger.debug("sandbox %s is not stopped: %s", self._session.sandbox.id, error)

    async def _answer(self, method: str, params: Mapping[str, Json]) -> Json:
        """Answer a request, unless the program's time is over.

        An interrupted program gets a moment to end, and makes no further calls.
        """
        if self._stopped or min(self._seconds_left()) <= 0:
            message = "The run's time is over: it can make no further calls."
            raise CallFailedError(message, kind="timeout")
        with self._own.stop():
            return await self._handler(method, params)

    def _seconds_left(self) -> tuple[float, float]:
        """Return the seconds left of the program's own time, and of the run's total time."""
        own, run = self._own.now() - self._own_started, self._clock.now() - self._started
        return self._limits.timeout - own, self._limits.longest_timeout - run

    def _keep_time(self, tasks: TaskGroup) -> None:
        """Interrupt the program if its time is over, else set the timer for the next look."""
        left = min(self._seconds_left())
        if self._collector.collecting:
            return
        if left > 0:
            # At least 0.1 s: both clocks may stop just before the end.
            later = asyncio.get_running_loop().call_later
            self._timer = later(max(left, 0.1), self._keep_time, tasks)
            return
        self._late = True
        self._limit.deadline = current_time() + GRACE_SECONDS
        tasks.start_soon(self.stop)

    async def _watch_over(self, distant: DistantSandbox) -> None:
        """Ping the guest, and end the sandbox after three pings without an answer."""
        missed = 0
        while True:
            # Most programs end sooner than the first ping. A machine that stops keeps its
            # streams open, so only a missing answer shows that it is gone.
            await anyio.sleep(5.0)
            missed = missed + 1 if self._silent else 0
            if missed == MISSED_PINGS:
                break
            self._silent = True
            # Shielded, since half a frame would corrupt the channel for a next program.
            with anyio.move_on_after(5.0, shield=True):
                try:
                    await self._session.channel.send(Ping())
                except ChannelClosedError:
                    return
        error = await distant.why_lost(f"no answer to {missed} questions in a row")
        self._lost = error
        await self._session.sandbox.kill()

    def _was_dead(self) -> bool:
        """Return whether the sandbox seems to have ended before the program began.

        Even if the program has begun, it has called nothing and can begin again.
        """
        age = self._clock.now() - self._started
        return self._waited and not self._heard and not self._protocol_error and age < 0.1

    def _ended_late(self) -> bool:
        """Return whether the sandbox ended at the deadline without a final frame.

        The guest reports that it stopped the program, but engines can lose the last output of a
        sandbox that has unread input.
        """
        return self._exited is None and not self._protocol_error and not self._lost and self._late

    async def _serve(self, dispatcher: Dispatcher) -> None:
        taken = 0
        while self._exited is None:
            taken += 1
            if taken % YIELD_EVERY == 0:
                await anyio.lowlevel.checkpoint()
            try:
                frame = await self._session.channel.receive()
                if frame is None:
                    return
                self._silent = False
                if isinstance(frame, Pong):
                    continue
                self._heard = True
                await self._act(dispatcher, frame)
            except WireError as error:
                self._protocol_error = str(error)
                logger.warning("sandbox %s: %s", self._session.sandbox.id, error)
                return
            except ChannelClosedError as error:
                # The output until then stays valid.
                self._lost = error
                logger.warning("sandbox %s was lost: %s", self._session.sandbox.id, error)
                return

    async def _act(self, dispatcher: Dispatcher, frame: GuestFrame) -> None:
        match frame:
            case Call():
                if self._collector.collecting:
                    raise WireError("a call after the program's end")
                await dispatcher.accept(frame, self._session.channel.last_cost)
            case Cancel():
                dispatcher.cancel(frame.id)
            case Output() | Shown() | Progress() | State():
                await self._collector.add(frame)
            case File():
                self._begin_collecting()
                await self._collector.add(frame)
            case Done():
                if self._done is not None:
                    raise WireError("a second done frame")
                self._done = frame
            case Exited():
                self._exited = frame
            case Hello() | Pong():
                raise WireError("a second hello frame, or an answer without a question")

    def _begin_collecting(self) -> None:
        """Start the files' own time limit: the program's is over."""
        if not self._collector.collecting:
            self._limit.deadline = current_time() + COLLECT_SECONDS

    async def _facts(self, *, deadline_passed: bool) -> Facts:
        report = None
        clean = self._exited is not None and self._exited.signal is None
        if not clean and not deadline_passed:
            # The engine knows what the guest cannot report, such as an out-of-memory kill.
            with anyio.move_on_after(5.0):
                try:
                    await self._session.sandbox.kill()
                    report = await self._session.sandbox.wait()
                except SandboxError as error:
                    logger.debug("no exit report: %s", error)
                    if self._exited is None:
                        self._lost = self._lost or error
        ending = Ending(
            done=self._done,
            exited=self._exited,
            report=report,
            deadline_passed=deadline_passed,
            ran_longest=self._seconds_left()[0] > 0,
            protocol_error=self._protocol_error,
            lost=str(self._lost or ""),
            lost_code=self._lost.code if isinstance(self._lost, SandboxLostError) else "",
            diagnostics="" if clean else self._session.sandbox.diagnostics(),
        )
        return Facts(ending=ending, left=await self._collector.finish())


SAVE_LIMITS = Limits(
    timeout=SAVE_SECONDS, longest_timeout=SAVE_SECONDS, tool_calls=0, concurrent_calls=1
)


async def save_state(
    guest: ReadySandbox, number: int, limit: int, task: str = "", paths: Iterable[str] = ()
) -> StateParts | None:
    """Return a session's state in parts; None if its sandbox no longer works.

    Args:
        limit: The largest state, in bytes.
        task: What the guest reports instead of the state; see `bridge.guest.state.installed`.
    """
    limits = replace(SAVE_LIMITS, timeout=2 * SAVE_SECONDS) if task else SAVE_LIMITS
    state = StateParts()
    collector = Collector(limits, state=state)
    program = Program(guest, _refuse, limits, collector=collector, keeps=True)
    frame = Run(
        code="",
        argv=[task] if task else [],
        paths=list(paths),
        session=number,
        save=True,
        limits={
            "timeout": limits.timeout,
            "output_bytes": SAVE_LIMITS.output_bytes,
            "result_bytes": SAVE_LIMITS.result_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
            "state_bytes": limit,
        },
    )
    try:
        await program.start(frame)
        ending = (await program.finish()).ending
    except BridgeError:
        return None
    if ending.exited is None or not ending.exited.kept or ending.protocol_error or ending.lost:
        return None
    if ending.exited.timed_out:
        state.refuse(f"that took longer than {limits.timeout:g} s")
    elif ending.done is None or ending.done.outcome != "ok":
        said = "" if ending.done is None else ending.done.error.strip().rpartition("\n")[2]
        state.refuse(said[:200] or "its process said nothing")
    elif state.data is None and not state.problem:
        state.refuse("there was nothing")
    return state


async def _refuse(method: str, params: Mapping[str, Json]) -> Json:
    raise CallFailedError("No tool can be called between a session's runs.", kind="usage")
