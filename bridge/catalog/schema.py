"""Turns JSON Schemas into short, Python-like type texts and into lists of parameters.

Servers' schemas may be wrong, cyclic, exponential or no schemas at all: every function accepts any
JSON value and returns bounded text in bounded time. A text that has to be short becomes wider
("dict", "Any"), never narrower. Does not validate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from bridge.catalog.prose import one_line
from bridge.guest.schema.parameters import Parameter as GuestParameter
from bridge.guest.schema.parameters import read_parameters
from bridge.guest.schema.schemas import as_list, as_mapping, leaves, pointed_at
from bridge.guest.schema.typetext import BLOB
from bridge.guest.schema.validation import filled
from bridge.model import Json

MAX_TYPE_CHARS = 160
"""Longest type text: about two lines of a signature. A longer one is written with less detail."""

MAX_DETAIL = 4
"""Levels of nesting that are written out; deeper, a model needs the full schema anyway."""

MAX_PARAMETERS = 256
"""Parameters read of one tool; the largest tools seen in the wild have some sixty."""

_MAX_NODES = 200  # Schemas visited for one text, following `$ref`s.

_MAX_NODES_IN_ALL = 5_000
"""Schemas visited for all parameters of one tool. Later parameters have no type."""

_MAX_PROPERTIES = 12

MAX_LITERAL_CHARS = 40  # Longest default, enum or const value that is written out.
MAX_MEMBERS = 12  # Values of a literal, or members of a union, that are written out.
_MAX_VALUES = 400  # Values read to find their types.

_EXACT_INTEGER = 2**63

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
    """One parameter of a tool.

    Attributes:
        schema: Its own schema, `$ref`s unresolved.
        default: As Python text; empty without a short one.
    """

    name: str
    required: bool
    type: str = "Any"
    default: str = ""
    description: str = ""
    schema: Json = field(default=None, compare=False)


def type_text(schema: Json, *, root: Json = None, budget: int = MAX_TYPE_CHARS) -> str:
    """Return the type of `schema`'s values as text, if possible in `budget` characters.

    Args:
        schema: Any JSON value.
        root: The document that `$ref`s point into; `schema` itself if left out.
        budget: Detail is dropped level by level until the text fits. The coarsest text, a union
            of plain type names, may be longer.
    """
    return _type_text(schema, schema if root is None else root, budget)[0]


def _type_text(schema: Json, root: Json, budget: int, *, argument: bool = False) -> tuple[str, int]:
    text, nodes = "Any", 0
    for detail in range(MAX_DETAIL, -1, -1):
        writer = _Writer(root=root, argument=argument)
        text = writer.write(schema, detail)
        nodes += writer.nodes
        if len(text) <= budget:
            break
    return text, nodes


def parameters(schema: Json, *, budget: int = MAX_TYPE_CHARS) -> tuple[Parameter, ...]:
    """Return the parameters of an input schema, in its order, as programs spell them."""
    found: list[Parameter] = []
    nodes = 0
    for one in _arguments(schema):
        kind, default, description = "Any", "", ""
        if nodes <= _MAX_NODES_IN_ALL:
            default, description = _annotations(one.schema, schema)
            kind, visited = _type_text(one.schema, schema, budget, argument=True)
            nodes += visited
        found.append(
            Parameter(
                name=one.alias,
                required=one.required,
                type=kind,
                default=default,
                description=description,
                schema=one.schema,
            )
        )
    return tuple(found)


def schema_order(schema: Json) -> tuple[str, ...]:
    """Return the parameters' names in the schema's order."""
    return tuple(one.alias for one in _arguments(schema))


def is_open(schema: Json) -> bool:
    """Return whether an input schema accepts properties that it does not name."""
    return any(
        bool(part.get("patternProperties")) or part.get("additionalProperties") not in (None, False)
        for part in leaves(schema, schema)
    )


def example_value(parameter: Parameter, root: Json) -> str:
    """Return Python text of a value for `parameter` in an example call."""
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
    """Writes one text, counting the schemas it visits.

    Attributes:
        argument: Whether the values are sent, so that a key with a default may be left out.
    """

    root: Json
    argument: bool = False
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
        text = self._members(schema, detail, seen)
        # OpenAPI's way of saying "or null".
        if schema.get("nullable") is True and text not in ("Any", "None"):
            parts = split_union(text)
            text = text if "None" in parts else f"{text} | None"
        return text

    def literals(self, schema: Json) -> tuple[str, ...]:
        """Return the values that `enum` or `const` allows, those that can be written shortly."""
        resolved, _ = self._resolve(as_mapping(schema), ())
        values = [resolved["const"]] if "const" in resolved else as_list(resolved.get("enum"))
        return tuple(text for text in map(literal_text, values[:MAX_MEMBERS]) if text)

    def _resolve(
        self, schema: Mapping[str, Json], active: tuple[int, ...]
    ) -> tuple[Mapping[str, Json], tuple[int, ...] | None]:
        """Follow `$ref`s; the returned trail is None if they form a cycle."""
        trail = (*active, id(schema))
        for _ in range(16):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema, trail
            target = pointed_at(reference, self.root)[1]
            if not isinstance(target, Mapping) or id(target) in trail:
                return {}, None
            schema = target
            trail = (*trail, id(target))
        return {}, None

    def _members(self, schema: Mapping[str, Json], detail: int, active: tuple[int, ...]) -> str:
        if "const" in schema:
            return literal_type([schema["const"]], detail)
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return literal_type(schema["enum"], detail)
        parts = as_list(schema.get("allOf"))[:MAX_MEMBERS]
        if parts:
            return self._all_of([schema, *parts], detail, active)
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

    def _all_of(self, parts: list[Json], detail: int, active: tuple[int, ...]) -> str:
        """Return one object type for several objects; else the common type, or "Any"."""
        found = [self._resolve(as_mapping(part), active)[0] for part in parts]
        objects = [part for part in found if as_mapping(part.get("properties"))]
        if objects:
            required = [name for part in objects for name in _strings(part.get("required"))]
            named: dict[str, Json] = {}
            for part in objects:
                # As many as are shown, and one more that adds ", ...".
                for name, own in islice(part["properties"].items(), _MAX_PROPERTIES + 1):
                    named.setdefault(name, own)
            merged = {"type": "object", "properties": named, "required": required}
            return self._plain("object", merged, detail, active)
        texts = {self.write(part, detail, active) for part in parts[1:]}
        return texts.pop() if len(texts) == 1 else "Any"

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
        required = set(_strings(schema.get("required")))
        if required and self.argument:
            required -= filled({}, {**schema, "anyOf": None, "oneOf": None}, self.root).keys()
        shown = []
        for name, own in islice(properties.items(), _MAX_PROPERTIES):
            key = literal_text(name)
            if not key:
                continue
            mark = "" if name in required else "?"
            shown.append(f"{key}{mark}: {self.write(own, detail - 1, active)}")
        more = ", ..." if len(properties) > len(shown) else ""
        return f"{{{', '.join(shown)}{more}}}" if shown else "dict"


def _arguments(schema: Json) -> list[GuestParameter]:
    """Return an input schema's parameters in its order, as the guest reads them."""
    return read_parameters(schema)[0][:MAX_PARAMETERS]


