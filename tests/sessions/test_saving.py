"""A session that is asked for its state and does not give it; a channel that is cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from bridge.errors import ChannelClosedError
from bridge.guest.protocol.wire import (
    Call,
    Done,
    Exited,
    Reply,
    Run,
    State,
    decode_host_frame,
    encode,
)
from bridge.model import Isolation, Limits
from bridge.runs.guest_session import GuestSession
from bridge.runs.program import GRACE_SECONDS, Program
from bridge.runs.session_guest import SessionChannel, save_state
from bridge.sandbox.backend import ExitReport
from bridge.sessions.session import SAVE_SECONDS
from bridge.sessions.state import StateParts
from tests.fuzz.clock import run


class Scripted:
    """A sandbox that answers each frame with what a test says.

    Attributes:
        heard: The frames that it was sent.
        killed: Whether somebody killed it.
    """

    id = "scripted"
    isolation = Isolation(backend="scripted")

    def __init__(self, answer: Callable[[Any], list[Any]]) -> None:
        self._answer = answer
        self._said: list[bytes] = []
        self._more = anyio.Event()
        self.heard: list[Any] = []
        self.killed = False

    async def send(self, data: bytes) -> None:
        frame = decode_host_frame(data.rstrip(b"\n"))
        self.heard.append(frame)
        self._said += [encode(said) for said in self._answer(frame)]
        self._more.set()

    def end_input(self) -> None:
        """Let its input end."""

    async def end_output(self) -> None:
        await self.kill()

    async def receive(self) -> bytes:
        while not self._said:
            self._more = anyio.Event()
            await self._more.wait()
        return self._said.pop(0)

    async def kill(self) -> None:
        self.killed = True

    async def wait(self) -> ExitReport:
        return ExitReport()

    def diagnostics(self) -> str:
        return ""


def _saved(answer: Callable[[Any], list[Any]]) -> tuple[StateParts | None, Scripted, float]:
    async def play() -> tuple[StateParts | None, Scripted, float]:
        sandbox = Scripted(answer)
        channel = SessionChannel(sandbox)
        guest = GuestSession(
            sandbox=sandbox, channel=channel, facts={}, isolation=sandbox.isolation
        )
        began = anyio.current_time()
        found = await save_state(guest, 3, 1 << 25)
        return found, sandbox, anyio.current_time() - began

    return run(play)


KEPT = Exited(code=0, kept=True)


def test_a_state_is_put_together_from_its_parts() -> None:
    def answer(frame: Any) -> list[Any]:
        assert isinstance(frame, Run)
        assert (frame.code, frame.session, frame.save) == ("", 3, True)
        assert frame.limits["timeout"] == SAVE_SECONDS
        return [State(data=b"ab"), State(data=b"c", lost=[["f", "open"]]), Done("ok"), KEPT]

    found, sandbox, _ = _saved(answer)
    assert found is not None
    assert found.data == b"abc"
    assert [(loss.name, loss.why) for loss in found.lost] == [("f", "open")]
    assert not sandbox.killed


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([Done("exception", 1, error="Traceback\nMemoryError: x"), KEPT], "MemoryError: x"),
        ([Done("ok"), KEPT], "there was nothing"),
        ([KEPT], "its process said nothing"),
        ([Exited(code=0, kept=True, timed_out=True)], "that took longer than 10 s"),
    ],
)
def test_a_state_that_cannot_be_had_costs_the_session_nothing(
    frames: list[Any], problem: str
) -> None:
    found, sandbox, _ = _saved(lambda frame: frames)
    assert found is not None
    assert (found.data, found.problem) == (None, problem)
    assert not sandbox.killed


@pytest.mark.parametrize("frames", [[Exited(code=1)], [Exited(signal=9)], [Done("ok"), Done("ok")]])
def test_a_session_whose_process_is_gone_has_no_state(frames: list[Any]) -> None:
    assert _saved(lambda frame: frames)[0] is None


def test_a_session_that_never_answers_is_given_up_in_time() -> None:
    found, sandbox, seconds = _saved(lambda frame: [])
    assert found is None
    assert SAVE_SECONDS <= seconds <= SAVE_SECONDS + GRACE_SECONDS + 0.1
    assert sandbox.killed or seconds > SAVE_SECONDS


def test_a_call_from_between_runs_is_answered_with_no() -> None:
    def answer(frame: Any) -> list[Any]:
        if isinstance(frame, Run):
            return [Call(id=1, method="call_tool", params={})]
        assert isinstance(frame, Reply)
        assert frame.error is not None
        assert "between" in frame.error["message"]
        return [State(data=b"ab"), Done("ok"), KEPT]

    found, _, _ = _saved(answer)
    assert found is not None
    assert found.data == b"ab"


class _Stuck:
    """A stream that takes nothing."""

    async def send(self, data: bytes) -> None:
        await anyio.sleep_forever()

    async def receive(self) -> bytes:
        return b""


def test_a_channel_knows_that_a_frame_was_cut_short() -> None:
    async def play() -> None:
        channel = SessionChannel(_Stuck())
        seen = [channel.whole]
        with anyio.move_on_after(1):
            await channel.write((b"{}\n",))
        assert [*seen, channel.whole] == [True, False]
        gone = SessionChannel(cast("Any", _Gone()))
        with pytest.raises(ChannelClosedError):
            await gone.write((b"{}\n",))
        assert not gone.whole

    run(play)


class _Gone(_Stuck):
    async def send(self, data: bytes) -> None:
        raise ChannelClosedError("gone")


class _Slow(Scripted):
    """Takes a while for each reply, and ends the run in the middle of that."""

    async def send(self, data: bytes) -> None:
        await super().send(data)
        if isinstance(self.heard[-1], Reply):
            await anyio.sleep(1)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_reply_that_is_on_its_way_when_a_run_ends_goes_out_whole(keeps: bool) -> None:
    def answer(frame: Any) -> list[Any]:
        if isinstance(frame, Run):
            return [Call(id=1, method="any", params={})]
        return [Done("ok"), KEPT]

    async def handle(method: str, params: Any) -> str:
        return "value"

    async def play() -> bool:
        sandbox = _Slow(answer)
        channel = SessionChannel(sandbox)
        guest = GuestSession(
            sandbox=sandbox, channel=channel, facts={}, isolation=sandbox.isolation
        )
        program = Program(guest, handle, Limits(), keeps=keeps)
        await program.start(Run(code="", session=1))
        ending = (await program.finish()).ending
        assert ending.exited == KEPT
        return channel.whole

    assert run(play) is keeps
