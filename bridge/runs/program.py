"""A sandbox whose guest is ready, and the program that runs in it.

`Program` is the loop from the `Run` frame to the end: frames in, replies out, the host's own
deadline, and the facts for the verdict. `save_state` runs a program without code, for which a
session's guest sends its state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import anyio.lowlevel
from anyio.abc import TaskGroup

from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    LaunchError,
    NotStartedError,
    SandboxError,
    SandboxLostError,
)
from bridge.event_loop import Clock, current_time
from bridge.guest.protocol.wire import (
    PROTOCOL,
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
from bridge.model import Isolation, Json, Limits
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES, Channel, Redact
from bridge.rpc.dispatcher import CallFailedError, Dispatcher, DispatchLimits, Handler
from bridge.runs.collect.collector import Collector
from bridge.runs.collect.outputs import Collected
from bridge.sandbox.backend import Backend, DistantSandbox, LaunchSpec, Sandbox
from bridge.sandbox.bundle import bundle_bytes
from bridge.sandbox.failure import Ending
from bridge.sandbox.layers import require_mandatory_layers, verify_isolation
from bridge.sessions.checkpoints import StateParts
from bridge.sessions.session import SAVE_SECONDS

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""How long the guest may take to end its program after the time limit, which keeps the tail of the
output. Then the host ends the sandbox."""

COLLECT_SECONDS = 30.0  # A guest may send files for so long, whatever its time limit was.

YIELD_EVERY = 64
"""Frames handled in a row before other tasks run: one read may contain thousands."""

MISSED_PINGS = 3
"""Pings in a row without an answer after which a distant sandbox counts as lost."""


@dataclass(frozen=True, kw_only=True)
class ReadySandbox:
    """A sandbox that waits for its `Run` frame."""

    sandbox: Sandbox
    channel: Channel
    facts: Mapping[str, Any]  # The guest's view of its isolation.
    isolation: Isolation  # The layers in force, without those that the facts contradict.

    @property
    def is_whole(self) -> bool:
        """Whether another program can be sent to it."""
        return self.channel.is_whole

    async def wait_dead(self) -> None:
        """Return when the guest has ended or has broken the protocol."""
        try:
            # A run may end before the answers to its pings arrive, which are few.
            for _ in range(MISSED_PINGS + 1):
                if not isinstance(await self.channel.receive(), Pong):
                    return
        except (WireError, ChannelClosedError):
            return


@asynccontextmanager
async def open_guest(backend: Backend, spec: LaunchSpec) -> AsyncIterator[ReadySandbox]:
    """Start a sandbox and its guest; leaving destroys the sandbox.

    Raises:
        SandboxError: The sandbox did not start, its guest sent no hello, or the guest's facts
            contradict a mandatory layer.
    """
    async with backend.launch(spec) as sandbox:
        channel = Channel(sandbox)
        hello = await _shake_hands(sandbox, channel)
        require_mandatory_layers(sandbox.isolation, hello.facts)
        isolation = verify_isolation(sandbox.isolation, hello.facts)
        yield ReadySandbox(sandbox=sandbox, channel=channel, facts=hello.facts, isolation=isolation)


