"""What a run in plan mode holds back."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import CallBudgetError
from bridge.gate import held_calls as calls
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import FlowState
from bridge.gate.held_calls import HeldCalls
from bridge.guest.protocol.placeholders import WHOLE, write
from bridge.model import Tool
from tests.raised import raises_code

ALLOW = Decision(action="allow", rule="no policy")
ASK = Decision(action="ask", rule="default for writes")


def call(tool: str = "create", **arguments: Any) -> CallFacts:
    return CallFacts(server="tickets", tool=tool, arguments=arguments)


def held(count: int = 1, **arguments: Any) -> HeldCalls:
    found = HeldCalls()
    for _ in range(count):
        found.hold(call(**arguments), ALLOW)
    return found


def test_a_held_call_has_a_number_and_the_runs_own_mark() -> None:
    holds = HeldCalls()
    first, second = holds.hold(call(), ALLOW), holds.hold(call(), ASK)
    assert first["held"] == {"plan": holds.plan, "number": 1, "call": "tickets.create"}
    assert second["held"] == {"plan": holds.plan, "number": 2, "call": "tickets.create"}
    assert len(holds.plan) == 16
    assert HeldCalls().plan != holds.plan
    assert holds.count == 2


def test_a_held_call_keeps_what_it_takes_to_make_it() -> None:
    holds, flow = HeldCalls(), FlowState()
    tool = Tool(server="tickets", name="create", description="Create.")
    flow.add_call("web", "fetch", frozenset({"untrusted-input"}))
    rule = Decision(action="ask", rule="flow rule 'x'")
    holds.hold(call(), ALLOW)
    facts = CallFacts(
        server="tickets",
        tool="create",
        arguments={"parent": {WHOLE: write(holds.plan, 1, ["id"])}},
        definition=tool,
    )
    base = Decision(action="ask", rule="default for writes", effect="destructive")
    holds.hold(facts, base, [base, rule, ALLOW], flow)
    flow.add_call("mail", "read", frozenset({"private-data"}))
    first, second = holds.requests
    assert (first.digest, first.uses, first.asked) == ("", frozenset(), frozenset())
    assert second.digest.startswith("sha256:")
    assert second.uses == {1}
    assert second.asked == {"default for writes", "flow rule 'x'"}
    assert second.effect == "destructive"
    assert second.flow.read(["untrusted-input"])
    assert not second.flow.read(["private-data"])
    shown = holds.shown()[1]
    assert shown.arguments == {"parent": "‹result of #1 tickets.create›.id"}
    assert (shown.action, shown.effect) == ("ask", "destructive")
    assert shown.rule == "default for writes and flow rule 'x'"


def test_a_plan_holds_a_bounded_number_of_calls_and_of_bytes() -> None:
    holds = held(calls.MAX_CALLS)
    with pytest.raises(CallBudgetError, match="1,000 calls at most"):
        holds.hold(call(), ALLOW)
    holds = HeldCalls()
    large = "x" * (calls.MAX_CHARACTERS // 2 - 100)
    holds.hold(call(body=large), ALLOW)
    holds.hold(call(body=large), ALLOW)
    with pytest.raises(CallBudgetError, match="characters of JSON"):
        holds.hold(call(body=large), ALLOW)
    assert holds.count == 2


def test_a_call_that_is_refused_is_no_part_of_the_plan() -> None:
    holds = held()
    for facts in (
        call(body=write(holds.plan, 2)),
        call(body=write(holds.plan, 1)[:-3]),
        call(write(holds.plan, 1)),
    ):
        if facts.tool != "create":
            facts = call("create", **{write(holds.plan, 1): 1})
        with raises_code("held_result"):
            holds.hold(facts, ALLOW)
    assert holds.count == 1
    with raises_code("held_result"):
        holds.hold(CallFacts(server="tickets", tool=f"x{write('f' * 16, 1)}"), ALLOW)


def test_reads_that_mention_a_placeholder_are_found() -> None:
    """Of this run or of any: a server must not get one."""
    holds = held()
    assert holds.refers({"a": [write(holds.plan, 1)]})
    assert holds.refers({"a": write("f" * 16, 1)})
    assert holds.refers({"a": "HELDRESULT..."})
    assert not holds.refers({"a": "held results"})
