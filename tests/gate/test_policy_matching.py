"""The policy's matching, held against an implementation that is slow and obvious."""

from __future__ import annotations

import fnmatch
import json
import math
import posixpath
from collections.abc import Mapping
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bridge.gate.conditions import ConditionCheck, Work
from bridge.gate.policy import CallFacts, Policy
from bridge.model import Action, Effect, Tool
from bridge.settings.policy import Condition, PolicySpec, Rule, ServerPolicy, ToolPolicy

Verdict = bool | None  # None is undecided.

ABSENT = object()
OPAQUE = object()


def _leaves(value: Any, path: tuple[str, ...], test: str) -> list[Any]:
    if isinstance(value, list) and (path or test != "present"):
        rest = path[1:] if path[:1] == ("*",) else path
        return [leaf for item in value for leaf in _leaves(item, rest, test)] or [ABSENT]
    if not path:
        return [value]
    if isinstance(value, dict):
        if path[0] == "*":
            found = [leaf for item in value.values() for leaf in _leaves(item, path[1:], test)]
            return found or [ABSENT]
        return _leaves(value[path[0]], path[1:], test) if path[0] in value else [ABSENT]
    return [ABSENT] if value is None else [OPAQUE]


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list | dict)
    except ValueError:
        return False


def _at(arguments: Mapping[str, Any], path: tuple[str, ...], test: str, texts: bool) -> list[Any]:
    if test != "present" and not texts:
        arguments = {
            name: OPAQUE if isinstance(value, str) and _is_json(value) else value
            for name, value in arguments.items()
        }
    return _leaves(arguments, path, test)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float):
        return "number" if math.isfinite(value) else "no number"
    return type(value).__name__


def _plain_verdict(test: str, wanted: Any, leaf: Any) -> Verdict:
    if leaf is OPAQUE:
        return None
    if test == "present":
        return bool((leaf is not ABSENT) == wanted)
    if leaf is ABSENT or leaf is None:
        return False
    if test in ("is", "in"):
        options = [wanted] if test == "is" else list(wanted)
        if _kind(leaf) not in [_kind(option) for option in options]:
            return None
        return any(_kind(option) == _kind(leaf) and option == leaf for option in options)
    if test in ("lt", "le", "gt", "ge"):
        if _kind(leaf) != "number":
            return None
        order = (leaf > wanted) - (leaf < wanted)
        return order in {"lt": [-1], "le": [-1, 0], "gt": [1], "ge": [0, 1]}[test]
    if not isinstance(leaf, str):
        return None
    if test == "glob":
        # Without brackets these are globs of the standard library's as well.
        return any(fnmatch.fnmatchcase(leaf, glob) for glob in wanted)
    return _under(leaf, wanted)


def _under(leaf: str, roots: tuple[str, ...]) -> Verdict:
    if not leaf.startswith("/"):
        # All roots here are absolute.
        return None
    steps = posixpath.normpath(leaf).strip("/").split("/")
    found: list[Verdict] = []
    for root in roots:
        wanted = root.strip("/").split("/")
        begins = steps[: len(wanted)]
        if begins == wanted:
            return True
        alike = [step.lower() for step in begins] == [step.lower() for step in wanted]
        found.append(None if alike else False)
    return None if None in found else False


def _holds(condition: Condition, arguments: Mapping[str, Any], action: Action, texts: bool) -> bool:
    verdicts: list[Verdict] = []
    for leaf in _at(arguments, condition.path, condition.test, texts):
        verdict = _plain_verdict(condition.test, condition.value, leaf)
        verdicts.append(not verdict if condition.negated and verdict is not None else verdict)
    if action == "allow":
        return set(verdicts) == {True}
    return bool({True, None} & set(verdicts))


_KEYS = st.sampled_from(["a", "b", "to"])
_TEXTS = st.sampled_from(
    ["main", "Main", "main-2", "x@a", "true", "1", "", "[1]", '{"a": "main"}', "[x", " [", "é"]
    + ["/srv/data/x", "/srv/data/../x", "/SRV/data", "//srv/data", "data", "/srv"]
)
_SCALARS = st.one_of(
    _TEXTS, st.sampled_from([True, False, None, 0, 1, 1.0, 2, -3, 1.5, 10**40, math.nan, math.inf])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=8,
)
_ARGUMENTS = st.dictionaries(_KEYS, _VALUES, max_size=3)
_WANTED = st.one_of(_TEXTS, st.sampled_from([True, False, 0, 1, 1.0, 1.5, -3, 10**40]))
_GLOBS = st.sampled_from(["main", "main*", "*@a", "m?in", "*", "*a*", "x*a"])


