"""What clients may send of the largest size, and a loop that continues meanwhile."""

from __future__ import annotations

from functools import partial

import pytest

from bridge.model import Json
from bridge.offload import offload
from bridge.server.runs import fingerprint
from bridge.server.stdio import MAX_MESSAGE_BYTES
from bridge.upstream.framing import MAX_VALUES
from tests.watchdog import Watchdog


@pytest.mark.parametrize(
    "large", ["\xe9" * (MAX_MESSAGE_BYTES // 2), ["a"] * MAX_VALUES], ids=["text", "values"]
)
async def test_no_arguments_keep_the_loop_while_they_are_compared(
    watchdog: Watchdog, large: Json
) -> None:
    """As those of a call are whose client comes back with an answer."""
    with watchdog.watching():
        found = await offload(large, partial(fingerprint, large))
    assert found == fingerprint(large)


def test_only_equal_arguments_are_the_same_call() -> None:
    assert fingerprint({"a": 1, "b": [None]}) == fingerprint({"b": [None], "a": 1})
    distinct_key: list[Json] = [
        {"a": 1},
        {"a": "1"},
        {"a": True},
        {"a": [1]},
        ["a", 1],
        ["a", [1]],
        "a",
    ]
    distinct_key += [["ab"], ["a", "b"], [], {}, "", None, "\udc80"]
    assert len({fingerprint(each) for each in distinct_key}) == len(distinct_key)
