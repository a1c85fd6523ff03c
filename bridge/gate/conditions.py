"""The conditions of rules on the arguments of a call. Pure.

The restricted program writes the arguments, so a test may be undecided. An undecided condition
fails in a rule that allows, and holds in other rules. A test cannot decide on:

- a value of another kind, such as "true" or 1 for a boolean: many servers convert them;
- a text that holds JSON, unless the tool's schema says that it is a text;
- the values beyond the limit `WORK`.

Lists are searched item by item, with "*" or without. A rule that allows needs a match in each item,
and fails without the path. Other rules need one item.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.model import Json, Tool
from bridge.settings.parsers import holds_path, normal_path
from bridge.settings.policy import Condition, matcher

WORK = 20_000  # Values per decision, which take tens of milliseconds.
CHARS_PER_WORK = 256  # Characters that take as long to compare as a value takes to find.

_SCALARS = (bool, int, float)

Judge = Callable[[Json], bool | None]
"""Takes a value that is not missing, null or a list; returns whether it passes, None: undecided."""


class ConditionMark:
    """A value that cannot be tested."""

    def __init__(self, said: str) -> None:
        self.said = said


MISSING = ConditionMark("is missing")
UNCLEAR = ConditionMark("is a text or a number where something inside it was to be looked at")
HOLDS_JSON = ConditionMark("is a text that holds JSON, which servers may read as what it holds")
TOO_MUCH = ConditionMark("holds more than is looked at for one decision")


@dataclass
class Work:
    left: int = WORK  # Values that a decision may still test.


def is_short_text(value: Json) -> bool:
    return type(value) is str and len(value) < CHARS_PER_WORK and value[:1] not in "[{ \t\r\n"


def texts_wanted(condition: Condition) -> tuple[str, frozenset[str]] | None:
    options = (condition.value,) if condition.test == "is" else condition.value
    if condition.negated or len(condition.path) != 1 or condition.test not in ("is", "in"):
        return None
    texts = frozenset(option for option in options if type(option) is str)
    return (condition.path[0], texts) if texts and condition.path[0] != "*" else None


class ConditionCheck:
    """A compiled condition. With `every`, all values must pass, and an undecided value fails."""

    def __init__(self, condition: Condition, *, every: bool) -> None:
        self.condition = condition
        self._every = every
        self._path, self._place = condition.path, ".".join(condition.path)
        self._negated = condition.negated
        self._presence = condition.value if condition.test == "present" else None
        searches = condition.test == "glob" and any("?" in glob for glob in condition.value)
        self._chars = 16 if searches else CHARS_PER_WORK
        self._judge = judge_of(condition)

    def holds(self, arguments: Mapping[str, Json], tool: Tool | None, work: Work) -> bool:
        return self.weigh(arguments, tool, work)[0]

    def weigh(
        self, arguments: Mapping[str, Json], tool: Tool | None, work: Work
    ) -> tuple[bool, Json, bool | None]:
        """Return whether the condition holds, the value that decided (or the last), and its
        verdict."""
        value: Json = MISSING
        verdict: bool | None = False
        for value in self._values(arguments, tool, work):
            verdict = self._verdict(value)
            holds = (not self._every) if verdict is None else verdict is not self._negated
            if holds is not self._every:
                return holds, value, verdict
        return self._every, value, verdict

    def explain(self, arguments: Mapping[str, Json], tool: Tool | None) -> str:
        _, value, verdict = self.weigh(arguments, tool, Work())
        test = f"{self.condition.test} {show(self.condition.value)}"
        if isinstance(value, ConditionMark):
            return f"{self._place} {value.said}"
        return f"{self._place} is {show(value)}, which {_VERDICTS[verdict]} `{test}`"

    def doubt(self, arguments: Mapping[str, Json], tool: Tool | None) -> str:
        """Return why the condition is undecided, without the value; empty if it is decided."""
        _, value, verdict = self.weigh(arguments, tool, Work())
        if verdict is not None:
            return ""
        if isinstance(value, ConditionMark):
            return f"{self._place} {value.said}"
        kind = _KINDS.get(type(value), "something")
        return f"{self._place} is {kind} that the test `{self.condition.test}` cannot judge"

    def _verdict(self, value: Json) -> bool | None:
        if value is UNCLEAR or value is HOLDS_JSON or value is TOO_MUCH:
            return None
        if self._presence is not None:
            return (value is not MISSING) is self._presence
        if value is MISSING or value is None:
            # A program may send null for a missing argument.
            return False
        return self._judge(value)

    def _values(
        self, arguments: Mapping[str, Json], tool: Tool | None, work: Work
    ) -> Iterator[Json]:
        """Yield the values at the path, or a mark for a missing one."""
        path, end = self._path, len(self._path)
        # With the depth in the path and the name of the argument.
        waiting: list[tuple[Json, int, str | None]] = [(arguments, 0, None)]
        while waiting:
            value, at, name = waiting.pop()
            items: Sequence[Json]
            if isinstance(value, list | tuple) and not (at == end and self._presence is not None):
                items = value
                at += at < end and path[at] == "*"
                names: Sequence[str | None] = ()
            elif at == end or not isinstance(value, Mapping):
                yield self._leaf(value, at == end, name, tool, work)
                continue
            elif path[at] == "*":
                names = tuple(value) if at == 0 else ()
                items, at = tuple(value.values()), at + 1
            else:
                found = value.get(path[at], MISSING)
                names = (path[at],) if at == 0 else ()
                items, at = (found,), at + 1
            work.left -= len(items)
            if work.left < 0:
                yield TOO_MUCH
                return
            if not items:
                yield MISSING
            done = at == end and not names
            for index, item in enumerate(items):
                if done and (type(item) in _SCALARS or is_short_text(item)):
                    # The path ends at a plain value.
                    yield item
                else:
                    waiting.append((item, at, names[index] if names else None))

    def _leaf(
        self, value: Json, whole: bool, name: str | None, tool: Tool | None, work: Work
    ) -> Json:
        if not whole:
            return MISSING if value is None or value is MISSING else UNCLEAR
        if isinstance(value, str) and self._presence is None:
            work.left -= len(value) // self._chars
            if work.left < 0:
                return TOO_MUCH
            if name is not None and _holds_json(value) and not _declared_text(tool, name):
                return HOLDS_JSON
        return value


def _holds_json(text: str) -> bool:
    """Return whether a server may read a text as a JSON list or object."""
    if not re.match(r"[ \t\r\n]*[\[{]", text):
        return False
    if len(text) > 64 * 1024:
        return True
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _declared_text(tool: Tool | None, name: str) -> bool:
    schema: Json = None if tool is None else tool.input_schema
    for key in ("properties", name, "type"):
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    return bool(schema == "string")


def judge_of(condition: Condition) -> Judge:
    wanted = condition.value
    match condition.test:
        case "is":
            return _one_of((wanted,))
        case "in":
            return _one_of(wanted)
        case "glob":
            return _on_texts(matcher(*wanted))
        case "under":
            return _on_texts(_below(wanted))
        case "lt" | "le" | "gt" | "ge" as test:
            compare = getattr(operator, test)
            return lambda value: compare(value, wanted) if _is_number(value) else None
        case "present":
            return lambda value: bool(wanted)


def _one_of(options: Sequence[Json]) -> Judge:
    # By kind, because True equals 1 in Python.
    of_kind: dict[type, set[Json]] = {}
    for option in options:
        for kind in (int, float) if type(option) in (int, float) else (type(option),):
            of_kind.setdefault(kind, set()).add(option)

    def judge(value: Json) -> bool | None:
        known = of_kind.get(type(value))
        if known is None or (type(value) is float and not math.isfinite(value)):
            return None
        return value in known

    return judge


def _on_texts(test: Callable[[str], bool | None]) -> Judge:
    return lambda value: test(value) if type(value) is str else None


def _below(roots: Sequence[str]) -> Callable[[str], bool | None]:
    def judge(text: str) -> bool | None:
        path = normal_path(text)
        if path is None:
            return None
        found = [holds_path(root, path) for root in roots]
        if True in found:
            return True
        return None if None in found else False

    return judge


def _is_number(value: Json) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


_VERDICTS = {True: "passes", False: "does not pass", None: "cannot be judged by"}
_KINDS = {bool: "a boolean", str: "a text", int: "a number", float: "a number", dict: "an object"}


def show(value: Json) -> str:
    """Return a value on one line of limited length."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        shown = ["a list" if isinstance(item, list) else show(item) for item in value[:3]]
        more = ["..."] if len(value) > 3 else []
        return f"[{', '.join([*shown, *more])}]"
    if isinstance(value, str) and len(value) > 60:
        value = f"{value[:60]}..."
    if isinstance(value, str | bool) or value is None:
        return json.dumps(value)
    if type(value) is int and abs(value) >= 10**60:
        return "a number of very many digits"
    return repr(value)[:60]
