"""How a program's end is told when its sandbox can no longer tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from bridge.errors import NodeLostError, NotStartedError, SandboxError
from bridge.guest.protocol.wire import Call, Exited, Output, Ping, Pong, Run
from bridge.model import Limits
from bridge.runs.guest_session import MISSED_PINGS, GuestSession, wait_dead
from bridge.runs.program import Program
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.failure import classify
from tests.fuzz.clock import run

LIMITS = Limits(timeout=5)
FRAME = Run(code="", argv=[], servers=[], discovered=[], capabilities="", limits={})


@dataclass(frozen=True, kw_only=True)
class Silent:
    """A sandbox and its channel, which ends after some seconds without a word."""

    seconds: float
    id: str = "silent"
    last_cost: int = 0

    async def send(self, frame: object) -> None:
        """Take the program in."""

    async def write(self, pieces: Iterable[bytes], *, batched: bool = False) -> None:
        """Take a reply."""

    async def receive(self) -> None:
        """End, in time."""
        await anyio.sleep(self.seconds)

    async def kill(self) -> None:
        """Be gone already."""

    async def wait(self) -> ExitReport:
        """Know nothing."""
        return ExitReport()

    def diagnostics(self) -> str:
        """Say nothing."""
        return ""


@pytest.mark.parametrize(("seconds", "reason"), [(4.9, "crash"), (5.1, "timeout")])
def test_a_sandbox_that_ends_silently_at_the_deadline_ran_out_of_time(
    seconds: float, reason: str
) -> None:
    async def handle(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    async def play() -> str | None:
        silent = Silent(seconds=seconds)
        session = cast("GuestSession", SimpleSession(sandbox=silent, channel=silent))
        program = Program(session, handle, LIMITS)
        await program.start(FRAME)
        return classify((await program.finish()).ending, LIMITS).reason

    assert run(play) == reason


@pytest.mark.parametrize(
    ("waited", "seconds", "reason"),
    [
        (True, 0.05, None),
        (True, 0.2, "crash"),
        (False, 0.05, "crash"),
    ],
)
def test_a_sandbox_that_ends_as_it_is_taken_is_no_end_of_the_program(
    waited: bool, seconds: float, reason: str | None
) -> None:
    """It may have died while it waited; a program that ran has had time to end it."""

    async def handle(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    async def play() -> str | None:
        silent = Silent(seconds=seconds)
        session = cast("GuestSession", SimpleSession(sandbox=silent, channel=silent))
        program = Program(session, handle, LIMITS, waited=waited)
        await program.start(FRAME)
        try:
            return classify((await program.finish()).ending, LIMITS).reason
        except NotStartedError:
            return None

    assert run(play) == reason


@dataclass(frozen=True, kw_only=True)
class Distant(Silent):
    """A sandbox on a machine that answers so many questions, and then stands still."""

    answers: int
    asked: list[float] = field(default_factory=list)
    gone: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, frame: object) -> None:
        """Take the program in, or a question."""
        if isinstance(frame, Ping):
            self.asked.append(anyio.current_time())

    async def receive(self) -> Any:
        """Answer as long as it works; end when it is killed."""
        if len(self.asked) < self.answers:
            await anyio.sleep(1)
            return Pong()
        await self.gone.wait()
        return None

    async def why_lost(self, silence: str) -> SandboxError:
        """Know that it is the node."""
        return NodeLostError(silence)

    async def kill(self) -> None:
        """End."""
        self.gone.set()


def test_a_distant_sandbox_that_misses_three_questions_is_lost() -> None:
    async def handle(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    async def play() -> tuple[str, float, float]:
        limits = Limits(timeout=600)
        distant = Distant(seconds=0, answers=4)
        session = cast("GuestSession", SimpleSession(sandbox=distant, channel=distant))
        program = Program(session, handle, limits)
        await program.start(FRAME)
        ending = (await program.finish()).ending
        verdict = classify(ending, limits)
        assert (verdict.reason, verdict.code) == ("engine", "node_lost")
        return ending.lost, distant.asked[3], anyio.current_time()

    lost, last_answered, ended = run(play)
    assert "3 questions" in lost
    assert round(ended - last_answered) == (MISSED_PINGS + 1) * 5.0


@pytest.mark.parametrize(("late", "dies"), [(MISSED_PINGS, False), (MISSED_PINGS + 1, True)])
def test_late_answers_to_a_runs_questions_do_not_end_the_sandbox_that_its_session_keeps(
    late: int, dies: bool
) -> None:
    """A run that has ended reads no more; more than were asked are no answers."""

    class Idle:
        left = late

        async def receive(self) -> Pong:
            if not self.left:
                await anyio.sleep_forever()
            self.left -= 1
            return Pong()

    async def play() -> bool:
        idle = cast("Any", Idle())
        session = cast("GuestSession", SimpleSession(sandbox=idle, channel=idle))
        with anyio.move_on_after(1):
            await wait_dead(session)
            return True
        return False

    assert run(play) is dies


def test_a_short_run_in_a_distant_sandbox_asks_it_nothing() -> None:
    class Short(Distant):
        async def receive(self) -> Any:
            await anyio.sleep(2.5)
            return Exited(code=0)

    async def play() -> list[float]:
        distant = Short(seconds=0, answers=0)
        session = cast("GuestSession", SimpleSession(sandbox=distant, channel=distant))
        program = Program(session, handle_nothing, LIMITS)
        await program.start(FRAME)
        await program.finish()
        return distant.asked

    async def handle_nothing(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    assert run(play) == []


@dataclass(frozen=True, kw_only=True)
class Still(Silent):
    """A sandbox that stands still, before or after it said a word.

    Attributes:
        said: Whether it did.
    """

    said: bool
    takes: bool = True
    words: list[object] = field(default_factory=lambda: [Output(stream="stdout", data=b"x")])

    async def send(self, frame: object) -> None:
        """Take the program in, or wait for room that never comes."""
        if not self.takes:
            await anyio.sleep_forever()

    async def receive(self) -> Any:
        """Say what there is, then nothing until the end."""
        if self.said and self.words:
            return self.words.pop()
        await anyio.sleep(self.seconds)
        return Exited(code=0)


def _carry_out(still: Still) -> str | None:
    async def handle(method: str, params: Mapping[str, Any]) -> object:
        raise AssertionError(method)

    async def play() -> str | None:
        session = cast("GuestSession", SimpleSession(sandbox=still, channel=still))
        program = Program(session, handle, Limits(timeout=60))
        await program.start(FRAME)
        return classify((await program.finish()).ending, LIMITS).reason

    return run(play)


def test_a_program_that_was_heard_of_is_never_started_again() -> None:
    assert _carry_out(Still(seconds=1000, said=True)) == "timeout"


def test_a_sandbox_that_takes_nothing_in_is_no_place_for_a_program() -> None:
    """Its buffers are full, and nobody reads; the host does not wait for the run's whole time."""
    with pytest.raises(NotStartedError, match="within 10 s"):
        _carry_out(Still(seconds=1000, said=False, takes=False))


