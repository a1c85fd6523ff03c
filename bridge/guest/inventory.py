"""What a session holds, told without running any code of the program's.

Owns which names are told of and how the size of a value is found: exactly for plain data as far as
a bounded number of objects goes, extended to the rest of it, and by what arrays say of themselves.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MAX_NAMES = 40
"""Told of; the rest is counted."""

MAX_NAME_CHARS = 200
MAX_LOOKED_AT = 2_000
"""Names whose values are measured: those first made."""

MAX_OBJECTS = 300
"""Objects of one value that are measured; a larger one is estimated from them."""

_FLAT = (int, float, complex, str, bytes, bytearray, bool, type(None), range, memoryview)
_ARRAYS = ("numpy", "pandas", "polars", "pyarrow")

UNKNOWN = -1
"""Stands for a size that nobody can tell."""


def inventory(names: Dict[str, Any]) -> Tuple[List[List[Any]], int]:
    """Return name, type and size of what there is, the largest first, and how many names more.

    Modules are left out: they come back with an import.
    """
    found: List[List[Any]] = []
    for name, value in list(names.items()):
        if type(name) is not str or issubclass(type(value), types.ModuleType):
            continue
        size = size_of(value) if len(found) < MAX_LOOKED_AT else UNKNOWN
        found.append([name[:MAX_NAME_CHARS], _kind(value), size])
    found.sort(key=lambda entry: -entry[2])
    return found[:MAX_NAMES], max(0, len(found) - MAX_NAMES)


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes, and what it consists of."""
    seen = {id(value)}
    queue: List[Tuple[Any, float]] = [(value, 1.0)]
    total, looked = 0.0, 0
    while queue and looked < MAX_OBJECTS:
        item, weight = queue.pop()
        looked += 1
        own = _own_size(item)
        if own is None:
            if item is value:
                return UNKNOWN
            continue
        total += own * weight
        parts = _parts(item)
        if not parts:
            continue
        # A few of many stand for all of them.
        step = max(1, len(parts) * 4 // MAX_OBJECTS)
        sample = parts[::step]
        share = weight * len(parts) / len(sample)
        for part in sample:
            if id(part) not in seen:
                seen.add(id(part))
                queue.append((part, share))
    return int(total)


def _own_size(value: Any) -> Optional[int]:
    kind = type(value)
    if kind in _FLAT or kind in (list, tuple, dict, set, frozenset):
        return sys.getsizeof(value)
    if str(kind.__module__).partition(".")[0] in _ARRAYS:
        return _array_size(value)
    if issubclass(kind, (types.FunctionType, type)):
        return 0
    # What its class says of all its instances: asking the value itself may run the program's code,
    # and `object`'s own answer is nonsense for generators.
    return int(type.__getattribute__(kind, "__basicsize__"))


def _array_size(value: Any) -> Optional[int]:
    """Return what a library's object says that it takes; those libraries are no program's code."""
    try:
        if hasattr(value, "memory_usage"):
            usage = value.memory_usage(index=True)
            return int(usage if isinstance(usage, (int, float)) else usage.sum())
        if hasattr(value, "estimated_size"):
            return int(value.estimated_size())
        return int(value.nbytes)
    except Exception:
        return None


def _parts(value: Any) -> List[Any]:
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return list(value)
    if kind is dict:
        return [part for pair in value.items() for part in pair]
    if issubclass(kind, (type, types.FunctionType)):
        return []
    held = getattr(type(value), "__dict__", None)
    if held is not None and str(kind.__module__) == "__main__":
        try:
            own = object.__getattribute__(value, "__dict__")
        except Exception:
            return []
        return list(own.values()) if type(own) is dict else []
    return []


def _kind(value: Any) -> str:
    try:
        name = type.__getattribute__(type(value), "__qualname__")
        return str(name)[:MAX_NAME_CHARS]
    except Exception:
        return "object"