def _tests() -> st.SearchStrategy[tuple[str, Any]]:
    numbers = st.sampled_from([0, 1, 1.5, -3])
    return st.one_of(
        st.tuples(st.just("is"), _WANTED),
        st.tuples(st.just("in"), st.lists(_WANTED, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("glob"), st.lists(_GLOBS, min_size=1, max_size=2).map(tuple)),
        st.tuples(st.just("under"), st.sampled_from([("/srv/data",), ("/srv/data", "/x")])),
        st.tuples(st.sampled_from(["lt", "le", "gt", "ge"]), numbers),
        st.tuples(st.just("present"), st.booleans()),
    )


@st.composite
def _conditions(draw: st.DrawFn) -> Condition:
    test, value = draw(_tests())
    path = draw(st.lists(st.sampled_from(["a", "b", "to", "*"]), min_size=1, max_size=3))
    return Condition(
        path=tuple(path),
        test=test,  # type: ignore[arg-type]  # one of them
        value=value,
        negated=draw(st.booleans()),
    )


_ACTIONS: st.SearchStrategy[Action] = st.sampled_from(["allow", "ask", "deny"])
_EFFECTS: st.SearchStrategy[Effect] = st.sampled_from(["read", "write", "destructive"])


def _tool(*texts: str) -> Tool:
    schema = {"properties": {name: {"type": "string"} for name in texts}}
    return Tool(server="s", name="t", input_schema=schema)


@given(_conditions(), _ARGUMENTS, _ACTIONS, st.booleans())
@example(Condition(path=("a",), test="is", value=True), {"a": 1}, "allow", False)
@example(Condition(path=("a",), test="is", value=True), {"a": 1}, "deny", False)
@example(Condition(path=("a",), test="is", value=1), {"a": math.nan}, "deny", False)
@example(Condition(path=("a",), test="lt", value=1), {"a": math.inf}, "deny", False)
@example(Condition(path=("a",), test="is", value="[1]"), {"a": "[1]"}, "allow", True)
@example(Condition(path=("a",), test="is", value="[1]"), {"a": "[1]"}, "allow", False)
@example(Condition(path=("a", "*"), test="in", value=("x",)), {"a": []}, "allow", False)
@example(Condition(path=("a",), test="is", value="x", negated=True), {"a": []}, "allow", False)
def test_conditions_equal_the_model(
    condition: Condition, arguments: dict[str, Any], action: Action, texts: bool
) -> None:
    tool = _tool("a", "b", "to") if texts else _tool()
    check = ConditionCheck(condition, every=action == "allow")
    expected = _holds(condition, arguments, action, texts)
    assert check.holds(arguments, tool, Work()) is expected
    assert check.weigh(arguments, tool, Work())[0] is expected
    assert check.explain(arguments, tool)


@st.composite
def _rules(draw: st.DrawFn) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            name=str(number),
            action=draw(_ACTIONS),
            servers=draw(st.sampled_from([("*",), ("s",), ("x*",), ("x", "s*")])),
            tools=draw(st.sampled_from([("*",), ("t",), ("u",), ("?",)])),
            effects=draw(st.frozensets(_EFFECTS, max_size=2)),
            when=tuple(draw(st.lists(_conditions(), max_size=2))),
        )
        for number in range(draw(st.integers(0, 6)))
    )


def _first_match(rules: tuple[Rule, ...], arguments: dict[str, Any], effect: Effect) -> str | None:
    for rule in rules:
        if (
            any(fnmatch.fnmatchcase("s", glob) for glob in rule.servers)
            and any(fnmatch.fnmatchcase("t", glob) for glob in rule.tools)
            and (not rule.effects or effect in rule.effects)
            and all(_holds(condition, arguments, rule.action, False) for condition in rule.when)
        ):
            return rule.name
    return None


@given(_rules(), st.lists(_ARGUMENTS, min_size=1, max_size=3), _EFFECTS)
def test_the_first_match_decides(
    rules: tuple[Rule, ...], calls: list[dict[str, Any]], effect: Effect
) -> None:
    user = ServerPolicy(servers="s", tools=(ToolPolicy(tools="t", effect=effect),))
    policy = Policy(PolicySpec(present=True, rules=rules, servers=(user,)))
    for arguments in calls:
        call = CallFacts(server="s", tool="t", arguments=arguments)
        decision = policy.decide(call)
        expected = _first_match(rules, arguments, effect)
        if expected is None:
            assert decision.rule.startswith("default for ")
            assert decision.action == policy.spec.defaults[effect]
        else:
            assert decision.rule == f"rule '{expected}'"
            assert decision.action == rules[int(expected)].action
        assert decision.effect == effect
        steps = [step for step in policy.explain(call) if step.applies and step.action]
        assert [step.action for step in steps] == [decision.action]


@given(st.lists(_VALUES, max_size=6), _conditions())
def test_without_work_nothing_is_allowed(items: list[Any], condition: Condition) -> None:
    arguments = {"a": items, "b": items, "to": items}
    path = ("a", *condition.path[1:])
    shut = Condition(path=path, test=condition.test, value=condition.value)
    nothing_left = Work(0)
    assert not ConditionCheck(shut, every=True).weigh(arguments, None, nothing_left)[0]
    assert ConditionCheck(shut, every=False).weigh(arguments, None, Work(0))[0]