@dataclass(frozen=True, kw_only=True)
class Asking(Silent):
    """A program that calls a moment before its deadline and at it, and as often once interrupted.

    Attributes:
        replies: Filled with what it was answered.
    """

    times: list[float] = field(default_factory=lambda: [4.9, 0.1, 0.5])
    replies: list[bytes] = field(default_factory=list)

    async def write(self, pieces: Iterable[bytes], *, batched: bool = False) -> None:
        """Take a reply."""
        self.replies.append(b"".join(pieces))

    async def receive(self) -> Any:
        """Call, then end."""
        if not self.times:
            return Exited(code=1, timed_out=True)
        await anyio.sleep(self.times.pop(0))
        return Call(id=len(self.times), method=str(len(self.times)), params={})


@pytest.mark.guarantee("out-of-time")
@pytest.mark.parametrize(("stops", "made"), [(False, ["2"]), (True, [])])
def test_no_call_of_a_program_goes_out_once_its_time_is_over(stops: bool, made: list[str]) -> None:
    """It has a moment more for coming to its end; what it asks for then is answered at once."""
    done: list[str] = []

    async def handle(method: str, params: Mapping[str, Any]) -> Any:
        done.append(method)
        return None

    asking = Asking(seconds=0)

    async def play() -> None:
        session = cast("GuestSession", SimpleSession(sandbox=asking, channel=asking))
        program = Program(session, handle, LIMITS)
        await program.start(FRAME)
        if stops:
            await program.stop()
        await program.finish()

    run(play)
    assert done == made
    late = [reply for reply in asking.replies if b"time is over" in reply]
    assert len(late) == 3 - len(made)
    assert all(b'"kind":"timeout"' in reply for reply in late)


@dataclass(frozen=True, kw_only=True)
class SimpleSession:
    """What `Program` uses of a session."""

    sandbox: Silent
    channel: Silent
