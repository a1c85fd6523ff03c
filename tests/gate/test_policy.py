"""Policies: what is believed of a tool, what decides, and how hostile calls are met."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SettingsError
from bridge.gate.conditions import WORK
from bridge.gate.pins import tool_digests
from bridge.gate.policy import (
    LONG_NAME,
    MAX_NAME_CHARS,
    OPEN,
    CallFacts,
    Decision,
    Flow,
    FlowState,
    Policy,
    outlook,
    strictest,
)
from bridge.gate.services import policy_digest
from bridge.model import Effect, Json, Tool
from bridge.settings.policy import Condition, PolicySpec, Rule, parse_policy


def _policy(**table: Any) -> Policy:
    return Policy(parse_policy(table, "config.toml: policy"))


def _rule(action: str, /, **fields: Any) -> dict[str, Any]:
    return {"name": f"{action} it", "action": action, **fields}


def _tool(**annotations: Any) -> Tool:
    return Tool(server="s", name="t", annotations=annotations)


def _call(definition: Tool | None = None, /, **arguments: Any) -> CallFacts:
    return CallFacts(server="s", tool="t", arguments=arguments, definition=definition)


def test_without_a_policy_everything_is_allowed_and_no_one_believed() -> None:
    policy = Policy()
    decision = policy.decide(_call(_tool(readOnlyHint=True, openWorldHint=True)))
    assert decision == Decision(action="allow", rule=OPEN, effect="write")
    assert policy.decide(_call(), "read").effect == "read"
    assert policy.labels("s", "t", _tool(openWorldHint=True)) == frozenset()
    assert [step.name for step in policy.explain(_call())] == ["write", OPEN]


@pytest.mark.parametrize(
    ("annotations", "effect", "rule"),
    [
        ({"readOnlyHint": True}, "read", "default for reads"),
        ({"readOnlyHint": True, "destructiveHint": True}, "read", "default for reads"),
        ({"destructiveHint": False}, "write", "default for writes"),
        ({"readOnlyHint": False, "destructiveHint": False}, "write", "default for writes"),
        ({"destructiveHint": True}, "destructive", "default for destructive calls"),
        ({}, "destructive", "default for destructive calls"),
        # What is neither true nor false says nothing.
        ({"readOnlyHint": "true"}, "destructive", "default for destructive calls"),
        ({"readOnlyHint": 1, "destructiveHint": 0}, "destructive", "default for destructive calls"),
    ],
)
def test_a_trusted_server_is_believed_what_its_annotations_say(
    annotations: dict[str, Any], effect: Effect, rule: str
) -> None:
    policy = _policy(servers={"s": {"trust": True}})
    decision = policy.decide(_call(_tool(**annotations)))
    assert (decision.effect, decision.rule) == (effect, rule)
    # Without a definition, or of a server that is not trusted, annotations do not count.
    assert policy.decide(_call()).rule == "default for untrusted tools"
    decision = _policy(servers={"s": {}}).decide(_call(_tool(**annotations)))
    assert (decision.effect, decision.rule) == ("write", "default for untrusted tools")


def test_the_word_of_the_user_is_stronger_than_any_annotation() -> None:
    tools = {"t": {"effect": "destructive"}, "r*": {"effect": "read"}, "*": {"labels": []}}
    policy = _policy(servers={"s": {"trust": True, "tools": tools}})
    for tool, hints, effect in (
        ("t", {"readOnlyHint": True}, "destructive"),
        ("rm", {"destructiveHint": True}, "read"),
        ("other", {"readOnlyHint": True}, "read"),
    ):
        call = CallFacts(server="s", tool=tool, definition=_tool(**hints))
        assert policy.decide(call).effect == effect
    decision = policy.decide(CallFacts(server="s", tool="rm"))
    assert (decision.rule, decision.action) == ("default for reads", "allow")


def test_what_the_protocol_says_is_stronger_still() -> None:
    policy = _policy(servers={"s": {"tools": {"*": {"effect": "destructive"}}}})
    decision = policy.decide(CallFacts(server="s", tool="resources/read"), "read")
    assert (decision.effect, decision.rule) == ("read", "default for reads")
    # As long as it is one: a tool that is only called so is a tool.
    assert policy.decide(CallFacts(server="s", tool="resources/read")).effect == "destructive"
    other = CallFacts(server="x", tool="resources/read")
    assert Policy(policy.spec).decide(other).effect == "write"


def test_labels_come_from_the_server_its_tools_and_believed_hints() -> None:
    server = {"trust": True, "labels": ["private-data"], "tools": {"t": {"labels": ["x"]}}}
    flow = [{"name": "f", "after": ["x"], "to": ["exfiltration"], "action": "ask"}]
    policy = _policy(servers={"s": server}, flow=flow)
    reads, writes = (_tool(readOnlyHint=hint, openWorldHint=True) for hint in (True, False))
    own = {"private-data", "x"}
    assert policy.labels("s", "t", None) == own
    assert policy.labels("s", "t", reads) == own | {"untrusted-input"}
    assert policy.labels("s", "t", writes) == own | {"exfiltration"}
    assert policy.decide(_call(writes)).labels == own | {"exfiltration"}
    assert policy.labels("other", "t", writes) == frozenset()
    assert (
        _policy(servers={"s": {**server, "trust": False}}, flow=flow).labels("s", "t", reads) == own
    )


def test_a_definition_that_changes_is_judged_again() -> None:
    policy = _policy(servers={"s": {"trust": True}})
    tame, wild = _tool(readOnlyHint=True), _tool(destructiveHint=True)
    for definition, effect in ((tame, "read"), (wild, "destructive"), (None, "write")) * 2:
        assert policy.decide(_call(definition)).effect == effect


def test_a_rule_made_for_one_definition_matches_no_other() -> None:
    tool = _tool(title="as it was")
    rules = [_rule("allow", tool="t", digest=tool_digests(tool).schema)]
    policy = _policy(rules=rules)
    assert policy.decide(_call(tool)).rule == "rule 'allow it'"
    changed = dataclasses.replace(tool, annotations={"readOnlyHint": True})
    assert policy.decide(_call(changed)).rule == "default for untrusted tools"
    assert policy.decide(_call()).rule == "default for untrusted tools"
    assert policy.decide(_call(tool)).rule == "rule 'allow it'"
    strict = _policy(rules=[{**rules[0], "action": "deny"}])
    assert strict.decide(_call(tool)).action == "deny"
    assert strict.decide(_call()).action == "deny"
    assert strict.decide(_call(changed)).action == "ask"


def test_who_is_stopped_for_what_cannot_be_judged_is_told_so_and_not_the_value() -> None:
    policy = _policy(rules=[_rule("deny", when={"force": True}, reason="no force")])
    decision = policy.decide(_call(force="private"))
    assert decision.reason == "no force; force is a text that the test `is` cannot judge"
    assert policy.decide(_call(force=True)).reason == "no force"


def test_an_object_may_not_hide_in_a_text() -> None:
    """Some servers read JSON out of texts; not where they say that the argument is one."""
    rules = [_rule("deny", when={"target.branch": "main"}), _rule("ask", when={"note": "x"})]
    policy = _policy(rules=rules, defaults={"untrusted": "allow"})
    assert policy.decide(_call(target='{"branch": "main"}')).action == "deny"
    assert policy.decide(_call(note='{"a": 1}')).action == "ask"
    schema = {"properties": {"note": {"type": "string"}}}
    described = Tool(server="s", name="t", input_schema=schema)
    assert policy.decide(_call(described, note='{"a": 1}')).action == "allow"
    assert policy.decide(_call(note="[draft] of a note")).action == "allow"


@pytest.mark.parametrize(
    "schema",
    [{}, {"properties": 1}, {"properties": {"a": 1}}, {"properties": {"a": {"type": ["string"]}}}],
)
def test_a_schema_of_any_shape_is_taken(schema: dict[str, Any]) -> None:
    policy = _policy(rules=[_rule("deny", when={"a": "x"})])
    described = Tool(server="s", name="t", input_schema=schema)
    assert policy.decide(_call(described, a="[1]")).action == "deny"


def test_more_than_anybody_reads_is_stopped_and_not_allowed() -> None:
    allow = _policy(rules=[_rule("allow", when={"to.*": {"not": "x"}})])
    deny = _policy(rules=[_rule("deny", when={"to.*": "x"})])
    fits, huge = ["a"] * (WORK - 10), ["a"] * (WORK + 1)
    assert allow.decide(_call(to=fits)).action == "allow"
    assert allow.decide(_call(to=huge)).action == "ask"
    assert deny.decide(_call(to=fits)).action == "ask"
    assert deny.decide(_call(to=huge)).action == "deny"
    assert "more than is looked at" in deny.decide(_call(to=huge)).reason
    text = _policy(rules=[_rule("deny", when={"to": {"glob": "*x*y*"}})])
    assert text.decide(_call(to="a" * 1_000_000)).action == "ask"
    assert text.decide(_call(to="a" * 10_000_000)).action == "deny"


def test_a_deep_value_ends_no_stack() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    policy = _policy(rules=[_rule("deny", when={"a.*": "x"})])
    assert policy.decide(_call(a=deep)).action == "deny"
    present = _policy(rules=[_rule("allow", when={"a": {"present": True}})])
    assert present.decide(_call(a=deep)).action == "allow"
    assert len(present.explain(_call(a=deep))) == 3
    nested = "[" * 50_000 + "]" * 50_000
    assert policy.decide(_call(a=nested)).action == "deny"


def test_odd_values_are_not_judged() -> None:
    allow = _policy(rules=[_rule("allow", when={"a": {"not": "x"}})])
    deny = _policy(rules=[_rule("deny", when={"a": {"glob": "x"}})])
    for odd in (object(), b"x", {1, 2}, float("nan"), 10**5000):
        assert allow.decide(_call(a=odd)).action == "ask"
        assert deny.decide(_call(a=odd)).action == "deny"
        assert len(allow.explain(_call(a=odd))) == 3


def test_names_that_are_made_up_take_bounded_time_and_memory() -> None:
    policy = _policy(rules=[_rule("allow", tool="a*")])
    for number in range(1034):
        policy.decide(CallFacts(server="s", tool=f"a{number}"))
    assert len(policy._known) <= 1024
    long = CallFacts(server="s", tool="a" * (MAX_NAME_CHARS + 1))
    decision = policy.decide(long)
    assert (decision.action, decision.rule) == ("deny", LONG_NAME)
    assert [step.action for step in policy.explain(long)] == [None, "deny"]
    assert decision.effect == "write"
    assert policy.labels("s", long.tool, None) == frozenset()


def test_names_are_compared_letter_by_letter() -> None:
    policy = _policy(rules=[_rule("allow", server="s", tool="caf\u00e9")])
    for name, action in (("caf\u00e9", "allow"), ("cafe\u0301", "ask"), ("CAF\u00c9", "ask")):
        assert policy.decide(CallFacts(server="s", tool=name)).action == action


def test_an_explanation_has_each_rule_with_why_it_did_not_match() -> None:
    tool = _tool(readOnlyHint=True, openWorldHint=True)
    policy = _policy(
        rules=[
            _rule("allow", name="server", server="x*"),
            _rule("allow", name="tool", tool=["a", "b"]),
            _rule("allow", name="effect", effect=["write", "destructive"]),
            _rule("allow", name="digest", digest=f"sha256:{'0' * 64}"),
            _rule("allow", name="missing", when={"a.b": 1}),
            _rule("allow", name="other", when={"n": {"gt": 5}}),
            _rule("allow", name="unclear", when={"n": "x"}),
            _rule("deny", name="it", when={"n": 1}, reason="why not"),
            _rule("deny", name="late"),
        ],
        servers={"s": {"trust": True, "labels": ["private-data"]}},
    )
    call = _call(tool, n=1)
    steps = policy.explain(call)
    assert [(step.about, step.name, step.applies, step.why) for step in steps] == [
        ("effect", "read", True, "the server's annotations say so, and it is trusted"),
        ("label", "private-data", True, "the policy, of servers 's'"),
        ("label", "untrusted-input", True, "the server's openWorldHint, which is believed"),
        ("rule", "server", False, "it is about servers x*"),
        ("rule", "tool", False, "it is about tools a, b"),
        ("rule", "effect", False, "it is about destructive and write calls, and this is a read"),
        ("rule", "digest", False, "it is about the tool as it was defined when the rule was made"),
        ("rule", "missing", False, "a.b is missing"),
        ("rule", "other", False, "n is 1, which does not pass `gt 5`"),
        ("rule", "unclear", False, 'n is 1, which cannot be judged by `is "x"`'),
        ("rule", "it", True, "n is 1, which passes `is 1`"),
        ("rule", "late", False, "rule 'it' decided"),
        ("default", "default for reads", False, "rule 'it' decided"),
    ]
    assert policy.decide(call).rule == "rule 'it'"
    assert steps[3].place == "config.toml: policy.rules[1]"


def test_the_strictest_decision_keeps_what_the_policy_says_of_the_call() -> None:
    base = Decision(action="allow", rule="r", effect="read", labels=frozenset({"x"}))
    flow = Decision(action="ask", rule="flow rule 'f'", led=("a.b",))
    found = strictest(base, None, flow, Decision(action="ask", rule="changed tool"))
    assert found == dataclasses.replace(flow, effect="read", labels=frozenset({"x"}))
    assert strictest(base, Decision(action="allow", rule="other")) is base


def test_a_decision_is_on_one_definition_whatever_is_decided_beside_it() -> None:
    policy = _policy(servers={"s": {"trust": True}})
    beside: list[Effect] = []

    class Interrupted(dict[str, Json]):
        def get(self, key: str, default: Json = None) -> Json:
            if not beside:
                beside.append("read")
                beside[0] = policy.decide(now).effect
            return super().get(key, default)

    old = Tool(server="s", name="t", annotations={"readOnlyHint": True})
    new = Tool(server="s", name="t", annotations=Interrupted(readOnlyHint=False))
    now = CallFacts(server="s", tool="t", definition=new)
    assert policy.decide(CallFacts(server="s", tool="t", definition=old)).effect == "read"
    assert policy.decide(now).effect == "destructive"
    assert beside == ["destructive"]


def test_a_policys_digest_changes_with_its_meaning_alone() -> None:
    def spec(**fields: Any) -> PolicySpec:
        when = (Condition(path=("a", "*"), test="in", value=["x"]),)
        rule = Rule(name="r", action="deny", effects=frozenset({"read", "write"}), when=when)
        return PolicySpec(present=True, rules=(rule,), **fields)

    first = spec()
    assert policy_digest(first) == policy_digest(spec(path=Path("/elsewhere")))
    assert policy_digest(first) != policy_digest(spec(pin=False))
    other = Condition(path=("b", "*"), test="in", value=["x"])
    changed = PolicySpec(present=True, rules=(Rule(name="r", action="deny", when=(other,)),))
    assert policy_digest(first) != policy_digest(changed)
    assert policy_digest(PolicySpec()) == ""


def _of_rules(*rules: dict[str, Any]) -> Policy:
    named = [{"name": str(number), **rule} for number, rule in enumerate(rules)]
    return Policy(parse_policy({"rules": named}, "policy"))


FORCE: dict[str, Any] = {"when": {"force": True}, "action": "deny"}
MAIN: dict[str, Any] = {"when": {"branch": "main"}, "action": "ask"}
ALLOWED: dict[str, Any] = {"action": "allow"}


BOTH: dict[str, Any] = {"when": {"branch": "main", "force": True}, "action": "deny"}


def test_a_forecast_has_the_arguments_that_a_possibility_needs() -> None:
    found = outlook(_of_rules(FORCE, MAIN, ALLOWED), _call(force=False), unseen=["branch"])
    assert (found.decision.action, found.decision.rule) == ("allow", "rule '2'")
    [possible] = found.possible
    assert (possible.decision.rule, possible.on) == ("rule '1'", ("branch",))


@pytest.mark.parametrize(
    ("rules", "seen", "any_name", "possible"),
    [
        ([{"action": "ask"}, MAIN], {}, False, []),
        ([BOTH], {"force": False}, False, []),
        ([BOTH], {"force": True}, False, ["deny"]),
        ([FORCE, MAIN], {}, True, ["deny", "ask"]),
    ],
)
def test_a_forecast_has_only_what_is_possible(
    rules: list[dict[str, Any]], seen: dict[str, Any], any_name: bool, possible: list[str]
) -> None:
    unseen = [] if any_name else ["branch"]
    found = outlook(_of_rules(*rules), _call(**seen), unseen=unseen, open=any_name)
    assert [each.decision.action for each in found.possible] == possible


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
        policy = _of_rules(*rules)
    except SettingsError:
        # A rule that would never get a call: such policies are refused.
        return
    seen = {name: value for name, value in arguments.items() if name not in unseen}
    found = outlook(policy, _call(**seen), unseen=unseen)
    final = policy.decide(_call(**arguments))
    foreseen = [found.decision, *(each.decision for each in found.possible)]
    assert (final.action, final.rule) in {(each.action, each.rule) for each in foreseen}


def test_flow_rules_are_forecast_with_their_causes() -> None:
    flow, found = Flow(_of_rules().spec.flows), []
    for labels in (frozenset({"private-data"}), frozenset({"private-data", "untrusted-input"})):
        before = FlowState()
        before.add_call("mail", "read", labels)
        found.append(flow.decide(before, _call().server, frozenset({"exfiltration"})))
    assert [each and (each.action, each.led) for each in found] == [None, ("ask", ("mail.read",))]
