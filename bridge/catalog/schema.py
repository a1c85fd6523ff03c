"""JSON Schema as short, Python-like type text, and as a list of parameters.

Owns the reading of schemas. Schemas come from servers: they may be wrong, cyclic, exponential or
not schemas at all, and everything here accepts any JSON value and answers in bounded time with
bounded text. It describes; it does not validate: where the text has to be coarse it gets wider
("dict", "Any"), never narrower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from bridge.catalog.prose import one_line
from bridge.catalog.pytypes import (
    MAX_MEMBERS,
    literal_text,
    literal_type,
    split_union,
    union,
)
from bridge.guest.schemas import as_list, as_mapping, pointed_at
from bridge.guest.typetext import BLOB
from bridge.model import Json

MAX_TYPE_CHARS = 160
"""Longest type text: about two lines of a signature. Longer ones are redone more coarsely."""

MAX_DETAIL = 4
"""Levels of nesting written out at most; beyond, a model needs the full schema anyway."""

MAX_PARAMETERS = 256
"""Parameters read of one tool; the largest tools seen in the wild have some sixty."""

_MAX_NODES = 200
"""Schemas visited for one text, however the `$ref`s multiply."""

_MAX_NODES_IN_ALL = 5_000
"""Likewise for all parameters of one tool. Those that are left then are shown without a type."""

_NAMES_PER_NODE = 64
"""Properties and required names that count as one more schema visited."""

_MAX_REF_HOPS = 16
_MAX_PROPERTIES = 12

_PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list",
    "object": "dict",
}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One argument of a tool.

    Attributes:
        schema: Its own schema, `$ref`s unresolved.
        default: As Python text; empty when there is none worth showing.
    """

    name: str
    required: bool
    type: str = "Any"
    default: str = ""
    description: str = ""
    schema: Json = field(default=None, compare=False)


def type_text(schema: Json, *, root: Json = None, budget: int = MAX_TYPE_CHARS) -> str:
    """Return what values of `schema` look like, in at most `budget` characters if that can be.

    Args:
        schema: Any JSON value.
        root: The document that `$ref`s point into; `schema` itself if left out.
        budget: Detail is dropped level by level until the text fits. The coarsest text, a union
            of plain type names, may be longer.
    """
    return _type_text(schema, schema if root is None else root, budget)[0]


def _type_text(schema: Json, root: Json, budget: int) -> tuple[str, int]:
    """Return the text, and how many schemas were visited for it."""
    text, nodes = "Any", 0
    for detail in range(MAX_DETAIL, -1, -1):
        writer = _Writer(root=root)
        text = writer.write(schema, detail)
        nodes += writer.nodes
        if len(text) <= budget:
            break
    return text, nodes


def parameters(schema: Json, *, budget: int = MAX_TYPE_CHARS) -> tuple[Parameter, ...]:
    """Return the arguments that an input schema describes: required first, then schema order."""
    properties, required = _arguments(schema)
    found: list[Parameter] = []
    nodes = 0
    for name, own in properties.items():
        kind, default, description = "Any", "", ""
        if nodes <= _MAX_NODES_IN_ALL:
            default, description, visited = _annotations(own, schema)
            kind, more = _type_text(own, schema, budget)
            nodes += visited + more
        found.append(
            Parameter(
                name=name,
                required=name in required,
                type=kind,
                default=default,
                description=description,
                schema=own,
            )
        )
    return tuple(sorted(found, key=lambda parameter: not parameter.required))


def schema_order(schema: Json) -> tuple[str, ...]:
    """Return the arguments' names in the order in which the schema has them."""
    return tuple(_arguments(schema)[0])


def is_open(schema: Json) -> bool:
    """Whether an input schema says that it takes arguments it does not name."""
    merged = _Writer(root=schema).flatten(schema)
    return bool(merged.get("patternProperties")) or (
        merged.get("additionalProperties") not in (None, False)
    )


