"""A run's frame with megabytes in it."""

from __future__ import annotations

import base64
import json

import pytest

from bridge.guest.protocol.wire import Run, encode
from bridge.rpc.channel import LARGE_BYTES, PIECE_BYTES, as_base64, in_pieces

LARGE = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"


@pytest.mark.guarantee("event-loop")
def test_the_line_is_the_same_as_of_the_whole_and_no_piece_is_large() -> None:
    data = {"state": LARGE, "a": b"small", "b": LARGE[1:], "c": LARGE}

    def frame(made: dict[str, str]) -> Run:
        files = [{"name": name, "data": made[name]} for name in "abc"]
        return Run(code='"state":""', state=made["state"], files=files, skills=[{"name": "x"}])

    pieces = list(in_pieces(frame({name: as_base64(value) for name, value in data.items()})))
    whole = {name: base64.b64encode(value).decode() for name, value in data.items()}
    assert b"".join(pieces) == encode(frame(whole))
    assert max(map(len, pieces)) <= PIECE_BYTES * 4 // 3
    assert json.loads(b"".join(pieces))["files"][1]["name"] == "b"


def test_little_is_made_at_once() -> None:
    assert as_base64(b"abc") == "YWJj"
    assert len(list(in_pieces(Run(code="1", state=as_base64(bytes(LARGE_BYTES - 1)))))) == 1