def _annotations(schema: Json, root: Json) -> tuple[str, str]:
    """Return a parameter's default and description; a `$ref`'s own come before its target's."""
    holders = [as_mapping(schema), *leaves(schema, root)]
    defaults = [literal_text(holder["default"]) for holder in holders if "default" in holder]
    texts = [holder.get("description") for holder in holders]
    said = [text for text in texts if isinstance(text, str) and text.strip()]
    return next(iter(defaults), ""), one_line(said[0], MAX_TYPE_CHARS) if said else ""


def _strings(value: Json) -> list[str]:
    return [item for item in as_list(value)[:MAX_PARAMETERS] if isinstance(item, str)]


# --- text of values and of unions ----------------------------------------------------------------


def literal_text(value: Json) -> str:
    """Return a scalar or an empty container as Python text; empty if it is anything longer."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        # Larger ones may be past the interpreter's limit on digits, and tell a reader nothing.
        return repr(value) if -_EXACT_INTEGER < value < _EXACT_INTEGER else ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        text = repr(value) if len(value) <= MAX_LITERAL_CHARS else ""
        return text if len(text) <= MAX_LITERAL_CHARS + 2 else ""
    if isinstance(value, (list, dict)) and not value:
        return repr(value)
    return ""


def literal_type(values: list[Json], detail: int) -> str:
    """Return the type of a value that is one of `values`; without detail, only of what kind."""
    texts = list(dict.fromkeys(map(literal_text, values[:MAX_MEMBERS])))
    if detail == 0 or not all(texts) or any(isinstance(v, (float, list, dict)) for v in values):
        return union([_kind_of(value) for value in values[:_MAX_VALUES]])
    if texts == ["None"]:
        return "None"
    more = ", ..." if len(values) > MAX_MEMBERS else ""
    return f"Literal[{', '.join(texts)}{more}]"


def _kind_of(value: Json) -> str:
    if value is None:
        return "None"
    for kind in (bool, int, float, str, list, dict):
        if isinstance(value, kind):
            return kind.__name__
    return "Any"


def union(texts: list[str]) -> str:
    """Return the union of types, each once, None last."""
    parts: dict[str, None] = {}
    for text in texts:
        parts.update(dict.fromkeys(split_union(text)))
    parts.pop("Never", None)
    if "Any" in parts:
        return "Any"
    none = parts.pop("None", 0) is None
    return " | ".join([*parts, "None"] if none else list(parts)) or "Never"


def split_union(text: str) -> list[str]:
    """Return a union's parts; a bar in quotes or brackets belongs to its part."""
    if " | " not in text:
        return [text]
    parts, depth, start, quote, index = [], 0, 0, "", 0
    while index < len(text):
        char = text[index]
        if quote:
            index += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif not depth and text.startswith(" | ", index):
            parts.append(text[start:index])
            index += 2
            start = index + 1
        index += 1
    return [*parts, text[start:]]
