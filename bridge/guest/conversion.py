"""What a Python value most likely means as a tool's argument.

Owns the conversions that lose nothing and that the schema asks for: a set where a list is wanted, a
path or a date where text is. Never turns text into numbers or numbers into text: which was meant,
the program's author has to say. What cannot be converted stays as it is, for whoever refuses it.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import KeysView, Mapping, ValuesView

from bridge.guest.placeholders import Unknown
from bridge.guest.schemas import ANYTHING, leaves, wanted_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, List, Tuple

MAX_DEPTH = 48
"""Nesting of values converted; what is deeper is sent as it is, or refused by whoever sends it."""

MAX_STEPS = 50_000
"""Values looked at in one argument; a list of a million numbers needs none of this."""

_PLAIN = frozenset({str, bool, type(None)})

_ISO = frozenset({("datetime", "datetime"), ("datetime", "date"), ("datetime", "time")})
"""Their `isoformat` is what schemas call date-time, date and time."""

_LISTS = (set, frozenset, range, KeysView, ValuesView)


def convert(value: Any, schema: Any, root: Any) -> Any:
    """Return `value` as the JSON value that it means under `schema`; itself where nothing does."""
    try:
        if _is_plain(value):
            return value
        return _Converter(root).convert(value, schema, 0)
    except Exception:
        # Whatever the value's own methods do: it is then refused for what it is.
        return value


def _is_plain(value: Any) -> bool:
    """Whether there is nothing to convert; a float may have to become an integer."""
    kind = type(value)
    if kind in _PLAIN or kind is int:
        return True
    if isinstance(value, dict):
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, list) and all(map(_is_plain, value))


class _Converter:
    """Converts one argument, counting the work."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.left = MAX_STEPS
        # By schema: the schemas that it stands for, and the types that they name. Keeps the schema
        # itself too, so that nobody else gets its id.
        self._read: Dict[int, Tuple[Any, List[Mapping[str, Any]], FrozenSet[str]]] = {}

    def convert(self, value: Any, schema: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN or kind is int or isinstance(value, Unknown):
            return value
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH:
            return value
        known = self._read.get(id(schema))
        if known is None:
            found = leaves(schema, self.root)
            known = self._read[id(schema)] = (schema, found, wanted_types(found))
        _, found, wanted = known
        if kind is float:
            return _whole(value, wanted)
        value = _unwrapped(value, wanted)
        kind = type(value)
        if kind is float:
            return _whole(value, wanted)
        if isinstance(value, Mapping):
            return self._mapping(value, found, depth)
        if isinstance(value, (list, tuple)):
            return self._list(value, found, depth)
        return value

    def _mapping(
        self, value: Mapping[Any, Any], found: List[Mapping[str, Any]], depth: int
    ) -> Dict[Any, Any]:
        plain = {}
        for key, item in value.items():
            if isinstance(key, enum.Enum) and isinstance(key.value, str):
                key = key.value
            if type(item) in _PLAIN:
                plain[key] = item
                continue
            own = []
            for schema in found:
                properties = schema.get("properties")
                if isinstance(properties, Mapping) and key in properties:
                    own.append(properties[key])
                elif "additionalProperties" in schema:
                    own.append(schema["additionalProperties"])
            plain[key] = self.convert(item, _either(own), depth + 1)
        return plain

    def _list(self, value: Any, found: List[Mapping[str, Any]], depth: int) -> List[Any]:
        plain = []
        # Mostly the same schema for every item: do not take it apart anew.
        items = _either([schema["items"] for schema in found if "items" in schema])
        prefixes = [p for p in (schema.get("prefixItems") for schema in found) if p]
        for index, item in enumerate(value):
            if type(item) in _PLAIN:
                plain.append(item)
                continue
            own = [p[index] for p in prefixes if isinstance(p, list) and index < len(p)]
            plain.append(self.convert(item, _either(own) if own else items, depth + 1))
        return plain


def _either(schemas: List[Any]) -> Any:
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": schemas} if schemas else True


def _whole(value: float, wanted: FrozenSet[str]) -> Any:
    """Return 3 for 3.0 where only an integer will do: some readers tell them apart."""
    if "integer" in wanted and "number" not in wanted and value.is_integer():
        return int(value)
    return value


def _unwrapped(value: Any, wanted: FrozenSet[str]) -> Any:
    """Return what a value of one of Python's richer types holds, as one of JSON's."""
    kind = type(value)
    if kind in (list, dict, tuple):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    anything = ANYTHING in wanted
    if isinstance(value, _LISTS) and (anything or "array" in wanted):
        return _ordered(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields") and "array" not in wanted:
        fields: Any = value
        return fields._asdict() if "object" in wanted else value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if hasattr(kind, "model_dump") and (anything or "object" in wanted):
        return _dumped(value)
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


def _dumped(model: Any) -> Any:
    # The other mode looks at what it finds, which a placeholder takes amiss; see `held`.
    plan = "bridge.guest.held" in sys.modules
    return model.model_dump(mode="python" if plan else "json")


def _ordered(value: Any) -> List[Any]:
    """Return the items as a list; of a set in the same order on every run, if they have one."""
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    return list(value)


def _decimal(value: Any, wanted: FrozenSet[str]) -> Any:
    """Return a decimal as text where text is wanted, or as a number if that says the same."""
    if "string" in wanted:
        return str(value)
    if not value.is_finite():
        return value
    if value == value.to_integral_value() and abs(value) < 2**53:
        return int(value)
    if wanted.isdisjoint(("number", ANYTHING)):
        return value
    number = float(value)
    return number if type(value)(repr(number)) == value else value
