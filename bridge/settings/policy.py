"""Parses the `[policy]` of `config.toml`, and matches its globs. Pure.

In a glob, `*` matches any characters and `?` matches one. A backslash escapes `*`, `?` or a
backslash. There are no character classes, because titles and paths contain brackets. Case and
Unicode forms must match exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast, get_args

from bridge.errors import SettingsError
from bridge.model import Action, Effect, Json
from bridge.settings import fields, parsers

MAX_GLOB_CHARS = 512  # Servers choose the names of tools, which rules contain.

_ESCAPED = re.compile(r"\\([*?\\])")
_TOKEN = re.compile(rf"{_ESCAPED.pattern}|([*?])|([^*?\\]+)|\\")

Matcher = Callable[[str], bool]

_NOT = "not"

STRICTNESS: Sequence[Action] = ("allow", "ask", "deny")  # The least strict first.

Test = Literal["is", "in", "glob", "under", "lt", "le", "gt", "ge", "present"]

DefaultFor = Literal["read", "write", "destructive", "untrusted"]
"""The effects with a default action; "untrusted" if neither the policy nor a trusted server tells a
tool's effect.
"""

Asking = Literal["elicitation", "sampling"]
"""Requests that servers make on their own: to the user, or to the user's model."""

UNTRUSTED_INPUT = "untrusted-input"
PRIVATE_DATA = "private-data"
EXFILTRATION = "exfiltration"
SECRET = "secret"  # A call into which the bridge inserts a masked secret.

LABELS = (UNTRUSTED_INPUT, PRIVATE_DATA, EXFILTRATION, SECRET)
"""Labels with a built-in meaning; users may add others."""

DETECTORS = ("email", "phone", "iban", "card", "ip")  # Detectors of personal data.


def parse_glob(glob: str) -> list[tuple[str, int]]:
    """Return a regular expression and its width for each part between a glob's stars.

    The message of a `ValueError` continues a sentence that begins with the glob.
    """
    if not glob:
        raise ValueError("is empty, which matches nothing")
    if len(glob) > MAX_GLOB_CHARS:
        raise ValueError(f"has more than {MAX_GLOB_CHARS} characters")
    parts = [("", 0)]
    for token in _TOKEN.finditer(glob):
        escaped, wild, plain = token.groups()
        if wild == "*":
            parts.append(("", 0))
            continue
        text = escaped or plain or wild
        if not text:
            raise ValueError(
                "has a backslash before a character other than *, ? or a backslash; "
                "write a literal backslash twice"
            )
        before, width = parts[-1]
        parts[-1] = (before + ("." if wild else re.escape(text)), width + len(text))
    return parts


def literal(text: str) -> str:
    """Return a glob that matches only this text."""
    return re.sub(r"[*?\\]", r"\\\g<0>", text)


def covers(first: str, second: str) -> bool:
    """Return whether the first glob matches everything that the second matches.

    False may be wrong if a glob has `?` or a backslash.
    """
    if first == second:
        return True
    if "?" in first or "\\" in first or "\\" in second:
        return False
    # Only a `*` of the first can match a wildcard of the second, and it matches any text there.
    return matcher(first)(second)


