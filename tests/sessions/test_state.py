"""A session's state comes in parts from a hostile guest: it is bounded, and bad or whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol.wire import State
from bridge.model import Loss
from bridge.sessions import checkpoints
from bridge.sessions.checkpoints import MAX_NAMES, StateParts, losses


def part(data: bytes) -> State:
    return State(data=data)


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_parts_are_joined_in_their_order(pieces: list[bytes]) -> None:
    parts = StateParts()
    for piece in pieces:
        parts.add(part(piece))
    assert parts.data == (b"".join(pieces) or None)
    assert parts.problem == ""


def test_what_is_larger_than_the_bound_is_no_state_and_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_STATE_BYTES", 100)
    parts = StateParts()
    parts.add(part(bytes(100)))
    assert parts.data == bytes(100)
    parts.add(part(b"x"))
    assert parts.problem == "it is larger than 100 bytes"
    assert not parts._data


def test_losses_are_pairs_of_short_texts_and_all_else_is_left_out() -> None:
    told: list[Any] = [
        ["a", "why"],
        ["b"],
        "cd",
        [1, 2],
        ["x", "y", "z"],
        ["n" * 999, "w\x1b\ud800" * 999],
        {},
    ]
    parts = StateParts()
    parts.add(State(data=b"ABC", lost=told))
    assert parts.lost[0] == Loss(name="a", why="why")
    assert [loss.name for loss in parts.lost] == ["a", "n" * 80 + "..."]
    assert parts.lost[1].why.startswith("w\\x1b\\ud800w")
    assert len(losses([[f"{n}", "b"] for n in range(10_000)])) == MAX_NAMES + 1
    assert losses("ab") == losses({"a": "b"}) == losses(None) == ()
