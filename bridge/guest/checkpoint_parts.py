"""Parts of what a checkpoint is made of: names by which things are imported, and small values.

Owns what can be told of one value without its surroundings; what holds other values of a session
is `checkpoint_values`'.
"""

from __future__ import annotations

import sys
import types

from bridge.guest import checkpoint_steps as steps
from bridge.guest.checkpoint_code import NotKept, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

    How = Callable[[Any], Any]

TYPING = frozenset(("typing", "types", "typing_extensions"))

MAX_ANNOTATION_CHARS = 200
"""Of one that is kept as text."""


# --- what is where --------------------------------------------------------------------------------


def home_of(value: Any) -> Optional[Tuple[str, str]]:
    """Return module and name under which a function or class can be imported; None if it cannot."""
    module = getattr(value, "__module__", None) or "builtins"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:
        return None
    return (module, name) if found is value else None


def module_name(value: Any) -> Optional[str]:
    """Return the name by which a module can be imported; None if it cannot."""
    name = getattr(value, "__name__", None)
    if sys.modules.get(str(name)) is value or str(name).startswith(("mcp.servers", "mcp.runtime")):
        return None if name == "__main__" else name
    return next((n for n, other in list(sys.modules.items()) if other is value), None)


def reference(value: Any) -> Any:
    home = home_of(value)
    if home is None:
        raise NotKept("%s cannot be imported" % getattr(value, "__qualname__", "it"))
    if not steps.may_be_inside(*home):
        message = "it holds %s.%s, which is kept under a name of its own only"
        raise NotKept(message % home)
    return (steps.imported, home)


def as_it_is(value: Any) -> Any:
    """Have a value written as pickle does it; the types that it names come here again."""
    return NotImplemented


def refusing(words: str) -> How:
    def refuse(value: Any) -> Any:
        raise NotKept("it is or holds %s" % words)

    return refuse


def is_a(kind: Any, module: str, name: str) -> bool:
    known = getattr(sys.modules.get(module), name, None)
    return isinstance(known, type) and issubclass(kind, known)


def first_with(kind: Any, *names: str) -> Any:
    """Return the class that defines the first of some attributes."""
    for base in kind.__mro__:
        if any(name in base.__dict__ for name in names):
            return base
    return object


# --- parts ----------------------------------------------------------------------------------------


def full_cells(cells: Any) -> List[Tuple[Any, Any]]:
    """Return the cells that hold something, and what."""
    full = []
    for cell in cells:
        try:
            full.append((cell, cell.cell_contents))
        except ValueError:
            continue
    return full


_KINDS = ((property, "property"), (staticmethod, "staticmethod"), (classmethod, "classmethod"))


def descriptor(value: Any) -> Any:
    name = next(name for kind, name in _KINDS if isinstance(value, kind))
    if name == "property":
        parts = (value.fget, value.fset, value.fdel, value.__doc__)
        return (steps.described, (name, parts))
    return (steps.described, (name, (value.__func__,)))


def special(kind: Any) -> Optional[How]:
    name, module = kind.__name__, kind.__module__
    if module == "functools" and name == "_lru_cache_wrapper":
        return _remembering
    if module == "functools" and name == "cached_property":
        return lambda v: (steps.described, (name, (v.func, v.attrname)))
    if module == "zoneinfo" and name == "ZoneInfo":
        return _zone
    if module in TYPING:
        return _typing
    return None


def _remembering(value: Any) -> Any:
    if home_of(value) is not None:
        return reference(value)
    options = value.cache_parameters()
    return (steps.remembering, (value.__wrapped__, options["maxsize"], options["typed"]))


def _zone(value: Any) -> Any:
    if value.key is None:
        refuse("it is or holds a time zone without a name")
    return (steps.zone, (value.key,))


def _typing(value: Any) -> Any:
    typing: Any = sys.modules["typing"]
    kind = type(value)
    if kind is typing.TypeVar:
        flags = (value.__covariant__, value.__contravariant__)
        args = (value.__name__, value.__constraints__, value.__bound__, flags)
        return (steps.type_variable, args)
    if kind.__name__ == "UnionType":
        return (steps.union, (value.__args__,))
    if kind.__name__ == "GenericAlias":
        return (steps.subscript, (value.__origin__, value.__args__))
    name = getattr(value, "_name", None)
    if name and getattr(typing, name, None) is value:
        return (steps.imported, ("typing", name))
    made = value.__reduce__()
    if isinstance(made, tuple) and getattr(made[0], "__name__", "") == "getitem":
        return (steps.subscript, made[1])
    return NotImplemented


def annotation(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, type) and not hasattr(value, "__args__"):
        home = home_of(value)
        if home is None or steps.may_be_inside(*home):
            return value
    elif type(value).__module__ in TYPING and depth < 8:
        parts = getattr(value, "__args__", ())
        if isinstance(parts, tuple) and all(annotation(p, depth + 1) is p for p in parts):
            return value
    return repr(value)[:MAX_ANNOTATION_CHARS]


def member(value: Any) -> Any:
    kind = type(value)
    name = value._name_ if kind.__members__.get(value._name_) is value else None
    return (steps.member, (kind, name, value._value_))


def slot_names(kind: Any) -> List[str]:
    import copyreg  # loaded with pickle

    return list(copyreg._slotnames(kind))  # type: ignore[attr-defined]


def made_of(value: Any) -> Optional[Tuple[Any, ...]]:
    """Return what an instance is made of that never changes; None if that cannot be told."""
    maker = None
    for base in type(value).__mro__:
        make = base.__dict__.get("__new__")
        if type(make) is types.BuiltinFunctionType:
            maker = base
            break
    if maker is object or maker in (dict, list, set):
        return ()
    if isinstance(value, BaseException):
        return tuple(BaseException.args.__get__(value))  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return ()
    for kind, plain in _PLAIN:
        if maker is kind:
            return (plain(value),)
    return None


_PLAIN: Tuple[Tuple[Any, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, lambda value: complex.__add__(value, 0)),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (tuple, lambda value: tuple.__getitem__(value, slice(None))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
)
