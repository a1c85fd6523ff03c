"""Learns the shape of tools' results as a JSON Schema, without storing any value. Pure.

A shape has types, names of fields and which of them are always present. An object whose keys look
like data (ids, dates, paths, addresses, tokens) is a map. `merge_shapes` is commutative,
associative and idempotent, so a shape does not depend on the order of calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import islice
from typing import NamedTuple, TypeVar

from bridge.guest.schema.schemas import as_list, as_mapping
from bridge.guest.schema.typetext import BLOB
from bridge.model import Json

T = TypeVar("T")

# A server's results have any size.
MAX_DEPTH = 6  # Recorded levels of nesting; of deeper objects and lists only the presence.
MAX_FIELDS = 40  # An object with more fields is a map: its keys are probably ids.
MAX_NODES = 400  # Values read in one result; other calls add the rest.
SAMPLED_ITEMS = 20  # Items read of one list. Most lists have items of one kind.


class Fields(NamedTuple):
    """The fields of the objects at one position."""

    named: Mapping[str, Shape]
    always: frozenset[str]
    other: Shape | None = None  # The shape below keys that are data; None without such keys.
    is_map: bool = False  # Whether all keys count as data, since there were too many.


class Shape(NamedTuple):
    """The shape of the values at one position; `plain` has JSON's names of scalar types."""

    plain: frozenset[str] = frozenset()
    blob: bool = False
    items: Shape | None = None
    fields: Fields | None = None


_PLAIN = ("null", "boolean", "integer", "number", "string")

NOTHING = Shape()  # The shape before any value.

_BARE = Fields({}, frozenset())

_TYPES: tuple[type, ...] = (type(None), bool, int, float, str)
_SCALARS = {t: Shape(plain=frozenset({n})) for t, n in zip(_TYPES, _PLAIN, strict=True)}


def shape_of(wire: Mapping[str, Json]) -> Shape:
    """Return the shape of one result, as `bridge.rpc.values.shape_value` returns it."""
    return _Look().shape_of(wire)


def outline(shape: Shape) -> object:
    """Return the kinds and the names of fields, which are equal for results of one shape."""
    if shape.fields is not None:
        return "object", frozenset(shape.fields.named)
    if shape.items is not None:
        return "list", None if shape.items == NOTHING else outline(shape.items)
    return shape.plain


class _Look:
    left = MAX_NODES

    def shape_of(self, wire: Mapping[str, Json], depth: int = 0) -> Shape:
        if "blocks" in wire:
            return Shape(
                items=merge_shapes(*(self.shape_of(b, 1) for b in wire["blocks"][:SAMPLED_ITEMS]))
            )
        if "blob" in wire:
            return Shape(blob=True)
        return self.shape(wire.get("json"), depth)

    def shape(self, value: Json, depth: int) -> Shape:
        self.left -= 1
        if (scalar := _SCALARS.get(type(value))) is not None:
            return scalar
        if isinstance(value, dict):
            return Shape(fields=_BARE if depth >= MAX_DEPTH else self._fields(value, depth + 1))
        if isinstance(value, list):
            some = value[:SAMPLED_ITEMS] if depth < MAX_DEPTH else ()
            shapes = (self.shape(item, depth + 1) for item in some if self.left > 0)
            return Shape(items=merge_shapes(*shapes))
        return NOTHING

    def _fields(self, value: Mapping[str, Json], depth: int) -> Fields:
        named: dict[str, Shape] = {}
        other: Shape | None = None
        for seen, (key, item) in enumerate(value.items()):
            # A name counts even after the bound on values: a missing one would seem optional.
            if seen > MAX_FIELDS and self.left <= 0:
                break
            shape = self.shape(item, depth) if self.left > 0 else NOTHING
            if is_field_name(key):
                named[key] = shape
            else:
                other = shape if other is None else merge_shapes(other, shape)
        return _limit_fields(Fields(named, frozenset(named), other))


def merge_shapes(*shapes: Shape) -> Shape:
    """Return the shape of all values that have one of these shapes."""
    return reduce(_both, shapes, NOTHING)


def _both(one: Shape, two: Shape) -> Shape:
    if one is two or two is NOTHING:
        return one
    if one is NOTHING:
        return two
    plain = one.plain | two.plain
    if "number" in plain:
        plain -= {"integer"}
    return Shape(
        plain=plain,
        blob=one.blob or two.blob,
        items=_either(one.items, two.items, _both),
        fields=_either(one.fields, two.fields, _both_fields),
    )


def _either(one: T | None, two: T | None, both: Callable[[T, T], T]) -> T | None:
    return both(one, two) if one and two else one or two


def _both_fields(one: Fields, two: Fields) -> Fields:
    named = dict(one.named)
    for name, shape in two.named.items():
        named[name] = _both(named[name], shape) if name in named else shape
    other = _either(one.other, two.other, _both)
    return _limit_fields(Fields(named, one.always & two.always, other, one.is_map or two.is_map))


def _limit_fields(fields: Fields) -> Fields:
    if not fields.named or (len(fields.named) <= MAX_FIELDS and not fields.is_map):
        return fields
    return Fields(
        {}, frozenset(), merge_shapes(fields.other or NOTHING, *fields.named.values()), True
    )