async def _shake_hands(sandbox: Sandbox, channel: Channel) -> Hello:
    problem = "did not answer within 30 s"
    # A loaded laptop that compiles the guest under gVisor has been seen to take ten.
    with anyio.move_on_after(30.0):
        try:
            await channel.write((bundle_bytes(),))
            frame = await channel.receive()
        except (WireError, ChannelClosedError) as error:
            problem = f"broke the channel before it was up: {error}"
        else:
            if isinstance(frame, Hello) and frame.protocol == PROTOCOL:
                return frame
            problem = "ended before it was up" if frame is None else f"answered {frame!r:.200}"
    diagnostics = sandbox.diagnostics().strip()
    message = f"The sandbox {problem}."
    if diagnostics:
        message = f"{message} It said: {diagnostics}"
    raise LaunchError(message, remedy="Run `mcp-code-bridge doctor`; the image needs Python 3.9+.")


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How a program ended, and its collected output."""

    ending: Ending
    collected: Collected


@dataclass(eq=False, repr=False)
class Program:
    """Drives one program from its start to its end. Used once."""

    _guest: ReadySandbox
    _handler: Handler
    _limits: Limits
    _: KW_ONLY
    collector: Collector | None = None
    may_be_dead: bool = False  # Whether the sandbox may have died while it waited.
    # Whether the sandbox belongs to a session, so that further programs follow.
    keeps: bool = False
    clock: Clock = field(default_factory=Clock)  # The run's total time; it stops during questions.
    clear: Redact | None = None  # Redacts secrets in every error.
    # Returns the redactor for the answer to a call.
    clear_for: Callable[[Call], Redact] | None = None

    def __post_init__(self) -> None:
        # The program's own time; it stops while a call is open.
        self._program_clock = Clock()
        self._timer: asyncio.TimerHandle | None = None
        self._collector = self.collector or Collector(self._limits)
        self._done: Done | None = None
        self._exited: Exited | None = None
        self._protocol_error = ""
        self._lost: SandboxError | None = None
        self._started = self._program_started = 0.0
        self._late = self._stopped = self._heard = self._silent = False
        self._limit = anyio.CancelScope()

    async def start(self, frame: Run) -> None:
        """Send the program to the guest.

        Raises:
            NotStartedError: The sandbox is gone, or reads nothing.
        """
        self._started, self._program_started = self.clock.now(), self._program_clock.now()
        # It takes milliseconds; megabytes have been seen to take seconds.
        with anyio.move_on_after(10.0):
            try:
                await self._guest.channel.send(frame)
            except ChannelClosedError as error:
                raise NotStartedError(error.message, remedy=error.remedy) from error
            return
        message = "The sandbox did not read the program within 10 s."
        remedy = "Something on this machine pauses its containers; see the engine's events."
        raise NotStartedError(message, remedy=remedy)

    async def finish(self) -> ProgramEnd:
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

    async def _finish(self) -> ProgramEnd:
        deadline_passed = True
        with self._limit:
            async with anyio.create_task_group() as tasks:
                dispatcher = Dispatcher(
                    tasks,
                    self._guest.channel.write,
                    self._answer_in_time,
                    DispatchLimits(
                        concurrent=self._limits.concurrent_calls,
                        reply_bytes=self._limits.frame_bytes,
                    ),
                    clear=self.clear,
                    clear_for=self.clear_for,
                )
                distant = self._guest.sandbox
                if isinstance(distant, DistantSandbox):
                    tasks.start_soon(self._watch_over, distant)
                try:
                    self._keep_time(tasks)
                    await self._serve(dispatcher)
                finally:
                    if self._timer is not None:
                        self._timer.cancel()
                if self.keeps and self._exited is not None and self._exited.kept:
                    # Half a reply would corrupt the channel for the next programs. The session's
                    # process reads all replies until its next run.
                    with anyio.move_on_after(5.0):
                        await dispatcher.cancel_all()
                dispatcher.close()
                if dispatcher.under_way or self._late or isinstance(distant, DistantSandbox):
                    # No one receives the answers to the program's open calls. Without open calls,
                    # cancelling would only cost the time that anyio needs to describe the task.
                    tasks.cancel_scope.cancel()
            # A sandbox that ended at the deadline without a final frame counts as late. Engines can
            # lose the last output of a sandbox that has unread input.
            lost = self._exited is not None or self._protocol_error or self._lost
            deadline_passed = self._late and not lost
        if deadline_passed and self._collector.collecting:
            # The program's own end is known if the guest reported it.
            self._collector.give_up_files()
            deadline_passed = self._done is None
        age = self.clock.now() - self._started
        if self.may_be_dead and not self._heard and not self._protocol_error and age < 0.1:
            # Even if the program has begun, it has called nothing and can begin again.
            raise NotStartedError("The sandbox was gone before its program began.")
        return await self._read_end(deadline_passed=deadline_passed)

    async def stop(self) -> None:
        self._stopped = True
        try:
            await self._guest.channel.send(Stop(late=self._late))
        except ChannelClosedError as error:
            logger.debug("sandbox %s is not stopped: %s", self._guest.sandbox.id, error)

    async def _answer_in_time(self, method: str, params: Mapping[str, Json]) -> Json:
        """Answer a request, unless the program's time is over.

        An interrupted program gets a moment to end, and makes no further calls.
        """
        if self._stopped or min(self._seconds_left()) <= 0:
            message = "The run's time is over: it can make no further calls."
            raise CallFailedError(message, kind="timeout")
        with self._program_clock.stop():
            return await self._handler(method, params)

    def _seconds_left(self) -> tuple[float, float]:
        """Return the seconds left of the program's own time, and of the run's total time."""
        own = self._program_clock.now() - self._program_started
        run = self.clock.now() - self._started
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
                    await self._guest.channel.send(Ping())
                except ChannelClosedError:
                    return
        error = await distant.why_lost(f"no answer to {missed} questions in a row")
        self._lost = error
        await self._guest.sandbox.kill()

    async def _serve(self, dispatcher: Dispatcher) -> None:
        taken = 0
        while self._exited is None:
            taken += 1
            if taken % YIELD_EVERY == 0:
                await anyio.lowlevel.checkpoint()
            try:
                frame = await self._guest.channel.receive()
                if frame is None:
                    return
                self._silent = False
                if isinstance(frame, Pong):
                    continue
                self._heard = True
                await self._act(dispatcher, frame)
            except WireError as error:
                self._protocol_error = str(error)
                logger.warning("sandbox %s: %s", self._guest.sandbox.id, error)
                return
            except ChannelClosedError as error:
                # The output until then stays valid.
                self._lost = error
                logger.warning("sandbox %s was lost: %s", self._guest.sandbox.id, error)
                return

    async def _act(self, dispatcher: Dispatcher, frame: GuestFrame) -> None:
        match frame:
            case Call():
                if self._collector.collecting:
                    raise WireError("a call after the program's end")
                await dispatcher.accept(frame, self._guest.channel.last_cost)
            case Cancel():
                dispatcher.cancel(frame.id)
            case Output() | Shown() | Progress() | State():
                await self._collector.add(frame)
            case File():
                if not self._collector.collecting:
                    # The program's own time is over.
                    self._limit.deadline = current_time() + COLLECT_SECONDS
                await self._collector.add(frame)
            case Done():
                if self._done is not None:
                    raise WireError("a second done frame")
                self._done = frame
            case Exited():
                self._exited = frame
            case Hello() | Pong():
                raise WireError("a second hello frame, or an answer without a question")

    async def _read_end(self, *, deadline_passed: bool) -> ProgramEnd:
        report = None
        clean = self._exited is not None and self._exited.signal is None
        if not clean and not deadline_passed:
            # The engine knows what the guest cannot report, such as an out-of-memory kill.
            with anyio.move_on_after(5.0):
                try:
                    await self._guest.sandbox.kill()
                    report = await self._guest.sandbox.wait()
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
            diagnostics="" if clean else self._guest.sandbox.diagnostics(),
        )
        return ProgramEnd(ending=ending, collected=await self._collector.finish())


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
    program = Program(guest, _refuse, limits, collector=Collector(limits, state=state), keeps=True)
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
