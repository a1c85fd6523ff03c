"""A session that is asked for its state and does not give it; a channel that is cut short."""

from __future__ import annotations

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
from bridge.model import Limits
from bridge.rpc.channel import Channel
from bridge.runs.program import GRACE_SECONDS, Program, ReadySandbox, save_state
from bridge.sessions.checkpoints import StateParts
from bridge.sessions.session import SAVE_SECONDS
from tests.fuzz.clock import run
from tests.fuzz.hostile import HostileSandbox

KEPT = Exited(code=0, kept=True)


def _guest(sandbox: HostileSandbox) -> ReadySandbox:
    channel = Channel(sandbox)
    return ReadySandbox(sandbox=sandbox, channel=channel, facts={}, isolation=sandbox.isolation)


def _heard(sandbox: HostileSandbox) -> list[Any]:
    return [decode_host_frame(line) for line in bytes(sandbox.sent).splitlines()]


def _saved(*frames: Any) -> tuple[StateParts | None, HostileSandbox, float]:
    """Ask a guest that says these frames for its state; return also how long that took."""

    async def play() -> tuple[StateParts | None, HostileSandbox, float]:
        sandbox = HostileSandbox()
        sandbox.change(*map(encode, frames))
        began = anyio.current_time()
        found = await save_state(_guest(sandbox), 3, 1 << 25)
        return found, sandbox, anyio.current_time() - began

    return run(play)


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
    found, sandbox, _ = _saved(*frames)
    assert found is not None
    assert (found.data, found.problem) == (None, problem)
    assert not sandbox.killed


@pytest.mark.parametrize("frames", [[Exited(code=1)], [Exited(signal=9)], [Done("ok"), Done("ok")]])
def test_a_session_whose_process_is_gone_has_no_state(frames: list[Any]) -> None:
    assert _saved(*frames)[0] is None


def test_a_session_that_never_answers_is_given_up_in_time() -> None:
    found, sandbox, seconds = _saved()
    assert found is None
    assert SAVE_SECONDS <= seconds <= SAVE_SECONDS + GRACE_SECONDS + 0.1
    assert sandbox.killed or seconds > SAVE_SECONDS


def test_a_call_from_between_runs_is_answered_with_no() -> None:
    call = Call(id=1, method="call_tool", params={})
    found, sandbox, _ = _saved(call, State(data=b"ab"), Done("ok"), KEPT)
    reply = _heard(sandbox)[-1]
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert "between" in reply.error["message"]
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
        channel = Channel(_Stuck())
        seen = [channel.is_whole]
        with anyio.move_on_after(1):
            await channel.write((b"{}\n",))
        assert [*seen, channel.is_whole] == [True, False]
        gone = Channel(cast("Any", _Gone()))
        with pytest.raises(ChannelClosedError):
            await gone.write((b"{}\n",))
        assert not gone.is_whole

    run(play)


class _Gone(_Stuck):
    async def send(self, data: bytes) -> None:
        raise ChannelClosedError("gone")


class _Slow(HostileSandbox):
    """Takes a while for a reply, and ends the run in the middle of that."""

    async def send(self, data: bytes) -> None:
        await super().send(data)
        if b'"reply"' in data:
            self.change(encode(Done("ok")), encode(KEPT))
            await anyio.sleep(1)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_reply_that_is_on_its_way_when_a_run_ends_goes_out_whole(keeps: bool) -> None:
    async def handle(method: str, params: Any) -> str:
        return "value"

    async def play() -> bool:
        guest = _guest(sandbox := _Slow())
        sandbox.change(encode(Call(id=1, method="any", params={})))
        program = Program(guest, handle, Limits(), keeps=keeps)
        await program.start(Run(code="", session=1))
        ending = (await program.finish()).ending
        assert ending.exited == KEPT
        return guest.is_whole

    assert run(play) is keeps
