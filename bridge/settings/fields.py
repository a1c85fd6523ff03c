"""The values of the tables of `config.toml`, each checked and with its place in every error."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args

from bridge.errors import SettingsError
from bridge.model import Action, Effect, Json
from bridge.settings import globs, parsers

_BARE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LABEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

Parse = Callable[[Json, str], Any]
"""A value and its place to what it means; raises `SettingsError`."""

Shape = TypeVar("Shape")


def fail(place: str, problem: str) -> NoReturn:
    """Refuse what stands at a place."""
    raise SettingsError(f"{place} {problem}{'' if problem.endswith('?') else '.'}")


def below(place: str, key: str) -> str:
    """Return the place of a key of a table, written as TOML would have it."""
    if _BARE.fullmatch(key):
        return f"{place}.{key}"
    cut = key if len(key) <= 80 else f"{key[:80]}..."
    return f"{place}.{json.dumps(cut, ensure_ascii=not cut.isprintable())}"


def table(value: Json, place: str) -> Mapping[str, Json]:
    """Return a table; an empty one where there is none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(place, f"must be a table, not {kind(value)}")
    return value


def record(value: Json, place: str, fields: Mapping[str, Parse], what: str) -> dict[str, Json]:
    """Return the parsed fields of a table that are given; other keys are a mistake.

    Args:
        what: What the table is, for errors ("a rule").
    """
    given = table(value, place)
    for key in given:
        if key not in fields:
            problem = f"is an unknown key of {what}. {parsers.suggestion(key, fields)}"
            fail(below(place, key), problem.rstrip("."))
    return {key: fields[key](value, below(place, key)) for key, value in given.items()}


def key(
    parse: Parse, default: object = dataclasses.MISSING, *, called: str = "", **more: Any
) -> Any:
    """Declare a field of a dataclass that `filled` fills from a table; required without a default.

    Args:
        called: The key, if it is not called like the field.
        more: As for `dataclasses.field`.
    """
    if default is not dataclasses.MISSING:
        more["default"] = default
    return dataclasses.field(metadata={"parse": parse, "key": called}, **more)


