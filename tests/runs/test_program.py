"""How a program's end is told when its sandbox can no longer tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from bridge.errors import NotStartedError, SandboxError, SandboxLostError
from bridge.guest.protocol.wire import Call, Exited, Output, Ping, Pong, Run
from bridge.model import Limits
from bridge.runs.program import MISSED_PINGS, Program, ReadySandbox
from bridge.sandbox.failure import classify
from tests.fuzz.clock import run
from tests.runs.scripted import LIMITS, Scripted, carried_out, session_of


@pytest.mark.parametrize(
    ("waited", "seconds", "reason"),
    [
        (False, 4.9, "crash"),
        (False, 5.1, "timeout"),
        (False, 0.05, "crash"),
        (True, 0.2, "crash"),
        (True, 0.05, None),
    ],
)
def test_a_sandbox_that_ends_silently_ran_out_of_time_crashed_or_was_dead(
    waited: bool, seconds: float, reason: str | None
) -> None:
    try:
        facts, _ = carried_out(Scripted((seconds, None)), may_be_dead=waited)
        assert classify(facts.ending, LIMITS).reason == reason
    except NotStartedError:
        assert reason is None


class Distant(Scripted):
    """A sandbox on a machine that answers so many questions, and then stands still."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[float] = []
        self.gone = anyio.Event()

    async def send(self, frame: object) -> None:
        if isinstance(frame, Ping):
            self.asked.append(anyio.current_time())

    async def receive(self) -> Any:
        if len(self.asked) < self.answers:
            await anyio.sleep(1)
            return Pong()
        await self.gone.wait()
        return None

    async def why_lost(self, silence: str) -> SandboxError:
        return SandboxLostError(silence)

    async def kill(self) -> None:
        self.gone.set()


def test_a_distant_sandbox_that_misses_three_questions_is_lost() -> None:
    distant, limits = Distant(4), Limits(timeout=600)
    facts, seconds = carried_out(distant, limits)
    verdict = classify(facts.ending, limits)
    assert (verdict.reason, verdict.code) == ("engine", "sandbox_lost")
    assert "3 questions" in facts.ending.lost
    assert round(seconds - (distant.asked[3] - distant.asked[0]) - 5.0) == (MISSED_PINGS + 1) * 5.0


@pytest.mark.parametrize(("late", "dies"), [(MISSED_PINGS, False), (MISSED_PINGS + 1, True)])
def test_late_answers_to_a_runs_questions_do_not_end_the_sandbox_that_its_session_keeps(
    late: int, dies: bool
) -> None:
    async def play() -> bool:
        with anyio.move_on_after(1):
            await ReadySandbox.wait_dead(session_of(Scripted(*[(0.0, Pong())] * late)))
            return True
        return False

    assert run(play) is dies


def test_a_short_run_in_a_distant_sandbox_asks_it_nothing() -> None:
    class Short(Distant):
        async def receive(self) -> Any:
            await anyio.sleep(2.5)
            return Exited(code=0)

    short = Short(0)
    carried_out(short)
    assert short.asked == []


def test_a_program_that_was_heard_of_is_never_started_again() -> None:
    said = Output(stream="stdout", data=b"x")
    facts, _ = carried_out(Scripted((0, said), (1000, Exited(code=0))), Limits(timeout=60))
    assert classify(facts.ending, LIMITS).reason == "timeout"


def test_a_sandbox_that_takes_nothing_in_is_no_place_for_a_program() -> None:
    class Full(Scripted):
        async def send(self, frame: object) -> None:
            await anyio.sleep_forever()

    with pytest.raises(NotStartedError, match="within 10 s"):
        carried_out(Full(), Limits(timeout=60))


@pytest.mark.guarantee("out-of-time")
@pytest.mark.parametrize(("stops", "made"), [(False, ["0"]), (True, [])])
def test_no_call_of_a_program_goes_out_once_its_time_is_over(stops: bool, made: list[str]) -> None:
    done: list[str] = []

    async def handle(method: str, params: Mapping[str, Any]) -> Any:
        done.append(method)

    # A moment before its deadline, at it, and once interrupted.
    calls = [
        (seconds, Call(id=number, method=str(number), params={}))
        for number, seconds in enumerate((4.9, 0.1, 0.5))
    ]
    asking = Scripted(*calls, (0, Exited(code=1, timed_out=True)))

    async def play() -> None:
        program = Program(session_of(asking), handle, LIMITS)
        await program.start(Run(code=""))
        if stops:
            await program.stop()
        await program.finish()

    run(play)
    assert done == made
    late = [reply for reply in asking.replies if b"time is over" in reply]
    assert len(late) == 3 - len(made)
    assert all(b'"kind":"timeout"' in reply for reply in late)