def example_value(parameter: Parameter, root: Json) -> str:
    """Return Python text of a value that could stand for `parameter` in an example call."""
    if parameter.default:
        return parameter.default
    text = type_text(parameter.schema, root=root, budget=MAX_TYPE_CHARS).split(" | ", 1)[0]
    if text.startswith("Literal["):
        inner = _Writer(root=root).literals(parameter.schema)
        return inner[0] if inner else "..."
    for prefix, example in (("str", '"..."'), ("int", "1"), ("float", "1.0"), ("bool", "True")):
        if text == prefix:
            return example
    if text.startswith(("list", "tuple")):
        return "[...]"
    return "{...}" if text.startswith(("dict", "{")) else "..."


@dataclass
class _Writer:
    """Writes one text, counting the schemas it visits."""

    root: Json
    nodes: int = 0

    def write(self, schema: Json, detail: int, active: tuple[int, ...] = ()) -> str:
        """Return the text of `schema` with `detail` more levels written out."""
        self.nodes += 1
        if schema is False:
            return "Never"
        if schema == BLOB:
            return "Blob"
        if not isinstance(schema, Mapping) or self.nodes > _MAX_NODES or id(schema) in active:
            return "Any"
        schema, seen = self._resolve(schema, active)
        if seen is None:
            return "Any"
        if "allOf" in schema:
            schema = self.flatten(schema)
        text = self._members(schema, detail, seen)
        # OpenAPI's way of saying "or null".
        if schema.get("nullable") is True and text not in ("Any", "None"):
            parts = split_union(text)
            text = text if "None" in parts else f"{text} | None"
        return text

    def flatten(self, schema: Json) -> dict[str, Json]:
        """Return one object schema for `schema`, its `$ref`, `allOf` and branches merged in.

        What only some branches of `anyOf` or `oneOf` require is optional here.
        """
        merged: dict[str, Json] = {}
        self._merge(schema, merged, 0, ())
        return merged

    def literals(self, schema: Json) -> tuple[str, ...]:
        """Return the values that `enum` or `const` allows, those that can be written shortly."""
        resolved, _ = self._resolve(as_mapping(schema), ())
        values = [resolved["const"]] if "const" in resolved else as_list(resolved.get("enum"))
        return tuple(text for text in map(literal_text, values[:MAX_MEMBERS]) if text)

    def _resolve(
        self, schema: Mapping[str, Json], active: tuple[int, ...]
    ) -> tuple[Mapping[str, Json], tuple[int, ...] | None]:
        """Follow `$ref`; None in place of the trail means that it leads round in a circle."""
        trail = (*active, id(schema))
        for _ in range(_MAX_REF_HOPS):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema, trail
            target = pointed_at(reference, self.root)[1]
            if not isinstance(target, Mapping) or id(target) in trail:
                return {}, None
            schema = target
            trail = (*trail, id(target))
        return {}, None

    def _merge(
        self, schema: Json, into: dict[str, Json], depth: int, active: tuple[int, ...]
    ) -> None:
        self.nodes += 1
        if not isinstance(schema, Mapping) or depth > _MAX_REF_HOPS or self.nodes > _MAX_NODES:
            return
        if id(schema) in active:
            return
        trail = (*active, id(schema))
        for key, value in schema.items():
            if key == "properties":
                self._add_properties(value, into)
            elif key == "required":
                self._add_required(_strings(value), into)
            elif key not in ("allOf", "anyOf", "oneOf", "$ref"):
                into.setdefault(key, value)
        for part in as_list(schema.get("allOf"))[:MAX_MEMBERS]:
            self._merge(part, into, depth + 1, trail)
        for key in ("anyOf", "oneOf"):
            if as_list(schema.get(key)):
                self._merge_branches(key, schema, into, depth, trail)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._merge(pointed_at(reference, self.root)[1], into, depth + 1, trail)

    def _merge_branches(
        self,
        key: str,
        schema: Mapping[str, Json],
        into: dict[str, Json],
        depth: int,
        active: tuple[int, ...],
    ) -> None:
        branches = []
        for branch in as_list(schema[key])[:MAX_MEMBERS]:
            merged: dict[str, Json] = {}
            self._merge(branch, merged, depth + 1, active)
            branches.append(merged)
        if not any("properties" in branch for branch in branches):
            # Not alternatives of an object: leave them to be written as a union.
            into.setdefault(key, schema[key])
            return
        everywhere = set.intersection(*(set(_strings(b.get("required"))) for b in branches))
        for branch in branches:
            self._add_properties(branch.get("properties"), into)
        self._add_required(sorted(everywhere), into)

    def _add_properties(self, properties: Json, into: dict[str, Json]) -> None:
        known = into.setdefault("properties", {})
        found = as_mapping(properties)
        self.nodes += len(found) // _NAMES_PER_NODE
        for name, own in found.items():
            known.setdefault(name, own)

    def _add_required(self, names: list[str], into: dict[str, Json]) -> None:
        self.nodes += len(names) // _NAMES_PER_NODE
        into.setdefault("required", []).extend(names)

    def _members(self, schema: Mapping[str, Json], detail: int, active: tuple[int, ...]) -> str:
        if "const" in schema:
            return literal_type([schema["const"]], detail)
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return literal_type(schema["enum"], detail)
        for key in ("anyOf", "oneOf"):
            branches = as_list(schema.get(key))
            if branches:
                shown = branches[:MAX_MEMBERS]
                texts = [self.write(branch, detail, active) for branch in shown]
                return union(texts if len(shown) == len(branches) else [*texts, "Any"])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return union([self._plain(kind, schema, detail, active) for kind in kinds[:8]])
        return self._plain(kinds, schema, detail, active)

    def _plain(
        self, kind: Json, schema: Mapping[str, Json], detail: int, active: tuple[int, ...]
    ) -> str:
        if kind is None:
            if "properties" in schema or "additionalProperties" in schema:
                kind = "object"
            elif "items" in schema or "prefixItems" in schema:
                kind = "array"
        if detail > 0 and kind == "array":
            return self._array(schema, detail, active)
        if detail > 0 and kind == "object":
            return self._object(schema, detail, active)
        return _PLAIN.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _array(self, schema: Mapping[str, Json], detail: int, active: tuple[int, ...]) -> str:
        prefix = as_list(schema.get("prefixItems"))
        if 0 < len(prefix) <= MAX_MEMBERS:
            return f"tuple[{', '.join(self.write(item, detail - 1, active) for item in prefix)}]"
        item = self.write(schema.get("items", True), detail - 1, active)
        return "list" if item in ("Any", "Never") else f"list[{item}]"

    def _object(self, schema: Mapping[str, Json], detail: int, active: tuple[int, ...]) -> str:
        properties = as_mapping(schema.get("properties"))
        if not properties:
            values = schema.get("additionalProperties")
            if not isinstance(values, Mapping) or not values:
                return "dict"
            value = self.write(values, detail - 1, active)
            return "dict" if value == "Any" else f"dict[str, {value}]"
        required = frozenset(_strings(schema.get("required")))
        shown = []
        for name, own in list(properties.items())[:_MAX_PROPERTIES]:
            key = literal_text(name)
            if not key:
                continue
            mark = "" if name in required else "?"
            shown.append(f"{key}{mark}: {self.write(own, detail - 1, active)}")
        more = ", ..." if len(properties) > len(shown) else ""
        return f"{{{', '.join(shown)}{more}}}" if shown else "dict"


