"""Frames that only code which forges them would send."""

from __future__ import annotations

import pytest

from bridge.guest.protocol.wire import Done, WireError, encode
from bridge.rpc.channel import MAX_SHORT_BYTES, Channel


class _Stream:
    def __init__(self, data: bytes) -> None:
        self._left = [data]

    async def send(self, data: bytes) -> None:
        """Take it."""

    async def receive(self) -> bytes:
        return self._left.pop() if self._left else b""


TOO_LONG = "A" * MAX_SHORT_BYTES


@pytest.mark.parametrize(
    "done",
    [
        Done("exception", 1, error=TOO_LONG),
        Done("ok", result_repr=TOO_LONG),
        Done("ok", has_result=True, result=TOO_LONG),
    ],
    ids=["error", "repr", "result"],
)
async def test_a_forged_end_cannot_flood_the_conversation(done: Done) -> None:
    with pytest.raises(WireError, match="longer than"):
        await Channel(_Stream(encode(done))).receive()


async def test_an_honest_end_with_the_largest_result_passes() -> None:
    done = Done("exception", 1, error="\u2801" * 24_000, has_result=True, result="A" * 1024**2)
    assert await Channel(_Stream(encode(done))).receive() == done
