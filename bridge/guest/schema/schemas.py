"""Reads any JSON value as a JSON Schema: follows local references, finds types, converts values.

Nothing here raises, and every walk has a bound: schemas come from servers.
"""

from __future__ import annotations

import enum
import os
import sys
from collections import deque
from collections.abc import Generator, KeysView, Mapping, ValuesView
from contextlib import suppress

from bridge.guest.protocol.placeholders import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, FrozenSet, List, Set, Tuple, TypeGuard

# A server sends the schemas, and their references may lead anywhere.
MAX_LEAVES = 64  # Schemas that one stands for, once references and combinations are taken apart.
MAX_DEPTH = 48  # Nesting of schemas and of values.
ANYTHING = "anything"  # A type that stands for all of them.

_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_PARTS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def pointed_at(reference: Any, root: Any) -> Tuple[bool, Any]:
    """Return whether a local JSON pointer has a target, and the target."""
    if not isinstance(reference, str) or len(reference) > 512 or reference[:1] != "#":
        return False, None
    pointer = reference[1:]
    if "%" in pointer:
        from urllib.parse import unquote  # few have any, and this is not small

        pointer = unquote(pointer)
    if pointer[:1] not in ("", "/"):
        return False, None
    node = root
    for part in pointer.split("/")[1:]:
        token = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and token in node:
            node = node[token]
        elif isinstance(node, list) and token.isascii() and token.isdigit():
            # Longer ones are past any list, and past what `int` takes.
            if len(token) > 6 or int(token) >= len(node):
                return False, None
            node = node[int(token)]
        else:
            return False, None
    return True, node


def as_list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def leaves(schema: Any, root: Any) -> List[Mapping[str, Any]]:
    """Return the schemas behind one: its references and the branches of its combinations.

    A schema that cannot be followed, or exceeds the bound, is represented by an empty schema.
    """
    found: List[Mapping[str, Any]] = []
    queue = [schema]
    seen: Set[int] = set()
    while queue and len(seen) < MAX_LEAVES:
        node = queue.pop()
        if not isinstance(node, Mapping):
            found.append({})
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        found.append(node)
        for key in ("allOf", "anyOf", "oneOf"):
            parts = node.get(key)
            if isinstance(parts, list):
                queue += reversed(parts[:MAX_LEAVES])
        if "$ref" in node:
            queue.append(pointed_at(node["$ref"], root)[1])
    if queue:
        found.append({})
    return found


def wanted_types(found: List[Mapping[str, Any]]) -> FrozenSet[str]:
    """Return the types that the schemas name; includes `ANYTHING` if one of them names none."""
    wanted: Set[str] = set()
    for schema in found:
        kind = schema.get("type")
        if isinstance(kind, str):
            wanted.add(kind if kind in _TYPES else ANYTHING)
        elif isinstance(kind, list):
            wanted.update(one if one in _TYPES else ANYTHING for one in kind[:MAX_LEAVES])
        elif "properties" in schema:
            wanted.add("object")
        elif "items" in schema or "prefixItems" in schema:
            wanted.add("array")
        else:
            values = schema.get("enum", [schema["const"]] if "const" in schema else None)
            if isinstance(values, list) and values:
                some = values[:MAX_LEAVES]
                wanted.update(kind for kind in _TYPES for one in some if fits_type(one, kind))
                wanted.update((ANYTHING,) if len(values) > MAX_LEAVES else ())
            elif _PARTS.isdisjoint(schema):
                wanted.add(ANYTHING)
    return frozenset(wanted or (ANYTHING,))


_CLASSES: Mapping[str, Any] = {
    "string": str,
    "boolean": bool,
    "array": (list, tuple),
    "object": Mapping,
}