@lru_cache(maxsize=4096)
def matcher(*globs: str) -> Matcher:
    """Return a function that tests whether any of the globs matches a whole text.

    For each glob, its time is at most proportional to the product of both lengths.
    """
    whole = re.compile("|".join(map(_expression, globs)) or r"(?!)", re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def _expression(glob: str) -> str:
    (head, _), *others = parse_glob(glob)
    if not others:
        return head
    # Atomic groups prevent exponential backtracking.
    *middles, (tail, width) = others
    head += "".join(f"(?>.*?{middle})" for middle, _ in middles)
    return f"{head}.{{{width},}}+(?<={tail})"


def _glob(text: str) -> str:
    """Return a glob."""
    parse_glob(text)
    return text


def _secret_name(text: str) -> str:
    """Return a glob in lower case; one of public values keeps its "-"."""
    parse_glob(text.removeprefix("-"))
    return text.lower()


secret_names = parsers.split(_secret_name)

_one_glob = fields.of(_glob, str)
_globs = fields.several(_one_glob)
_globs_or_none = fields.several(_one_glob, none=True)

# An elicitation is a question itself, so it needs no approval.
_allow_or_deny = fields.choice(("allow", "deny"))


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A test of an argument.

    Attributes:
        path: Keys from the outermost one; "*" means every item of a list or object.
        value: The operand: a text, number or boolean; a tuple of them for "in", of globs for
            "glob", of normal paths for "under".
        negated: Whether each value must fail the test.
    """

    path: tuple[str, ...]
    test: Test
    value: Json = None
    negated: bool = False


def _parse_when(value: Json, place: str) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for key, wanted in fields.table(value, place).items():
        where = fields.below(place, key)
        found += _conditions(_path(key, where), wanted, where)
    return tuple(found)


def _path(key: str, place: str) -> tuple[str, ...]:
    steps = [""]
    for token in re.findall(r"\\[.\\]|.", key, re.DOTALL):
        if token == "\\":
            fields.fail(place, "has a backslash before a character other than a dot or a backslash")
        if token == ".":
            steps.append("")
        else:
            steps[-1] += token[-1]
    if not all(steps):
        fields.fail(place, "has an empty step; write a dot within a name as \\.")
    return tuple(steps)


def _conditions(
    path: tuple[str, ...], wanted: Json, place: str, *, negated: bool = False
) -> Iterator[Condition]:
    if not isinstance(wanted, Mapping):
        yield Condition(path=path, test="is", value=_scalar(wanted, place), negated=negated)
        return
    if negated and len(wanted) != 1:
        # Several tests could mean "neither" or "not both".
        fields.fail(place, f"must hold exactly one test, not {len(wanted)}")
    if not wanted:
        fields.fail(place, f"has no test. Known: {', '.join((*_TESTS, _NOT))}")
    for name, value in wanted.items():
        where = fields.below(place, name)
        if name == _NOT and not negated:
            yield from _conditions(path, value, where, negated=True)
            continue
        if name not in _TESTS:
            known = parsers.suggestion(name, (*_TESTS, _NOT))
            advice = 'A path with dots needs quotes, as in "a.b"'
            fields.fail(where, f"is no test of an argument. {known} {advice}")
        parsed = _TESTS[name](value, where)
        yield Condition(path=path, test=cast("Test", name), value=parsed, negated=negated)


def _scalar(value: Json, place: str, wanted: str = "a text, a number or a boolean") -> Json:
    if isinstance(value, list):
        fields.fail(place, "is a list; for one of several values, write { in = [...] }")
    if isinstance(value, str | bool):
        return value
    if not isinstance(value, int | float):
        fields.fail(place, f"must be {wanted}, not {fields.kind(value)}")
    if not math.isfinite(value):
        fields.fail(place, "must be a finite number")
    return value


def _options(value: Json, place: str) -> tuple[Json, ...]:
    if not isinstance(value, list):
        fields.fail(place, f"must be a list, not {fields.kind(value)}")
    if not value:
        fields.fail(place, "is an empty list, which matches nothing")
    return tuple(_scalar(item, f"{place}[{index}]") for index, item in enumerate(value, 1))


def _number(value: Json, place: str) -> Json:
    if isinstance(value, str | bool):
        fields.fail(place, f"must be a number, not {fields.kind(value)}")
    return _scalar(value, place, "a number")


_TESTS: Mapping[str, fields.Parse] = {
    "is": _scalar, "in": _options, "glob": _globs,
    "under": fields.several(fields.of(parsers.normal_root, str)), "lt": _number, "le": _number,
    "gt": _number, "ge": _number, "present": fields.flag,
}  # fmt: skip


def _digest(text: str) -> str:
    """Return "sha256:" and 64 hexadecimal digits."""
    problem = 'must be "sha256:" and 64 hexadecimal digits in small letters'
    return parsers.require_match(r"sha256:[0-9a-f]{64}", text, problem)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule; the first that matches a call decides.

    Attributes:
        name: Its name in decisions.
        action: The action for calls that match.
        servers, tools: Globs; one of each must match.
        effects: The effects of calls that it applies to; empty for all.
        when: Conditions that must all hold. If a path has several values, an "allow" rule needs
            all of them to pass, and any other rule needs one.
        reason: The reason that decisions show.
        digest: The tool's digest when the rule was made; the rule matches no other version.
            Empty for every version.
        place: Where it is defined, for errors and explanations.
    """

    name: str = fields.key(fields.line)
    action: Action = fields.key(fields.action)
    servers: tuple[str, ...] = fields.key(_globs, ("*",), called="server")
    tools: tuple[str, ...] = fields.key(_globs, ("*",), called="tool")
    effects: frozenset[Effect] = fields.key(
        fields.several(fields.effect, frozenset), frozenset(), called="effect"
    )
    when: tuple[Condition, ...] = fields.key(_parse_when, ())
    reason: str = fields.key(fields.line, "")
    digest: str = fields.key(fields.of(_digest, str), "")
    # A rule stays equal if another one is inserted before it.
    place: str = field(default="", compare=False)


def _rules(value: Json, place: str) -> tuple[Rule, ...]:
    rules = [
        fields.fill(Rule, item, where, place=where) for item, where in fields.tables(value, place)
    ]
    _check_names([(rule.name, rule.place) for rule in rules])
    _check_reach(rules)
    return tuple(rules)


def _check_names(named: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the place of each name. Raises if two places have one name."""
    seen: dict[str, str] = {}
    for name, place in named:
        if name in seen:
            other = seen[name].rpartition(" ")[2]
            fields.fail(f"{place}.name", f"is {name!r}, like the name of {other}; choose another")
        seen[name] = place
    return seen


def _check_reach(rules: Sequence[Rule]) -> None:
    """Refuse a rule that can never match because an earlier, less strict one covers it."""
    catching: list[Rule] = []
    for rule in rules:
        for earlier in catching:
            if STRICTNESS.index(rule.action) > STRICTNESS.index(earlier.action) and (
                _takes_all(earlier, rule)
            ):
                message = (
                    f"{rule.place} ({rule.name!r}) never applies: {earlier.name!r} before it "
                    "matches all of its calls, and the first match decides."
                )
                raise SettingsError(message, remedy=f"Move it in front of {earlier.name!r}.")
        if not rule.when and not rule.digest:
            catching.append(rule)


def _takes_all(first: Rule, second: Rule) -> bool:
    if first.effects and not (second.effects and second.effects <= first.effects):
        return False
    return all(
        any(covers(wide, narrow) for wide in wider)
        for wider, narrower in ((first.servers, second.servers), (first.tools, second.tools))
        for narrow in narrower
    )


def _by_glob(value: Json, place: str) -> list[tuple[str, Json, str]]:
    found: list[tuple[str, Json, str]] = []
    for glob, item in fields.table(value, place).items():
        where = fields.below(place, glob)
        _one_glob(glob, where)
        for earlier, _, _ in found:
            if covers(earlier, glob):
                problem = f"never applies: {earlier!r} before it matches the same names"
                fields.fail(where, f"{problem}, and the first match counts")
        found.append((glob, item, where))
    return found


def _fill_by_glob(shape: type, name: str) -> fields.Parse:
    return lambda value, place: tuple(
        fields.fill(shape, item, where, **{name: glob})
        for glob, item, where in _by_glob(value, place)
    )


@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """The policy for tools of a server; the first matching glob counts.

    Attributes:
        effect: Their effect; None to take the server's word if it is trusted.
        labels: Labels for flow rules, in addition to the server's.
    """

    tools: str
    effect: Effect | None = fields.key(fields.effect, None)
    labels: frozenset[str] = fields.key(fields.labels, frozenset())


@dataclass(frozen=True, kw_only=True)
class ServerPolicy:
    """The policy for servers; the first matching glob counts.

    Attributes:
        trust: Whether the bridge believes the server's annotations of its tools.
        start: Whether the bridge may start or contact it; None for the policy's `start`.
        labels: Labels of all its tools, for flow rules.
        tools: Policies of its tools.
        elicitation, sampling: The action for its questions; None for the policy's.
        pin: The changes of a tool that need approval: of schemas and annotations, or, with
            "full", of titles and descriptions, too.
    """

    servers: str
    trust: bool = fields.key(fields.flag, False)
    elicitation: Action | None = fields.key(_allow_or_deny, None)
    sampling: Action | None = fields.key(fields.action, None)
    start: Action | None = fields.key(fields.action, None)
    labels: frozenset[str] = fields.key(fields.labels, frozenset())
    tools: tuple[ToolPolicy, ...] = fields.key(_fill_by_glob(ToolPolicy, "tools"), ())
    pin: Literal["schema", "full"] = fields.key(fields.choice(("schema", "full")), "schema")


@dataclass(frozen=True, kw_only=True)
class FlowRule:
    """A rule for a call with some labels after calls with other labels.

    Attributes:
        name: Its name in decisions.
        action: The action for the later call.
        after: Labels that the earlier calls must have, together.
        to: Labels of the later call; it must have one of them.
        after_servers: Globs; a call to a matching server must have happened, too.
        to_servers: Globs of servers to which the later call also counts, whatever its labels.
        reason: The reason that decisions show.
    """

    name: str = fields.key(fields.line)
    action: Action = fields.key(fields.action)
    after: frozenset[str] = fields.key(fields.labels, frozenset())
    to: frozenset[str] = fields.key(fields.labels, frozenset())
    after_servers: tuple[str, ...] = fields.key(_globs, ())
    to_servers: tuple[str, ...] = fields.key(_globs, ())
    reason: str = fields.key(fields.line, "")


LETHAL = FlowRule(
    name="lethal-combination",
    action="ask",
    after=frozenset({UNTRUSTED_INPUT, PRIVATE_DATA}),
    to=frozenset({EXFILTRATION, SECRET}),
    reason="text that anybody could have written may steer where private data goes",
)
"""A default, unless the policy has a flow rule of this name."""


def _flows(value: Json, place: str) -> tuple[FlowRule, ...]:
    flows = {where: _flow(item, where) for item, where in fields.tables(value, place)}
    names = _check_names((rule.name, where) for where, rule in flows.items())
    return tuple(flows.values()) if LETHAL.name in names else (*flows.values(), LETHAL)


def _flow(value: Json, place: str) -> FlowRule:
    rule = fields.fill(FlowRule, value, place)
    after, to = rule.after or rule.after_servers, rule.to or rule.to_servers
    if rule.name == LETHAL.name:
        rule = replace(rule, reason=rule.reason or LETHAL.reason)
        if not after and not to:
            return replace(rule, after=LETHAL.after, to=LETHAL.to)
    if not after:
        fields.fail(place, "needs `after` or `after_servers`")
    if not to:
        fields.fail(place, "needs `to` or `to_servers`")
    return rule


def _per_minute(value: Json, place: str) -> tuple[tuple[str, int], ...]:
    """Return a table of globs to whole numbers."""
    parse = fields.whole(1_000_000)
    return tuple((glob, parse(number, where)) for glob, number, where in _by_glob(value, place))


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Budgets of calls; None for the limits of a run.

    Attributes:
        run_calls: Calls of one run.
        run_bytes: Bytes that the calls of one run return.
        server_calls: Calls to a server in one run.
        per_minute: Server globs and their calls per minute over all runs; the first match
            counts.
    """

    run_calls: int | None = fields.key(fields.whole(1_000_000_000), None)
    run_bytes: int | None = fields.key(fields.size(1), None)
    server_calls: int | None = fields.key(fields.whole(1_000_000_000), None)
    per_minute: tuple[tuple[str, int], ...] = fields.key(_per_minute, ())


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The personal data that tokens replace before it enters a sandbox.

    Attributes:
        detect: Names of detectors.
        servers: Globs of servers whose results are searched.
        reveal_to: Globs of servers that receive the data instead of its tokens.
    """

    detect: tuple[str, ...] = fields.key(fields.several(fields.choice(DETECTORS), none=True), ())
    servers: tuple[str, ...] = fields.key(_globs_or_none, ("*",))
    reveal_to: tuple[str, ...] = fields.key(_globs_or_none, ("*",))


_DEFAULTS: dict[DefaultFor, Action] = {
    "read": "allow",
    "write": "ask",
    "destructive": "ask",
    "untrusted": "ask",
}


def _defaults(value: Json, place: str) -> Mapping[DefaultFor, Action]:
    """Return a table of read, write, destructive and untrusted to actions."""
    parse = dict.fromkeys(get_args(DefaultFor), fields.action)
    return _DEFAULTS | cast("dict[DefaultFor, Action]", fields.record(value, place, parse))


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """A whole policy.

    Attributes:
        present: Whether the file has one. Otherwise every call is allowed and no server is
            trusted.
        defaults: The actions for calls without a matching rule, by effect.
        rules: Rules for calls; the first match decides.
        servers: Policies of servers.
        flows: Rules for calls after other calls.
        budgets: Budgets of calls.
        privacy: The personal data that tokens replace.
        skills: The action for an unreviewed saved function; "deny" disables saved functions.
        elicitation: The action for servers' questions to the user.
        sampling: The action for servers' requests to the user's model.
        start: The default for whether the bridge may start or contact a server.
        pin: Whether a tool needs approval again after its schemas or annotations change, and a
            server after its definition changes.
        path: The file that receives changes; None if there is no file.
    """

    present: bool = False
    defaults: Mapping[DefaultFor, Action] = fields.key(_defaults, default_factory=_DEFAULTS.copy)
    rules: tuple[Rule, ...] = fields.key(_rules, ())
    servers: tuple[ServerPolicy, ...] = fields.key(_fill_by_glob(ServerPolicy, "servers"), ())
    flows: tuple[FlowRule, ...] = fields.key(_flows, (LETHAL,), called="flow")
    budgets: Budgets = fields.key(fields.fill_with(Budgets), Budgets())
    privacy: Privacy = fields.key(fields.fill_with(Privacy), Privacy())
    skills: Action = fields.key(fields.action, "ask")
    elicitation: Action = fields.key(_allow_or_deny, "allow")
    sampling: Action = fields.key(fields.action, "allow")
    start: Action = fields.key(fields.action, "allow")
    pin: bool = fields.key(fields.flag, True)
    path: Path | None = None


def parse_policy(table: Json, place: str) -> PolicySpec:
    """Parse a `policy` table at `place` ("config.toml: policy"); None is no table."""
    if table is None:
        return PolicySpec()
    spec = fields.fill(PolicySpec, table, place)
    _check_labels(spec, place)
    # A table with only these keys does not restrict calls.
    present = not table or not table.keys() <= {"skills", "elicitation", "sampling"}
    return replace(spec, present=present)


def _check_labels(spec: PolicySpec, place: str) -> None:
    """Reject labels that no flow rule names: a misspelt label would protect nothing."""
    carried = {
        label: fields.below(f"{place}.servers", server.servers)
        for server in reversed(spec.servers)
        for labels in (server.labels, *(tool.labels for tool in server.tools))
        for label in labels
    }
    used = {label: rule.name for rule in reversed(spec.flows) for label in rule.after | rule.to}
    for label in sorted((carried.keys() ^ used.keys()) - set(LABELS)):
        if label in carried:
            where, others = carried[label], used
            problem = f"has the label {label!r}, which no flow rule names"
        else:
            where, others = f"{place}.flow", carried
            problem = f"has, in {used[label]!r}, the label {label!r}, which no server has"
        near = parsers.nearest(label, {*others, *LABELS})
        fields.fail(where, f"{problem} (did you mean {near}?)" if near else problem)
