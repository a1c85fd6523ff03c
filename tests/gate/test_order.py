"""The order in which a gate asks, records and calls; each part is a fake that takes notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from bridge.errors import (
    ApprovalRefusedError,
    AuditError,
    CallBudgetError,
    CallDeniedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ServerLostError,
)
from bridge.gate.context import GateContext
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant
from bridge.model import Json, Tool
from tests.fakes import gate as fakes
from tests.fakes.gate import Notes

TOOL = Tool(server="shop", name="buy")


def gate(notes: Notes, *, answer: BaseException | None = None, **parts: Any) -> Gate:
    """Return one whose parts write down when they are asked."""

    async def call_tool(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
        notes.append(f"call {server}.{tool} {dict(arguments)}")
        if answer is not None:
            raise answer
        return {"content": [{"type": "text", "text": "done"}]}

    async def define(server: str, tool: str) -> Tool | None:
        notes.append("define")
        return TOOL

    context = GateContext(
        define=define,
        policy=fakes.policy(notes),
        flow=fakes.flow(),
        flow_state=fakes.flow_state(notes),
        budget=fakes.budget(notes),
        pins=fakes.pins(notes),
        approver=fakes.approver(notes),
        audit=fakes.audit(notes),
        journal=fakes.journal(notes),
    )
    return Gate(Grant(servers=None, calls=100), call_tool, replace(context, **parts))


async def test_a_call_is_recorded_before_it_goes_out_and_after_it_came_back() -> None:
    notes: Notes = []
    result = await gate(notes).call("shop", "buy", {"n": 1})
    assert result == {"content": [{"type": "text", "text": "done"}]}
    assert notes == [
        "define",
        "decide {'n': 1}",
        "spend",
        "flow note",
        "pin",
        "audit calling 1 allow {'n': 1}",
        "journal sent",
        "call shop.buy {'n': 1}",
        "journal ok",
        "audit called 1 ok",
    ]


async def test_the_policy_and_the_server_see_what_the_log_and_the_program_do_not() -> None:
    notes: Notes = []
    result = await gate(notes, vault=fakes.vault()).call("shop", "buy", {"n": 1})
    assert result["hidden"] is True
    assert "decide {'n': 1, 'revealed': True}" in notes
    assert "call shop.buy {'n': 1, 'revealed': True}" in notes
    assert "audit calling 1 allow {'n': 1}" in notes


async def test_a_denied_call_is_recorded_and_not_made() -> None:
    notes: Notes = []
    denying = gate(notes, policy=fakes.policy(notes, "deny"))
    with pytest.raises(CallDeniedError, match=r"shop\.buy is not allowed \(rule 'x'\)"):
        await denying.call("shop", "buy", {})
    assert notes[2:] == ["audit refused 1 call_denied"]
    assert [(found.count, found.why) for found in denying.tally.refused] == [(1, "deny: rule 'x'")]


async def test_a_tool_that_its_server_does_not_list_is_denied_where_there_is_a_policy() -> None:
    """Some servers take "BUY" for "buy", which no rule would know."""
    notes: Notes = []

    async def define(server: str, tool: str) -> Tool | None:
        return TOOL if tool == "buy" else None

    listing = gate(notes, define=define, lists=lambda server: True)
    await listing.call("shop", "buy", {})
    with pytest.raises(CallDeniedError, match="unlisted tool: shop lists no such tool"):
        await listing.call("shop", "BUY", {})
    unknown = gate(notes, define=define)
    await unknown.call("shop", "BUY", {})


async def test_every_reason_to_ask_is_in_one_question() -> None:
    notes: Notes = []
    asking = gate(notes, policy=fakes.policy(notes, "ask"), flow=fakes.flow("ask"))
    await asking.call("shop", "buy", {})
    assert notes[2] == "ask [\"rule 'x'\", \"flow rule 'y'\"]"
    assert "audit calling 1 ask for run {}" in notes


async def test_a_rule_that_allows_does_not_outweigh_a_flow_rule_that_denies() -> None:
    notes: Notes = []
    with pytest.raises(CallDeniedError, match="flow rule 'y'"):
        await gate(notes, flow=fakes.flow("deny")).call("shop", "buy", {})
    assert not any(note.startswith("call ") for note in notes)


async def test_an_allowed_tool_that_has_changed_is_asked_about() -> None:
    notes: Notes = []
    await gate(notes, pins=fakes.pins(notes, "other words")).call("shop", "buy", {})
    assert "ask ['changed tool']" in notes


async def test_a_person_s_no_is_recorded_and_nothing_is_made() -> None:
    notes: Notes = []
    asking = gate(
        notes, policy=fakes.policy(notes, "ask"), approver=fakes.approver(notes, says=False)
    )
    with pytest.raises(ApprovalRefusedError):
        await asking.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 approval_refused"
    assert asking.calls == 0


async def test_a_server_that_the_run_was_not_given_is_recorded_as_refused() -> None:
    notes: Notes = []

    async def call_tool(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
        raise AssertionError

    seen = GateContext(audit=fakes.audit(notes))
    narrow = Gate(Grant(servers=frozenset({"a"}), calls=1), call_tool, seen)
    with pytest.raises(CallDeniedError):
        await narrow.call("b", "t", {})
    assert notes == ["audit refused 1 call_denied"]
    # And it counts, so that nobody can fill a disk with what is refused.
    with pytest.raises(CallBudgetError):
        await narrow.call("b", "t", {})
    assert notes == ["audit refused 1 call_denied"]


async def test_a_budget_that_is_used_up_refuses_after_approval_and_before_the_log() -> None:
    """And is told as that: the policy, which allows the call, is no reason."""
    notes: Notes = []
    poor = gate(notes, budget=fakes.budget(notes, spent=True))
    with pytest.raises(CallBudgetError):
        await poor.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 call_budget"
    assert [found.why for found in poor.tally.refused] == ["budget"]


async def test_a_call_that_cannot_be_recorded_is_not_made() -> None:
    notes: Notes = []
    full = gate(notes, audit=fakes.audit(notes, full=True))
    with pytest.raises(AuditError):
        await full.call("shop", "buy", {})
    assert not any(note.startswith(("call ", "journal")) for note in notes)
    assert [found.why for found in full.tally.refused] == ["it could not be recorded"]


async def test_a_call_without_an_answer_is_unknown_everywhere() -> None:
    notes: Notes = []
    lost = gate(notes, answer=ServerLostError("gone", server="shop"))
    with pytest.raises(ServerLostError):
        await lost.call("shop", "buy", {})
    assert notes[-2:] == ["journal unknown", "audit called 1 unknown"]
    assert [found.count for found in lost.tally.unknown] == [1]


async def test_a_cancelled_call_is_recorded_as_unknown() -> None:
    notes: Notes = []
    started = anyio.Event()

    async def wait(params: Mapping[str, Any]) -> dict[str, Any]:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    waiting = gate(notes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.request, "shop", READ_RESOURCE, {"uri": "x:y"}, wait, "contents")
        await started.wait()
        tasks.cancel_scope.cancel()
    assert notes[-2:] == ["journal unknown", "audit called 1 unknown"]


async def test_a_plan_holds_what_changes_something_and_makes_what_reads() -> None:
    notes: Notes = []
    planning = gate(notes, policy=fakes.policy(notes, "ask"), held_calls=fakes.held_calls())
    assert await planning.call("shop", "buy", {}) == {"held": {"number": 1}}
    assert notes[-1] == "audit held 1"
    assert not any(note.startswith(("ask", "call")) for note in notes)
    notes.clear()
    reading = gate(notes, policy=fakes.policy(notes, effect="read"), held_calls=fakes.held_calls())
    await reading.call("shop", "look", {})
    assert "call shop.look {}" in notes


async def test_a_plan_denies_as_a_run_does() -> None:
    notes: Notes = []
    planning = gate(notes, policy=fakes.policy(notes, "deny"), held_calls=fakes.held_calls())
    with pytest.raises(CallDeniedError):
        await planning.call("shop", "buy", {})


async def test_a_read_cannot_use_what_a_plan_has_not_done() -> None:
    notes: Notes = []
    reading = gate(
        notes, policy=fakes.policy(notes, effect="read"), held_calls=fakes.held_calls(refers=True)
    )
    with pytest.raises(InvalidRequestError, match="held"):
        await reading.call("shop", "look", {})
    assert not any(note.startswith("call") for note in notes)


async def test_a_replayed_call_is_not_made_nor_asked_about_and_counts_for_the_flow() -> None:
    notes: Notes = []
    retried = gate(
        notes,
        policy=fakes.policy(notes, "ask"),
        replay=fakes.replay({"content": []}),
        vault=fakes.vault(),
    )
    assert await retried.call("shop", "buy", {}) == {"content": [], "hidden": True}
    assert notes[2:] == ["flow note", "journal sent", "journal ok", "audit replayed 1"]
    assert [found.count for found in retried.tally.replayed] == [1]
    assert retried.calls == 0


async def test_a_call_that_may_have_happened_is_not_made_again() -> None:
    notes: Notes = []
    retried = gate(notes, replay=fakes.replay(None, unknown=True))
    with pytest.raises(OutcomeUnknownError):
        await retried.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 outcome_unknown"
    assert [found.why for found in retried.tally.unknown] == ["not repeated"]


async def test_a_resource_is_judged_as_a_read_whatever_the_policy_says_of_its_server() -> None:
    notes: Notes = []

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return {"contents": []}

    planning = gate(notes, held_calls=fakes.held_calls())
    await planning.request("shop", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    assert "audit called 1 ok" in notes
