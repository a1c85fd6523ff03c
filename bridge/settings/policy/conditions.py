"""What a rule says of arguments: the `when` of a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast, get_args

from bridge.model import Json
from bridge.settings import fields, lexical
from bridge.settings.policy.shapes import Condition, Test

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
