"""What a policy may say of calls of which some arguments are not known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SettingsError
from bridge.gate.decision import CallFacts
from bridge.gate.flow import Flow
from bridge.gate.policy import Policy, flow_decision, outlook
from bridge.settings.policy import parse_policy


def _policy(*rules: dict[str, Any]) -> Policy:
    named = [{"name": str(number), **rule} for number, rule in enumerate(rules)]
    return Policy(parse_policy({"rules": named}, "policy"))


def _call(**arguments: Any) -> CallFacts:
    return CallFacts(server="s", tool="t", arguments=arguments)


FORCE: dict[str, Any] = {"when": {"force": True}, "action": "deny"}
MAIN: dict[str, Any] = {"when": {"branch": "main"}, "action": "ask"}
ALLOWED: dict[str, Any] = {"action": "allow"}


def test_what_is_seen_decides_and_what_is_not_leaves_possibilities() -> None:
    policy = _policy(FORCE, MAIN, ALLOWED)
    found = outlook(policy, _call(force=False), unseen=["branch"])
    assert (found.decision.action, found.decision.rule) == ("allow", "rule '2'")
    [possible] = found.possible
    assert (possible.decision.action, possible.decision.rule) == ("ask", "rule '1'")
    assert possible.on == ("branch",)


def test_a_rule_behind_one_that_is_certain_is_no_possibility() -> None:
    assert outlook(_policy({"action": "ask"}, MAIN), _call(), unseen=["branch"]).possible == ()


def test_a_condition_that_is_seen_to_fail_leaves_no_possibility() -> None:
    both = {"when": {"branch": "main", "force": True}, "action": "deny"}
    assert outlook(_policy(both), _call(force=False), unseen=["branch"]).possible == ()
    assert len(outlook(_policy(both), _call(force=True), unseen=["branch"]).possible) == 1


def test_arguments_of_any_name_leave_every_condition_open() -> None:
    found = outlook(_policy(FORCE, MAIN), _call(), open=True)
    assert [possible.decision.action for possible in found.possible] == ["deny", "ask"]


_ARGUMENTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)
_RULES = st.lists(
    st.builds(
        lambda when, action: {**({"when": when} if when else {}), "action": action},
        _ARGUMENTS,
        st.sampled_from(["allow", "ask", "deny"]),
    ),
    max_size=5,
)


@given(_RULES, _ARGUMENTS, st.sets(st.sampled_from("abc")))
def test_whatever_is_decided_when_all_is_known_was_foreseen(
    rules: list[dict[str, Any]], arguments: dict[str, int], unseen: set[str]
) -> None:
    try:
        policy = _policy(*rules)
    except SettingsError:
        # A rule that would never get a call: such policies are refused.
        return
    seen = {name: value for name, value in arguments.items() if name not in unseen}
    found = outlook(policy, _call(**seen), unseen=unseen)
    final = policy.decide(_call(**arguments))
    foreseen = [found.decision, *(each.decision for each in found.possible)]
    assert (final.action, final.rule) in {(each.action, each.rule) for each in foreseen}


@pytest.mark.parametrize("labels", [{"private-data"}, {"private-data", "untrusted-input"}])
def test_flow_rules_are_told_with_what_would_lead_to_them(labels: set[str]) -> None:
    flow = Flow(_policy().spec.flows)
    before = [(CallFacts(server="mail", tool="read"), frozenset(labels))]
    found = flow_decision(flow, _call(), frozenset({"exfiltration"}), before)
    if len(labels) == 1:
        assert found is None
    else:
        assert found is not None
        assert (found.action, found.led) == ("ask", ("mail.read",))
