"""Frames over a byte stream."""

from __future__ import annotations

import anyio
import pytest

from bridge.guest.protocol.wire import Call, Done, Output, Reply, Run, Shown, WireError, encode
from bridge.rpc.channel import MAX_SHORT_BYTES, WRITE_BYTES, Channel


class _Stream:
    """A byte stream that plays back what a guest sends and keeps what it is sent."""

    def __init__(self, *portions: bytes) -> None:
        self.portions = list(portions)
        self.sent: list[bytes] = []

    async def send(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(data)

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self.portions.pop(0) if self.portions else b""


CALL = Call(id=1, method="m", params={})


async def test_frames_before_an_overlong_one_are_delivered() -> None:
    channel = Channel(_Stream(encode(CALL) + b"x" * 200), max_guest_frame_bytes=100)
    assert await channel.receive() == CALL
    with pytest.raises(WireError, match="longer than 100 bytes"):
        await channel.receive()


async def test_concurrent_senders_do_not_mix_their_frames() -> None:
    stream = _Stream()
    channel = Channel(stream)
    frames = [Reply(id=number, value="x" * (2 * WRITE_BYTES)) for number in range(3)]
    async with anyio.create_task_group() as tasks:
        for frame in frames:
            tasks.start_soon(channel.send, frame)
    assert max(len(portion) for portion in stream.sent) <= WRITE_BYTES
    assert sorted(b"".join(stream.sent).splitlines()) == sorted(
        encode(frame).rstrip() for frame in frames
    )


async def test_others_have_their_turn_while_a_large_frame_is_read() -> None:
    large = Call(id=2, method="m", params={"text": "x" * 8_000_000})
    channel = Channel(_Stream(encode(CALL) + encode(CALL) + encode(large) + encode(CALL)))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    await channel.receive()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        assert await channel.receive() == CALL
        assert turns == 0
        assert await channel.receive() == large
        assert turns > 0
        # The one behind it has waited.
        assert await channel.receive() == CALL
        tasks.cancel_scope.cancel()


async def test_only_calls_and_what_is_shown_may_be_long() -> None:
    text = "x" * MAX_SHORT_BYTES
    long = Call(id=1, method="m", params={"text": text}), Shown("image/png", small=text)
    channel = Channel(
        _Stream(*[encode(frame) for frame in (*long, Output("stdout", text.encode()))])
    )
    assert (await channel.receive(), await channel.receive()) == long
    with pytest.raises(match="neither a call nor shown"):
        await channel.receive()


async def test_an_end_holds_no_more_values_than_its_run_was_told_that_it_may() -> None:
    told = {"result_bytes": 40_000}
    run = Run(code="", argv=[], servers=[], discovered=[], capabilities="", limits=told)
    honest = Done("ok", has_result=True, result=[[]] * 13_000)
    forged = Done("ok", has_result=True, result=[[]] * 60_000)
    channel = Channel(_Stream(encode(honest), encode(forged)))
    await channel.send(run)
    assert await channel.receive() == honest
    with pytest.raises(match="too many values"):
        await channel.receive()
