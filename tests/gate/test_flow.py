"""Flow rules: what a run has read decides where it may send."""

from __future__ import annotations

import json

import pytest

from bridge.gate.flow import Flow, FlowState
from bridge.settings.policy import LETHAL, FlowRule

INPUT, PRIVATE, OUT = (
    frozenset({label}) for label in ("untrusted-input", "private-data", "exfiltration")
)
NONE: frozenset[str] = frozenset()


def _rule(name: str = "f", **fields: object) -> FlowRule:
    return FlowRule(**{"name": name, "action": "ask", **fields})  # type: ignore[arg-type]


def test_the_lethal_combination_needs_all_three() -> None:
    flow, state = Flow((LETHAL,)), FlowState()
    assert flow.decide(state, "slack", OUT) is None
    state.add_call("web", "fetch", INPUT)
    assert flow.decide(state, "slack", OUT) is None
    state.add_call("mail", "read", PRIVATE)
    assert flow.decide(state, "mail", PRIVATE | INPUT) is None
    decision = flow.decide(state, "slack", OUT | {"other"})
    assert decision is not None
    assert (decision.action, decision.rule) == ("ask", "flow rule 'lethal-combination'")
    assert decision.reason == LETHAL.reason
    assert decision.led == ("mail.read", "web.fetch")
    assert decision.labels == OUT | {"other"}


def test_one_call_may_be_all_that_leads_to_another() -> None:
    flow, state = Flow((LETHAL,)), FlowState()
    state.add_call("mail", "read", INPUT | PRIVATE)
    state.add_call("mail", "read", INPUT | PRIVATE)
    decision = flow.decide(state, "slack", OUT)
    assert decision is not None
    assert decision.led == ("mail.read (2 times)",)


def test_a_call_does_not_lead_to_itself() -> None:
    assert Flow((LETHAL,)).decide(FlowState(), "all", INPUT | PRIVATE | OUT) is None


def test_servers_count_like_labels() -> None:
    flow, state = Flow((_rule(after_servers=("mail*", "web"), to_servers=("http*",)),)), FlowState()
    state.add_call("maps", "find", NONE)
    assert flow.decide(state, "http-2", NONE) is None
    state.add_call("mailbox", "read", NONE)
    assert flow.decide(state, "slack", OUT) is None
    decision = flow.decide(state, "http-2", NONE)
    assert decision is not None
    assert decision.led == ("mailbox.read",)


def test_labels_and_servers_before_have_both_to_have_been() -> None:
    rule = _rule(after=INPUT, after_servers=("mail*",), to=OUT, to_servers=("slack",))
    flow, state = Flow((rule,)), FlowState()
    state.add_call("web", "fetch", INPUT)
    assert flow.decide(state, "slack", OUT) is None
    state.add_call("mail", "read", NONE)
    for server, labels in (("slack", NONE), ("other", OUT)):
        decision = flow.decide(state, server, labels)
        assert decision is not None
        assert decision.led == ("web.fetch", "mail.read")
    assert flow.decide(state, "other", NONE) is None


def test_the_first_flow_rule_that_matches_decides() -> None:
    exception = _rule("ours", action="allow", after=INPUT, to_servers=("slack",))
    flow, state = Flow((exception, _rule("all", action="deny", after=INPUT, to=OUT))), FlowState()
    state.add_call("web", "fetch", INPUT)
    ours, other = flow.decide(state, "slack", OUT), flow.decide(state, "http", OUT)
    assert ours is not None
    assert other is not None
    assert (ours.action, ours.rule) == ("allow", "flow rule 'ours'")
    assert (other.action, other.rule) == ("deny", "flow rule 'all'")


def test_what_led_to_a_call_is_listed_to_a_bound() -> None:
    state = FlowState()
    for number in range(5 + 3):
        state.add_call("web", f"fetch{number}", INPUT)
    decision = Flow((_rule(after=INPUT, to=OUT),)).decide(state, "slack", OUT)
    assert decision is not None
    assert decision.led == (
        *(f"web.fetch{number}" for number in range(5)),
        "3 more (untrusted-input)",
    )


@pytest.mark.parametrize("labels", [INPUT, INPUT | PRIVATE])
def test_what_was_noted_elsewhere_can_be_taken_in(labels: frozenset[str]) -> None:
    planned, applied = FlowState(), FlowState()
    planned.add_call("web", "fetch", labels)
    applied.add_call("web", "fetch", labels)
    applied.add_call("mail", "read", PRIVATE)
    applied.absorb(planned)
    decision = Flow((LETHAL,)).decide(applied, "slack", OUT)
    assert decision is not None
    assert "web.fetch (2 times)" in decision.led


def test_what_a_session_has_read_is_the_same_once_it_comes_back() -> None:
    state = FlowState()
    state.add_call("mail", "read", INPUT | PRIVATE)
    for number in range(5 + 2):
        state.add_call("mail", f"tool-{number}", PRIVATE)
    back = FlowState.of(json.loads(json.dumps(state.document())))
    assert back.document() == state.document()
    decision, again = (Flow((LETHAL,)).decide(each, "slack", OUT) for each in (state, back))
    assert decision == again
    assert decision is not None
    assert Flow((_rule(after_servers=("web",), to_servers=("x",)),)).decide(back, "x", NONE) is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"labels": {}, "servers": {}},
        {"labels": {"a": 1}, "servers": {}, "unknown": {}},
        {"labels": {"a": [{}]}, "servers": {}, "unknown": {}},
        {"labels": {}, "servers": {}, "unknown": []},
        {"labels": {}, "servers": {}, "unknown": [{}, 0]},
    ],
)
def test_a_session_of_which_that_is_not_known_counts_as_having_read_anything(
    document: object,
) -> None:
    """Else it would take no more than a damaged file to forget where text came from."""
    state = FlowState.of(document)
    assert Flow((LETHAL,)).decide(state, "slack", OUT) is not None
    assert Flow((_rule(after_servers=("w",), to_servers=("x",)),)).decide(state, "x", NONE)
