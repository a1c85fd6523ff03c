"""Large work goes to a thread, small work does not."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from bridge.event_loop import LARGE, VALUE, estimated_size, offload
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ({"a": "x" * 1000}, False),
        ("x" * LARGE, True),
        (b"x" * LARGE, True),
        (["x"] * (LARGE // VALUE), True),
        ({"a": {"b": [dict.fromkeys(map(str, range(LARGE // VALUE)))]}}, True),
        ({"x" * LARGE: 1}, True),
    ],
)
async def test_only_what_is_large_is_done_in_a_thread(value: Any, large: bool) -> None:
    here = threading.get_ident()
    assert (await offload(value, threading.get_ident) != here) is large


def test_no_more_is_looked_at_than_it_takes() -> None:
    class Counted(list[Any]):
        looked = 0

        def __iter__(self) -> Any:
            Counted.looked += 1
            return super().__iter__()

    assert estimated_size(["x" * 200, Counted([1] * 1000)], 100) > 100
    assert estimated_size(Counted([1] * 1_000_000), 100) > 100
    assert Counted.looked == 0


async def test_few_continue_at_once() -> None:
    busy, most, lock, go_on = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            if most == 2:
                go_on.set()
        go_on.wait(PATIENCE_SECONDS)
        with lock:
            busy -= 1

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(4 * 2):
                tasks.start_soon(offload, "x" * LARGE, work)
    assert most == 2
