"""Counts and times of a run's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.clock import Clock
from bridge.errors import ServerLostError
from bridge.gate.decision import CallFacts
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.policy import Policy
from bridge.gate.services import GateContext
from bridge.gate.tally import Tally
from bridge.model import CallCount, Effect, Tool
from bridge.settings.policy import PolicySpec, ServerPolicy, ToolPolicy


class Hand:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


def test_time_counts_once_however_many_calls_are_under_way() -> None:
    hand = Hand()
    tally = Tally(hand.now)
    with tally.under_way():
        hand.at = 1.0
        with tally.under_way():
            hand.at = 3.0
        assert tally.busy_seconds == 3.0
        hand.at = 4.0
    hand.at = 10.0
    assert tally.busy_seconds == 4.0
    with tally.under_way():
        hand.at = 11.0
    assert tally.busy_seconds == 5.0


def test_kinds_beyond_the_bound_are_counted_together() -> None:
    tally = Tally()
    for number in range(100 + 50):
        tally.refuse(CallFacts(server="s", tool=f"t{number}"), "deny")
    assert sum(found.count for found in tally.refused) == 100 + 50
    assert len(tally.refused) == 100 + 1
    assert tally.refused[-1] == CallCount(server="", tool="", count=50, why="others")


async def test_calls_take_no_time_while_somebody_is_asked_something() -> None:
    clock = Clock()
    asked, answered = anyio.Event(), anyio.Event()

    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if tool == "ask":
            with clock.stop():
                asked.set()
                await answered.wait()
        return {"content": []}

    gate = Gate(Grant(servers=None, calls=10), call, GateContext(now=clock.now))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.call, "s", "ask", {})
        await asked.wait()
        before = gate.tally.busy_seconds
        await anyio.lowlevel.checkpoint()
        assert gate.tally.busy_seconds == before
        assert clock.stopped_seconds > 0
        answered.set()
    assert gate.tally.made == {"s": 1}


@pytest.mark.parametrize(
    ("effect", "says", "lost"),
    [("read", False, 0), ("write", False, 1), ("destructive", False, 1), (None, True, 0)],
)
async def test_a_read_without_an_answer_is_of_no_unknown_outcome(
    effect: Effect | None, says: bool, lost: int
) -> None:
    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise ServerLostError("gone", server=server)

    async def define(server: str, tool: str) -> Tool:
        return Tool(server=server, name=tool, annotations={"readOnlyHint": says})

    spec = PolicySpec()
    if effect is not None:
        server = ServerPolicy(servers="s", tools=(ToolPolicy(tools="look", effect=effect),))
        spec = PolicySpec(present=True, defaults={effect: "allow"}, servers=(server,))
    context = GateContext(policy=Policy(spec), define=define)
    gate = Gate(Grant(servers=None, calls=1), call, context)
    with pytest.raises(ServerLostError):
        await gate.call("s", "look", {})
    assert (len(gate.tally.unknown), gate.tally.changing) == (lost, lost)
