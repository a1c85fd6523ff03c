"""Flow rules: what a run has read decides where it may send."""

from __future__ import annotations

import json

import pytest

from bridge.gate.decision import Decision
from bridge.gate.flow import Flow, FlowState
from bridge.settings.policy import LETHAL, FlowRule

INPUT, PRIVATE, OUT = (
    frozenset({label}) for label in ("untrusted-input", "private-data", "exfiltration")
)
NONE: frozenset[str] = frozenset()


def _rule(name: str = "f", **fields: object) -> FlowRule:
    return FlowRule(**{"name": name, "action": "ask", **fields})  # type: ignore[arg-type]


def _after(*calls: tuple[str, frozenset[str]]) -> FlowState:
    """Return the state after these tools of servers, with their labels."""
    state = FlowState()
    for name, labels in calls:
        server, _, tool = name.partition(".")
        state.add_call(server, tool, labels)
    return state


WEB, MAIL, ALL = ("web.fetch", INPUT), ("mail.read", PRIVATE), ("mail.read", INPUT | PRIVATE)
SERVERS = _rule(after_servers=("mail*", "web"), to_servers=("http*",))
BOTH = _rule(after=INPUT, after_servers=("mail*",), to=OUT, to_servers=("slack",))


@pytest.mark.parametrize(
    ("rule", "calls", "server", "labels", "causes"),
    [
        (LETHAL, [], "slack", OUT, None),
        (LETHAL, [WEB], "slack", OUT, None),
        (LETHAL, [WEB, MAIL], "mail", PRIVATE | INPUT, None),
        (LETHAL, [WEB, MAIL], "slack", OUT | {"other"}, ("mail.read", "web.fetch")),
        (LETHAL, [ALL, ALL], "slack", OUT, ("mail.read (2 times)",)),
        (LETHAL, [], "all", INPUT | PRIVATE | OUT, None),
        (SERVERS, [("maps.find", NONE)], "http-2", NONE, None),
        (SERVERS, [("mailbox.read", NONE)], "slack", OUT, None),
        (SERVERS, [("mailbox.read", NONE)], "http-2", NONE, ("mailbox.read",)),
        (BOTH, [WEB], "slack", OUT, None),
        (BOTH, [WEB, ("mail.read", NONE)], "slack", NONE, ("web.fetch", "mail.read")),
        (BOTH, [WEB, ("mail.read", NONE)], "other", OUT, ("web.fetch", "mail.read")),
        (BOTH, [WEB, ("mail.read", NONE)], "other", NONE, None),
    ],
)
def test_a_rule_decides_on_a_call_after_all_that_it_names(
    rule: FlowRule,
    calls: list[tuple[str, frozenset[str]]],
    server: str,
    labels: frozenset[str],
    causes: tuple[str, ...] | None,
) -> None:
    decision = Flow((rule,)).decide(_after(*calls), server, labels)
    assert decision == (
        causes
        and Decision(
            action="ask",
            rule=f"flow rule '{rule.name}'",
            reason=rule.reason,
            labels=labels,
            led=causes,
        )
    )


def test_the_first_flow_rule_that_matches_decides() -> None:
    exception = _rule("ours", action="allow", after=INPUT, to_servers=("slack",))
    flow = Flow((exception, _rule("all", action="deny", after=INPUT, to=OUT)))
    decisions = [flow.decide(_after(WEB), server, OUT) for server in ("slack", "http")]
    assert [each and (each.action, each.rule) for each in decisions] == [
        ("allow", "flow rule 'ours'"),
        ("deny", "flow rule 'all'"),
    ]


def test_what_led_to_a_call_is_listed_to_a_bound() -> None:
    state = _after(*((f"web.fetch{number}", INPUT) for number in range(5 + 3)))
    listed = [f"web.fetch{number}" for number in range(5)]
    assert state.list_causes(INPUT, None) == (*listed, "3 more (untrusted-input)")


def test_the_calls_of_another_state_are_added() -> None:
    applied = _after(WEB, MAIL)
    applied.absorb(_after(WEB))
    assert "web.fetch (2 times)" in applied.list_causes(INPUT, None)


def test_what_a_session_has_read_is_the_same_once_it_comes_back() -> None:
    state = _after(ALL, *((f"mail.tool-{number}", PRIVATE) for number in range(5 + 2)))
    back = FlowState.of(json.loads(json.dumps(state.document())))
    assert back.document() == state.document()
    decision, again = (Flow((LETHAL,)).decide(each, "slack", OUT) for each in (state, back))
    assert decision == again is not None
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
def test_an_unreadable_state_has_read_everything(document: object) -> None:
    """Else it would take no more than a damaged file to forget where text came from."""
    state = FlowState.of(document)
    assert Flow((LETHAL,)).decide(state, "slack", OUT) is not None
    assert Flow((_rule(after_servers=("w",), to_servers=("x",)),)).decide(state, "x", NONE)
