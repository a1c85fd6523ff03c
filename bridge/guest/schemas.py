"""How any JSON value is read as a JSON Schema: local references and what types are meant.

Owns what validation and conversion both need of a schema. Nothing here raises, and every walk has
a bound: schemas come from servers.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, FrozenSet, List, Set, Tuple

MAX_POINTER_CHARS = 512
"""Of a `$ref`; what is longer leads nowhere."""

MAX_LEAVES = 64
"""Schemas that one stands for, once references and combinations are taken apart."""

MAX_DEPTH = 48
"""Nesting of values compared."""

ANYTHING = "anything"
"""A type that stands for all of them."""


_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_KINDS = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
    (dict, "object"),
)
_PARTS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def pointed_at(reference: Any, root: Any) -> Tuple[bool, Any]:
    """Return whether a local JSON pointer leads somewhere, and to what."""
    if not isinstance(reference, str) or len(reference) > MAX_POINTER_CHARS:
        return False, None
    if reference[:1] != "#":
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
    """Return a list as it is, and of anything else none."""
    return value if isinstance(value, list) else []


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return an object as it is, and of anything else an empty one."""
    return value if isinstance(value, Mapping) else {}


def leaves(schema: Any, root: Any) -> List[Mapping[str, Any]]:
    """Return the schemas that one stands for, `$ref`, `allOf`, `anyOf` and `oneOf` taken apart.

    What cannot be followed, or is too much, is there as a schema that says nothing.
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
    """Return the types that the schemas name; with `ANYTHING` if one of them names none."""
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
                wanted.update(map(_type_of, values[:MAX_LEAVES]))
                wanted.update((ANYTHING,) if len(values) > MAX_LEAVES else ())
            elif _PARTS.isdisjoint(schema):
                wanted.add(ANYTHING)
    return frozenset(wanted or (ANYTHING,))


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return ANYTHING


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two JSON values are equal; unlike Python's, True is not 1."""
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