def _arguments(schema: Json) -> tuple[dict[str, Json], frozenset[str]]:
    """Return an input schema's arguments in its order, and which of them are required.

    A name that is required and described nowhere is an argument too, at the end: the guest counts
    it as one, and a call without it would be refused.
    """
    merged = _Writer(root=schema).flatten(schema)
    required = _strings(merged.get("required"))
    properties = dict(as_mapping(merged.get("properties")))
    for name in required:
        properties.setdefault(name, {})
    return dict(islice(properties.items(), MAX_PARAMETERS)), frozenset(required)


def _annotations(schema: Json, root: Json) -> tuple[str, str, int]:
    """Return a parameter's default and description, and how many schemas were visited for them.

    A `$ref`'s own come before its target's.
    """
    own = as_mapping(schema)
    writer = _Writer(root=root)
    target = writer.flatten(own)
    default = ""
    for holder in (own, target):
        if "default" in holder:
            default = literal_text(holder["default"])
            break
    for holder in (own, target):
        text = holder.get("description")
        if isinstance(text, str) and text.strip():
            return default, one_line(text, MAX_TYPE_CHARS), writer.nodes
    return default, "", writer.nodes


def _strings(value: Json) -> list[str]:
    return [item for item in as_list(value) if isinstance(item, str)]
