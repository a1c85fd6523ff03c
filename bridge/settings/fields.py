"""Parses the tables of `config.toml`. Each error names the place of its value.

`parsers` has functions that parse a text; `of` adapts them to a value in the file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args

from bridge.errors import SettingsError
from bridge.model import Action, Effect, Json
from bridge.settings import parsers

_BARE = re.compile(r"[A-Za-z0-9_-]{1,80}")

Parse = Callable[[Json, str], Any]
"""Parses a value; takes the value and its place, and raises `SettingsError`."""

Shape = TypeVar("Shape")


def fail(place: str, problem: str) -> NoReturn:
    raise SettingsError(f"{place} {problem}{'' if problem.endswith('?') else '.'}")


def below(place: str, key: str) -> str:
    """Return the place of a key within a table, in TOML's notation."""
    if _BARE.fullmatch(key):
        return f"{place}.{key}"
    cut = key if len(key) <= 80 else f"{key[:80]}..."
    return f"{place}.{json.dumps(cut, ensure_ascii=not cut.isprintable())}"


def table(value: Json, place: str) -> Mapping[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(place, f"must be a table, not {kind(value)}")
    return value


def record(value: Json, place: str, fields: Mapping[str, Parse]) -> dict[str, Json]:
    """Return the parsed fields of a table. An unknown key is an error."""
    given = table(value, place)
    for key in given:
        if key not in fields:
            problem = f"is an unknown key. {parsers.suggestion(key, fields)}"
            fail(below(place, key), problem.rstrip("."))
    return {key: fields[key](value, below(place, key)) for key, value in given.items()}


def key(
    parse: Parse, default: object = dataclasses.MISSING, *, called: str = "", **more: Any
) -> Any:
    """Declare a field of a dataclass that `fill` fills. Required unless it has a default.

    Args:
        called: The key in the table, if it differs from the field's name.
        more: Further arguments of `dataclasses.field`.
    """
    if default is not dataclasses.MISSING:
        more["default"] = default
    return dataclasses.field(metadata={"parse": parse, "key": called}, **more)


def keys(shape: type) -> dict[str, dataclasses.Field[Any]]:
    found = dataclasses.fields(cast("Any", shape))
    return {each.metadata["key"] or each.name: each for each in found if "key" in each.metadata}


def fill(shape: type[Shape], value: Json, place: str, /, **more: object) -> Shape:
    """Build a dataclass from a table. `more` are fields that do not come from the table."""
    known = keys(shape)
    found = record(value, place, {name: each.metadata["parse"] for name, each in known.items()})
    for name, each in known.items():
        bare = each.default is each.default_factory is dataclasses.MISSING
        if bare and name not in found:
            fail(place, f"needs `{name}`")
    return shape(**{known[name].name: item for name, item in found.items()}, **more)


def fill_with(shape: type) -> Parse:
    return lambda value, place: fill(shape, value, place)


def named_tables(value: Json, place: str) -> Iterator[tuple[str, Mapping[str, Json], str]]:
    for name, item in table(value, place).items():
        where = below(place, name)
        parse_text(parsers.label, name, where)
        yield name, table(item, where), where


def tables(value: Json, place: str) -> list[tuple[Json, str]]:
    if not isinstance(value, list):
        last = place.rpartition(" ")[2]
        fail(place, f"must be an array of tables, each begun with [[{last}]], not {kind(value)}")
    return [(item, f"{place}[{index}]") for index, item in enumerate(value, 1)]


_KINDS: Mapping[type, str] = {
    bool: "a boolean",
    str: "a text",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def kind(value: Json) -> str:
    return _KINDS.get(type(value), "a date or time")


def parse_text(parse: Callable[[str], Any], text: str, place: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        # An address may contain a login, even without a host.
        shown = re.sub("(?<=://).*[@:][^/?]*|(?<=password=)[^&]*", "", text)
        # Cut before it is quoted, so that the quotation ends.
        problem = f"{shown[:200]!r} {error}"
    fail(f"{place}:", problem)


def of(parse: Callable[[str], Any], *kinds: type, wanted: str = "") -> Parse:
    """Return a parser for values of these types; `wanted` describes them in errors."""
    wanted = wanted or " or ".join({**_KINDS, int: "a whole number"}[each] for each in kinds)

    @functools.wraps(parse)
    def parse_value(value: Json, place: str) -> Any:
        if type(value) not in kinds or (isinstance(value, str) and "\0" in value):
            given = "one with a NUL" if type(value) in kinds else kind(value)
            fail(place, f"must be {wanted}, not {given}")
        return parse_text(parse, str(value), place)

    return parse_value


def several(
    item: Parse, collect: Callable[[Iterable[Any]], Any] = tuple, *, none: bool = False
) -> Parse:
    """Return a parser for one value or a list of distinct ones. `none` allows an empty list."""

    def parse(value: Json, place: str) -> Any:
        """Return one, or several of a list."""
        found = value if isinstance(value, list) else [value]
        if not found and not none:
            fail(place, "is an empty list, which nothing matches")
        return collect(dict.fromkeys(item(each, place) for each in found))

    return parse


def flag(value: Json, place: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        fail(place, f"must be true or false, not {kind(value)}")
    return value


def choice(known: Any) -> Parse:
    return of(parsers.choice(known), str, wanted=f"one of {', '.join(get_args(known) or known)}")


def whole(most: int, least: int = 1) -> Parse:
    return of(parsers.integer(least, most), int)


def seconds(most: float) -> Parse:
    return of(parsers.number("seconds", 1, most), int, float, wanted="a number")


def size(least: int, most: int = 1024**5) -> Parse:
    return of(parsers.size(least, most), str, int, wanted='a size such as "50m"')


line = of(parsers.line, str)
text = of(parsers.text, str)
path: Callable[[Json, str], Path] = of(parsers.whole_path, str)
action = choice(Action)
effect = choice(Effect)
labels = several(of(parsers.label, str), frozenset, none=True)