def fits_type(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return is_number(value) and (kind == "number" or value == value // 1)
    return isinstance(value, _CLASSES[kind]) if kind in _CLASSES else value is None


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number in JSON, unlike True."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether two JSON values are equal; unlike in Python, True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if depth > MAX_DEPTH:
        return True
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(
            same(item, other[index], depth + 1) for index, item in enumerate(one)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(
            key in other and same(item, other[key], depth + 1) for key, item in one.items()
        )
    return bool(one == other)


# Conversions lose nothing, and the schema asks for them: a set where a list is wanted, a path or a
# date where text is. Text is parsed as JSON only where the schema takes no text. Other values are
# returned unchanged, and validation refuses them.

_PLAIN = frozenset({str, bool, type(None), int})

_ISO = frozenset({("datetime", "datetime"), ("datetime", "date"), ("datetime", "time")})
"""Their `isoformat` is what schemas call date-time, date and time."""

_SETS = (set, frozenset)
_LISTS = (*_SETS, range, deque, KeysView, ValuesView, Generator, map, filter, zip, enumerate)

_ANY = frozenset((ANYTHING,))


def convert(value: Any, schema: Any, root: Any) -> Any:
    """Return the JSON value that `value` means under `schema`; `value` itself if there is none."""
    try:
        if type(value) is str:
            return _parse_text(value, leaves(schema, root))
        if _is_plain(value):
            return value
        return _convert_value(value, wanted_types(leaves(schema, root)), 0)
    except Exception:
        # The value's own methods may raise anything; validation then refuses the value.
        return value


def _parse_text(text: str, found: List[Mapping[str, Any]]) -> Any:
    wanted = wanted_types(found)
    if ANYTHING in wanted:
        return text
    if "string" in wanted:
        free = any("enum" not in leaf for leaf in found if "string" in wanted_types([leaf]))
        choices = [] if free else [one for leaf in found for one in as_list(leaf.get("enum"))]
        same = [c for c in choices if isinstance(c, str) and c.casefold() == text.casefold()]
        return same[0] if len(same) == 1 else text
    from bridge.guest.protocol.json_text import decoder  # few texts are data

    bare = text.strip()
    try:
        value = decoder()(bare.lower() if bare in ("True", "False", "None") else bare)
    except ValueError:
        return text
    return value if any(fits_type(value, kind) for kind in wanted) else text


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if isinstance(value, dict):
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, list) and all(map(_is_plain, value))


def _convert_value(value: Any, wanted: FrozenSet[str], depth: int) -> Any:
    if type(value) in _PLAIN or isinstance(value, Unknown) or depth > MAX_DEPTH:
        return value
    value = _unwrap(value, wanted)
    if type(value) is float:
        # Some readers tell 3.0 and 3 apart.
        whole = "integer" in wanted and "number" not in wanted and value.is_integer()
        return int(value) if whole else value
    if isinstance(value, Mapping):
        return {
            key.value if isinstance(key, enum.Enum) else key: _convert_value(item, _ANY, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_convert_value(item, _ANY, depth + 1) for item in value]
    return value


def _unwrap(value: Any, wanted: FrozenSet[str]) -> Any:
    kind = type(value)
    if kind in (list, dict, tuple, float):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    anything = ANYTHING in wanted
    if isinstance(value, _LISTS) and (anything or "array" in wanted):
        items = list(value)
        if isinstance(value, _SETS):
            # A set has the same order in every run, if its items have one.
            with suppress(TypeError):
                items.sort()
        return items
    if isinstance(value, tuple) and hasattr(kind, "_fields") and "array" not in wanted:
        fields: Any = value
        return fields._asdict() if "object" in wanted else value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if hasattr(kind, "model_dump") and (anything or "object" in wanted):
        # The mode "json" looks at the fields, which stops the program at a placeholder.
        plan = "bridge.guest.api.held_results" in sys.modules
        return value.model_dump(mode="python" if plan else "json")
    if isinstance(value, os.PathLike) and (anything or "string" in wanted):
        path = os.fspath(value)
        return path if isinstance(path, str) else value
    origins = {(base.__module__, base.__name__) for base in kind.__mro__}
    if not origins.isdisjoint(_ISO):
        return value.isoformat() if anything or "string" in wanted else value
    if ("uuid", "UUID") in origins:
        return str(value) if anything or "string" in wanted else value
    if ("decimal", "Decimal") in origins:
        return _decimal(value, wanted)
    if hasattr(kind, "dtype") and hasattr(kind, "tolist"):
        # numpy's scalars and arrays: the list of a scalar is its value.
        return value.tolist()
    return value


def _decimal(value: Any, wanted: FrozenSet[str]) -> Any:
    if "string" in wanted:
        return str(value)
    if not value.is_finite():
        return value
    if value == value.to_integral_value() and abs(value) < 2**53:
        return int(value)
    if wanted.isdisjoint(("number", ANYTHING)):
        return value
    number = float(value)
    if ANYTHING in wanted:
        # A price keeps its last zero.
        return number if repr(number) == str(value) else str(value)
    return number if type(value)(repr(number)) == value else value
