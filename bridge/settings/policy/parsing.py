"""The way from the `policy` table of `config.toml` to a `PolicySpec`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from bridge.errors import SettingsError
from bridge.model import Action, Json
from bridge.settings import fields, globs, lexical
from bridge.settings.policy.shapes import (
    DETECTORS,
    LABELS,
    LETHAL,
    Budgets,
    Condition,
    DefaultFor,
    FlowRule,
    PolicySpec,
    Privacy,
    Rule,
    ServerPolicy,
    Test,
    ToolPolicy,
)

MAX_RULES = 500
"""Each call is compared with all that speak of its tool. Far more than anybody keeps apart."""

MAX_SERVERS = 200
MAX_TOOLS = 500
"""Of one server."""

MAX_FLOWS = 100
MAX_RATES = 100
MAX_CALLS = 1_000_000_000
MAX_PER_MINUTE = 1_000_000

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_ATTRIBUTES = {"server": "servers", "tool": "tools", "effect": "effects", "flow": "flows"}
"""Of keys that are not called like them."""

_STRICTNESS: Sequence[Action] = ("allow", "ask", "deny")


def parse_policy(table: Json, place: str, path: Path | None = None) -> PolicySpec:
    """Return the policy that a file's `policy` table makes; None stands for no table.

    Args:
        place: Where it stands, for errors ("config.toml: policy").

    Raises:
        SettingsError: It does not parse; the text says where.
    """
    if table is None:
        return PolicySpec(path=path)
    found = fields.record(
        table,
        place,
        {
            "pin": fields.flag,
            "defaults": _defaults,
            "rules": _rules,
            "servers": _servers,
            "flow": _flows,
            "budgets": _budgets,
            "privacy": _privacy,
            "skills": fields.action,
            "elicitation": _allowed,
            "sampling": fields.action,
            "start": fields.action,
        },
        "a policy",
    )
    values = {_ATTRIBUTES.get(key, key): value for key, value in found.items()}
    values["defaults"] = {**PolicySpec().defaults, **found.get("defaults", {})}
    # These alone say nothing of calls, which go on as without a policy.
    present = not found or not found.keys() <= {"skills", "elicitation", "sampling"}
    spec = PolicySpec(present=present, path=path, **values)
    _check_labels(spec, place)
    return spec


def _allowed(value: Json, place: str) -> Action:
    """Return an action on what is a question already, which none need be asked about."""
    fields.word(value, place, ("allow", "deny"))
    return fields.action(value, place)


def _defaults(value: Json, place: str) -> Mapping[str, Json]:
    kinds = get_args(DefaultFor)
    return fields.record(value, place, dict.fromkeys(kinds, fields.action), "the defaults")


def _rules(value: Json, place: str) -> tuple[Rule, ...]:
    rules = [_rule(item, where) for item, where in fields.tables(value, place, MAX_RULES)]
    _check_names([(rule.name, rule.place) for rule in rules])
    _check_reach(rules)
    return tuple(rules)


def _rule(value: Json, place: str) -> Rule:
    found = fields.record(
        value,
        place,
        {
            "name": fields.line(fields.MAX_NAME_CHARS),
            "server": fields.glob_list,
            "tool": fields.glob_list,
            "effect": fields.effects,
            "when": parse_when,
            "action": fields.action,
            "reason": fields.line(fields.MAX_REASON_CHARS),
            "digest": _digest,
        },
        "a rule",
    )
    _check_given(found, place, "name", "action")
    values = {_ATTRIBUTES.get(key, key): value for key, value in found.items()}
    return Rule(place=place, **values)


def _digest(value: Json, place: str) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        fields.fail(place, 'must be "sha256:" and 64 hexadecimal digits in small letters')
    return value


def _check_given(found: Mapping[str, Json], place: str, *keys: str) -> None:
    for key in keys:
        if key not in found:
            fields.fail(place, f"needs `{key}`")


def _check_names(named: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, place in named:
        if name in seen:
            other = seen[name].rpartition(" ")[2]
            fields.fail(f"{place}.name", f"is {name!r}, as is that of {other}; give it another")
        seen[name] = place


def _check_reach(rules: Sequence[Rule]) -> None:
    """Refuse rules that were meant to be stricter than one before them, and never get a call.

    Raises:
        SettingsError: There is one.
    """
    catching: list[Rule] = []
    for rule in rules:
        for earlier in catching:
            if _STRICTNESS.index(rule.action) > _STRICTNESS.index(earlier.action) and (
                _takes_all(earlier, rule)
            ):
                message = (
                    f"{rule.place} ({rule.name!r}) is never looked at: {earlier.name!r} before it "
                    "matches all of its calls, and the first match wins."
                )
                raise SettingsError(message, remedy=f"Move it in front of {earlier.name!r}.")
        if not rule.when and not rule.digest:
            catching.append(rule)


def _takes_all(first: Rule, second: Rule) -> bool:
    if first.effects and not (second.effects and second.effects <= first.effects):
        return False
    return _cover(first.servers, second.servers) and _cover(first.tools, second.tools)


def _cover(first: Sequence[str], second: Sequence[str]) -> bool:
    return all(any(globs.covers(wide, narrow) for wide in first) for narrow in second)


def _check_keys(keys: Iterable[str], place: str) -> None:
    """Refuse globs of which an earlier one takes all that they match."""
    before: list[str] = []
    for key in keys:
        where = fields.below(place, key)
        fields.glob(key, where)
        for earlier in before:
            if globs.covers(earlier, key):
                problem = f"is never looked at: {earlier!r} before it matches the same"
                fields.fail(where, f"{problem}, and the first match counts")
        before.append(key)


def _servers(value: Json, place: str) -> tuple[ServerPolicy, ...]:
    tables = fields.table(value, place, MAX_SERVERS)
    _check_keys(tables, place)
    return tuple(_server(key, item, fields.below(place, key)) for key, item in tables.items())


def _server(key: str, value: Json, place: str) -> ServerPolicy:
    found = fields.record(
        value,
        place,
        {
            "trust": fields.flag,
            "elicitation": _allowed,
            "sampling": fields.action,
            "start": fields.action,
            "labels": fields.label_set,
            "tools": _tools,
        },
        "a server's policy",
    )
    return ServerPolicy(servers=key, **found)


def _tools(value: Json, place: str) -> tuple[ToolPolicy, ...]:
    tables = fields.table(value, place, MAX_TOOLS)
    _check_keys(tables, place)
    return tuple(_tool(key, item, fields.below(place, key)) for key, item in tables.items())


def _tool(key: str, value: Json, place: str) -> ToolPolicy:
    parse: Mapping[str, fields.Parse] = {"effect": fields.effect, "labels": fields.label_set}
    found = fields.record(value, place, parse, "a tool's policy")
    return ToolPolicy(tools=key, **found)


def _flows(value: Json, place: str) -> tuple[FlowRule, ...]:
    found = [(_flow(item, where), where) for item, where in fields.tables(value, place, MAX_FLOWS)]
    _check_names([(rule.name, where) for rule, where in found])
    flows = tuple(rule for rule, _ in found)
    return flows if LETHAL.name in {rule.name for rule in flows} else (*flows, LETHAL)


def _flow(value: Json, place: str) -> FlowRule:
    found = fields.record(
        value,
        place,
        {
            "name": fields.line(fields.MAX_NAME_CHARS),
            "after": fields.label_set,
            "after_servers": fields.glob_list,
            "to": fields.label_set,
            "to_servers": fields.glob_list,
            "action": fields.action,
            "reason": fields.line(fields.MAX_REASON_CHARS),
        },
        "a flow rule",
    )
    _check_given(found, place, "name", "action")
    own = found["name"] == LETHAL.name
    after = found.get("after", frozenset()), found.get("after_servers", ())
    to = found.get("to", frozenset()), found.get("to_servers", ())
    if own and not any(after) and not any(to):
        after, to = (LETHAL.after, ()), (LETHAL.to, ())
    if not any(after):
        fields.fail(place, "needs `after` or `after_servers`")
    if not any(to):
        fields.fail(place, "needs `to` or `to_servers`")
    return FlowRule(
        name=found["name"],
        action=found["action"],
        after=after[0],
        after_servers=after[1],
        to=to[0],
        to_servers=to[1],
        reason=found.get("reason", LETHAL.reason if own else ""),
    )


def _check_labels(spec: PolicySpec, place: str) -> None:
    """Refuse labels that nothing else speaks of: a slip of the pen in one protects nobody.

    Raises:
        SettingsError: There is one.
    """
    carried = {
        label: fields.below(f"{place}.servers", server.servers)
        for server in reversed(spec.servers)
        for labels in (server.labels, *(tool.labels for tool in server.tools))
        for label in labels
    }
    used = {label for rule in spec.flows for label in rule.after | rule.to}
    for label in sorted(carried.keys() - used - set(LABELS)):
        near = fields.nearest(label, {*used, *LABELS})
        fields.fail(carried[label], f"has the label {label!r}, of which no flow rule speaks{near}")
    for label in sorted(used - carried.keys() - set(LABELS)):
        name = next(rule.name for rule in spec.flows if label in rule.after | rule.to)
        near = fields.nearest(label, {*carried, *LABELS})
        fields.fail(
            f"{place}.flow", f"has, in {name!r}, the label {label!r}, which no server has{near}"
        )


def _budgets(value: Json, place: str) -> Budgets:
    calls = fields.whole(MAX_CALLS)
    found = fields.record(
        value,
        place,
        {
            "run_calls": calls,
            "run_bytes": fields.size(1),
            "server_calls": calls,
            "per_minute": _per_minute,
        },
        "the budgets",
    )
    return Budgets(**found)


def _per_minute(value: Json, place: str) -> tuple[tuple[str, int], ...]:
    rates = fields.table(value, place, MAX_RATES)
    _check_keys(rates, place)
    parse = fields.whole(MAX_PER_MINUTE)
    return tuple((key, _count(parse, number, place, key)) for key, number in rates.items())


def _count(parse: fields.Parse, value: Json, place: str, key: str) -> int:
    found = parse(value, fields.below(place, key))
    assert isinstance(found, int)
    return found


def _privacy(value: Json, place: str) -> Privacy:
    found = fields.record(
        value,
        place,
        {"detect": _detectors, "servers": fields.globs_or_none, "reveal_to": fields.globs_or_none},
        "the privacy settings",
    )
    return Privacy(**found)


def _detectors(value: Json, place: str) -> tuple[str, ...]:
    if value == []:
        return ()
    found = fields.texts(value, place, len(DETECTORS))
    return tuple(fields.word(name, place, DETECTORS) for name in found)


MAX_CONDITIONS = 32
"""Of one rule; each is looked at in every call that the rest of the rule is about."""

MAX_OPTIONS = 1000
"""To be one of."""

MAX_STEPS = 16
"""Of a path."""

MAX_TEXT_CHARS = 4096
"""To compare with; longer texts are no names of anything."""

TESTS = get_args(Test)

_NOT = "not"


def parse_when(value: Json, place: str) -> tuple[Condition, ...]:
    """Return the conditions of a `when` table.

    Raises:
        SettingsError: One cannot be.
    """
    found: list[Condition] = []
    for key, wanted in fields.table(value, place, MAX_CONDITIONS).items():
        where = fields.below(place, key)
        found.extend(_conditions(_path(key, where), wanted, where))
    if len(found) > MAX_CONDITIONS:
        fields.fail(place, f"has {len(found)} conditions; the limit is {MAX_CONDITIONS}")
    return tuple(found)


def _path(key: str, place: str) -> tuple[str, ...]:
    steps = [""]
    characters = iter(key)
    for character in characters:
        if character == ".":
            steps.append("")
        elif character == "\\":
            escaped = next(characters, "")
            if escaped not in (".", "\\"):
                fields.fail(
                    place, "has a backslash before something else than a dot or a backslash"
                )
            steps[-1] += escaped
        else:
            steps[-1] += character
    if not all(steps):
        fields.fail(place, "has an empty step; a dot that belongs to a name is written \\.")
    if len(steps) > MAX_STEPS:
        fields.fail(place, f"has {len(steps):,} steps; the limit is {MAX_STEPS}")
    if len(key) > MAX_TEXT_CHARS:
        fields.fail(place, f"has more than {MAX_TEXT_CHARS:,} characters")
    return tuple(steps)


def _conditions(path: tuple[str, ...], wanted: Json, place: str) -> Iterator[Condition]:
    if not isinstance(wanted, Mapping):
        yield _condition(path, "is", wanted, place)
        return
    if not wanted:
        fields.fail(place, f"has no test. Known: {', '.join((*TESTS, _NOT))}")
    for name, value in wanted.items():
        where = fields.below(place, name)
        if name == _NOT:
            yield _negated(path, value, where)
        else:
            yield _condition(path, _test(name, where), value, where)


def _negated(path: tuple[str, ...], wanted: Json, place: str) -> Condition:
    if not isinstance(wanted, Mapping):
        return _condition(path, "is", wanted, place, negated=True)
    if len(wanted) != 1:
        # "Neither" and "not both" look the same here.
        fields.fail(place, f"must hold exactly one test, not {len(wanted)}")
    [(name, value)] = wanted.items()
    where = fields.below(place, name)
    return _condition(path, _test(name, where), value, where, negated=True)


def _test(name: str, place: str) -> Test:
    if name not in TESTS:
        known = fields.suggest(name, (*TESTS, _NOT))
        problem = f'is no test of an argument. {known} A path with dots needs quotes: "a.b" = ...'
        fields.fail(place, problem.rstrip("."))
    return cast("Test", name)


def _condition(
    path: tuple[str, ...], test: Test, value: Json, place: str, *, negated: bool = False
) -> Condition:
    match test:
        case "is":
            value = _scalar(value, place)
        case "in":
            value = _options(value, place)
        case "glob":
            value = fields.glob_list(value, place)
        case "under":
            value = _roots(value, place)
        case "lt" | "le" | "gt" | "ge":
            value = _number(value, place)
        case "present":
            value = fields.flag(value, place)
    return Condition(path=path, test=test, value=value, negated=negated)


def _scalar(value: Json, place: str) -> Json:
    if isinstance(value, list):
        fields.fail(place, "is a list; for one of several values write { in = [...] }")
    if not isinstance(value, str | bool | int | float):
        problem = f"must be a text, a number or a boolean, not {fields.kind(value)}"
        fields.fail(place, problem)
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS:
            fields.fail(place, f"has {len(value):,} characters; the limit is {MAX_TEXT_CHARS:,}")
        return value
    return value if isinstance(value, bool) else _number(value, place)


def _options(value: Json, place: str) -> tuple[Json, ...]:
    if not isinstance(value, list):
        fields.fail(place, f"must be a list, not {fields.kind(value)}")
    if not value:
        fields.fail(place, "is an empty list, which nothing is in")
    if len(value) > MAX_OPTIONS:
        fields.fail(place, f"has {len(value):,} entries; the limit is {MAX_OPTIONS:,}")
    return tuple(_scalar(item, f"{place}[{index}]") for index, item in enumerate(value, 1))


def _roots(value: Json, place: str) -> tuple[str, ...]:
    found: list[str] = []
    for text in fields.texts(value, place, fields.MAX_GLOBS):
        try:
            found.append(lexical.root(text))
        except ValueError as error:
            fields.fail(place, f"is {text[: fields.MAX_KEY_CHARS]!r}, which {error}")
    return tuple(found)


def _number(value: Json, place: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.fail(place, f"must be a number, not {fields.kind(value)}")
    if not math.isfinite(value):
        fields.fail(place, "must be a finite number")
    return value