def prune_shape(shape: Shape, depth: int) -> Shape:
    if depth <= 0:
        items = None if shape.items is None else NOTHING
        return shape._replace(items=items, fields=None if shape.fields is None else _BARE)
    return _map_below(shape, lambda below: prune_shape(below, depth - 1))


def _map_below(shape: Shape, change: Callable[[Shape], Shape]) -> Shape:
    items, fields = shape.items, shape.fields
    if fields is not None:
        named = {name: change(below) for name, below in fields.named.items()}
        other = None if fields.other is None else change(fields.other)
        fields = fields._replace(named=named, other=other)
    return shape._replace(items=None if items is None else change(items), fields=fields)


def schema(shape: Shape) -> dict[str, Json]:
    branches: list[dict[str, Json]] = []
    if names := [name for name in _PLAIN if name in shape.plain]:
        branches.append({"type": names[0] if len(names) == 1 else names})
    if shape.blob:
        branches.append(dict(BLOB))
    if shape.items is not None:
        items = schema(shape.items)
        branches.append({"type": "array", "items": items} if items else {"type": "array"})
    if shape.fields is not None:
        branches.append(_object_schema(shape.fields))
    if len(branches) > 1:
        return {"anyOf": branches}
    return branches[0] if branches else {}


def _object_schema(fields: Fields) -> dict[str, Json]:
    document: dict[str, Json] = {"type": "object"}
    if fields.named:
        document["properties"] = {name: schema(fields.named[name]) for name in sorted(fields.named)}
    elif fields.other is not None and not fields.is_map:
        # Means nothing to readers; for `from_schema` it means that the object is no map yet.
        document["properties"] = {}
    if fields.always:
        document["required"] = sorted(fields.always)
    if fields.other is not None:
        document["additionalProperties"] = schema(fields.other)
    return document


def shown(shape: Shape) -> dict[str, Json]:
    """Return a shape as a JSON Schema for readers, without the type of fields always null."""
    return schema(_map_below(shape, _without_null))


def _without_null(shape: Shape) -> Shape:
    return NOTHING if shape == _SCALARS[type(None)] else _map_below(shape, _without_null)


def from_schema(document: Json, depth: int = 0) -> Shape:
    """Return the shape that `schema` wrote; for any other value, a shape within the same bounds."""
    if not isinstance(document, dict):
        return NOTHING
    branches = document.get("anyOf")
    if isinstance(branches, list):
        return merge_shapes(*(_branch(branch, depth) for branch in branches[:8]))
    return _branch(document, depth)


def _branch(document: Json, depth: int) -> Shape:
    if not isinstance(document, dict):
        return NOTHING
    if document == BLOB:
        return Shape(blob=True)
    kind = document.get("type")
    if kind == "array":
        items = document.get("items") if depth < MAX_DEPTH else None
        return Shape(items=from_schema(items, depth + 1))
    if kind == "object":
        return Shape(fields=_fields_from(document, depth) if depth < MAX_DEPTH else _BARE)
    names = kind if isinstance(kind, list) else [kind]
    return merge_shapes(*(Shape(plain=frozenset({name})) for name in _PLAIN if name in names))


def _fields_from(document: Mapping[str, Json], depth: int) -> Fields:
    properties, required = document.get("properties"), document.get("required")
    names = filter(is_field_name, as_mapping(properties))
    # One more than an object may have makes it a map.
    some = islice(names, MAX_FIELDS + 1)
    named = {name: from_schema(as_mapping(properties)[name], depth + 1) for name in some}
    always = frozenset(name for name in as_list(required) if isinstance(name, str)) & named.keys()
    other = document.get("additionalProperties")
    return _limit_fields(
        Fields(
            named,
            always,
            from_schema(other, depth + 1) if isinstance(other, dict) else None,
            isinstance(other, dict) and "properties" not in document,
        )
    )


_NAME = re.compile(r"[$@_]{0,2}[^\W\d_](?:[\w-]|:(?=[^\W\d_]))*")
"""A word, with an optional mark in front. Paths, addresses and sentences do not match: they have
dots, slashes or spaces."""

_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{8,}")
_RUNS = re.compile(r"[A-Z]+")
_WORDS = re.compile(r"[A-Z]*[^\WA-Z\d_]+|[A-Z]+")

_TOKEN = re.compile(
    r"(?i:sk|pk|rk|gh[opsur]|github_pat|glpat|xox[a-z]|hf|npm|pypi|key|tok|sess|whsec|shp[a-z]{2})"
    r"[-_](?=.*[A-Z\d])[\w-]{16,}"
    r"|(?:AKIA|ASIA|AIza|eyJ|ya29)\w{8,}"
)
"""Prefixes of well-known services' tokens."""


def is_field_name(key: str) -> bool:
    if not 0 < len(key) <= 48 or _HEXADECIMAL.fullmatch(key):
        return False
    if not _NAME.fullmatch(key) or _TOKEN.match(key):
        return False
    if len(re.findall(r"\d+", key)) > 2 or sum(map(str.isdigit, key)) > 4:
        return False
    runs = len(_RUNS.findall(key))
    if len(key) >= 12 and runs > 1 and runs * 4 > len(key) and not key.isupper():
        # Each run of upper-case letters begins a part: `X-Rate-Limit`, `API_KEY_ID`.
        return all(len(_RUNS.findall(part)) <= 1 for part in re.split(r"[-_:]+", key))
    return all(len(word) <= 24 for word in _WORDS.findall(key))  # Longer words are tokens.