def keys(shape: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass that `filled` fills, by their keys in the table."""
    found = dataclasses.fields(cast("Any", shape))
    return {each.metadata["key"] or each.name: each for each in found if "key" in each.metadata}


def filled(shape: type[Shape], value: Json, place: str, what: str, /, **more: object) -> Shape:
    """Return a dataclass whose fields are filled from a table.

    Args:
        what: As for `record`.
        more: Fields that are in no table.
    """
    known = keys(shape)
    parse = {name: each.metadata["parse"] for name, each in known.items()}
    found = record(value, place, parse, what)
    for name, each in known.items():
        bare = each.default is each.default_factory is dataclasses.MISSING
        if bare and name not in found:
            fail(place, f"needs `{name}`")
    return shape(**{known[name].name: item for name, item in found.items()}, **more)


def named_tables(
    value: Json, place: str, what: str
) -> Iterator[tuple[str, Mapping[str, Json], str]]:
    """Return the tables of a table, if there is one: the name of each, the table, and its place."""
    name_of_all = place.rpartition(" ")[2]
    if value is None:
        return
    if not isinstance(value, Mapping):
        fail(place, f"must hold tables, such as [{name_of_all}.one]")
    for name, item in value.items():
        where = f"{place}.{name}"
        if not _LABEL.fullmatch(name):
            fail(where, f"is no name of a {what}: it has small letters, digits, - and _ only")
        if not isinstance(item, Mapping):
            fail(where, f"must be a table, [{name_of_all}.{name}]")
        yield name, item, where


def tables(value: Json, place: str) -> list[tuple[Json, str]]:
    """Return an array of tables, each with its place, counted from 1."""
    if not isinstance(value, list):
        last = place.rpartition(" ")[2]
        fail(place, f"must be an array of tables, each begun with [[{last}]], not {kind(value)}")
    return [(item, f"{place}[{index}]") for index, item in enumerate(value, 1)]


def kind(value: Json) -> str:
    """Return what TOML calls a value."""
    names: Mapping[type, str] = {
        bool: "a boolean",
        str: "a text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), "a date or time")


def flag(value: Json, place: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        fail(place, f"must be true or false, not {kind(value)}")
    return value


def line(value: Json, place: str) -> str:
    """Return one line, to be shown."""
    found = text(value, place)
    if not found:
        fail(place, "is empty")
    if not found.isprintable():
        fail(place, "holds a line break or another character that cannot be shown")
    return found


def text(value: Json, place: str) -> str:
    """Return a text without blanks around it, which may be empty."""
    if not isinstance(value, str) or "\0" in value:
        fail(place, f"must be a text, not {kind(value)}")
    return value.strip()


def entries(example: str) -> Callable[[Json, str], tuple[str, ...]]:
    """Return a parser of lists of texts, each once and none empty."""

    def parse(value: Json, place: str) -> tuple[str, ...]:
        """Return a list of texts."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            fail(place, f"must be a list of {example}")
        if any(not item.strip() or "\0" in item for item in value):
            fail(place, "has an entry that is empty or holds a NUL")
        return tuple(dict.fromkeys(value))

    return parse


def path(value: Json, place: str) -> Path:
    """Return a path with a leading ~ expanded; it must be absolute."""
    try:
        found = parsers.path(text(value, place))
    except ValueError as error:
        fail(place, str(error))
    if not found.is_absolute():
        fail(place, f"must be an absolute path (or begin with ~), not {str(found)!r:.200}")
    return found


def texts(value: Json, place: str) -> tuple[str, ...]:
    """Return one text, or several of a list, each once."""
    found = value if isinstance(value, list) else [value]
    for item in found:
        if not isinstance(item, str):
            fail(place, f"must be a text or a list of texts, not {kind(item)}")
    if not found:
        fail(place, "is an empty list, which nothing matches")
    return tuple(dict.fromkeys(found))


def glob(text: str, place: str) -> str:
    """Return a glob unchanged."""
    try:
        globs.parse(text)
    except ValueError as error:
        fail(place, f"is {text[:80]!r}, which {error}")
    return text


def glob_list(value: Json, place: str) -> tuple[str, ...]:
    """Return one glob, or several of a list."""
    return tuple(glob(text, place) for text in texts(value, place))


def globs_or_none(value: Json, place: str) -> tuple[str, ...]:
    """Return one glob, or several of a list; none if the list is empty."""
    return () if value == [] else glob_list(value, place)


def word(value: Json, place: str, known: Sequence[str]) -> str:
    """Return one of a few words."""
    if not isinstance(value, str):
        fail(place, f"must be one of {', '.join(known)}, not {kind(value)}")
    if value not in known:
        fail(place, f"is {value[:80]!r}. {parsers.suggestion(value, known)}".rstrip("."))
    return value


def action(value: Json, place: str) -> Action:
    """Return "allow", "ask" or "deny"."""
    return cast("Action", word(value, place, get_args(Action)))


def effect(value: Json, place: str) -> Effect:
    """Return "read", "write" or "destructive"."""
    return cast("Effect", word(value, place, get_args(Effect)))


def effects(value: Json, place: str) -> frozenset[Effect]:
    """Return one effect, or several of a list."""
    return frozenset(effect(text, place) for text in texts(value, place))


def label_set(value: Json, place: str) -> frozenset[str]:
    """Return one label, or several of a list; none if the list is empty."""
    if value == []:
        return frozenset()
    found = texts(value, place)
    for label in found:
        if not _LABEL.fullmatch(label):
            fail(place, f"has {label[:80]!r}; a label has small letters, digits, - and _ only")
    return frozenset(found)


def choice(known: Sequence[str]) -> Parse:
    """Return a parser of one of a few words."""

    def parse(value: Json, place: str) -> str:
        """Return one of a few words."""
        return word(value, place, known)

    return parse


def whole(most: int, least: int = 1) -> Parse:
    """Return a parser of whole numbers within bounds."""

    def parse(value: Json, place: str) -> int:
        """Return a whole number."""
        if isinstance(value, bool) or not isinstance(value, int):
            fail(place, f"must be a whole number, not {kind(value)}")
        if not least <= value <= most:
            fail(place, f"must be from {least} to {most:,}")
        return value

    return parse


def seconds(most: float) -> Parse:
    """Return a parser of numbers of seconds, from one."""

    def parse(value: Json, place: str) -> float:
        """Return a number of seconds, from 1."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= most:
            fail(place, f"must be a number of seconds from 1 to {most:g}")
        return float(value)

    return parse


def size(least: int, most: int = 1024**5) -> Parse:
    """Return a parser of numbers of bytes within bounds."""

    def parse(value: Json, place: str) -> int:
        """Return a size such as "50m", in bytes."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            fail(place, f'must be a size such as "50m", not {kind(value)}')
        written = str(value)[:80]
        try:
            found = parsers.parse_size(written)
        except ValueError as error:
            fail(place, f"is {written!r}, which {error}")
        if not least <= found <= most:
            fail(place, f"must be from {least:,} to {most:,} bytes")
        return found

    return parse


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question after the nearest of some words; empty if none is near."""
    near = parsers.nearest(word, known)
    return f" (did you mean {near}?)" if near else ""
