"""The steps of which a checkpoint's values are made again, and what may be imported for that.

Owns all that a checkpoint can ask for by name: a restricted unpickler finds these functions and
nothing else. None of them calls what a program wrote, but for the definitions of classes that have
to be run again and a class's own `__setstate__`.

A checkpoint holds sources, and so is a program: that it cannot call `os.remove` keeps a value from
doing harm by being loaded, and is no protection from whoever changes checkpoints. They are only
ever opened inside a sandbox, where a program may do all that anyway.
"""

from __future__ import annotations

import sys
import types

from bridge.guest.checkpoint_code import NotKept, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from bridge.guest.checkpoint_code import Reference

REACHING = frozenset(
    (
        *("_ctypes", "_io", "io", "_posixsubprocess", "_socket", "code", "codeop", "ctypes"),
        *("importlib", "marshal", "multiprocessing", "nt", "os", "pdb", "pickle", "posix"),
        *("pty", "runpy", "shutil", "signal", "socket", "subprocess", "sys", "webbrowser"),
        *("bridge", "_pickle", "asyncio", "threading", "_thread", "timeit", "trace", "cProfile"),
    )
)
"""Modules whose functions and classes do something when they are called, which loading may do. They
can be imported, and so kept under names of the program's own."""

_REACHING_BUILTINS = frozenset(
    (
        *("__import__", "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr"),
        *("globals", "input", "locals", "open", "print", "quit", "setattr", "vars", "help"),
    )
)

_HARMLESS = frozenset(
    (
        ("_io", "BytesIO"),
        ("_io", "StringIO"),
        ("asyncio.exceptions", "CancelledError"),
        ("asyncio.exceptions", "TimeoutError"),
        ("bridge.guest.values", "_rebuild_error"),
        ("io", "BytesIO"),
        ("io", "StringIO"),
        ("os", "stat_result"),
        ("signal", "Signals"),
        ("subprocess", "CalledProcessError"),
        ("subprocess", "CompletedProcess"),
        ("subprocess", "TimeoutExpired"),
    )
)
"""What in those is only data."""

_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    staticmethod,
)


class Place:
    """Where a checkpoint is opened."""

    namespace: "Dict[str, Any]"
    sources: Sources


_place = Place()


def begin(namespace: Dict[str, Any], sources: Sources) -> None:
    """Have the steps work for this namespace from now on."""
    _place.namespace = namespace
    _place.sources = sources


def may_be_inside(module: str, name: str) -> bool:
    """Whether a function or class may stand inside a value."""
    if module == "builtins":
        return name.partition(".")[0] not in _REACHING_BUILTINS
    return module.partition(".")[0] not in REACHING or (module, name) in _HARMLESS


def found(module: str, name: str) -> Any:
    """Return what a module has under a dotted name.

    Raises:
        NotKept: It has no such thing.
        ImportError: There is no such module.
    """
    if module not in sys.modules:
        __import__(module)
    value: Any = sys.modules[module]
    try:
        for part in name.split(".") if name else ():
            value = getattr(value, part)
    except AttributeError:
        raise NotKept("%s has no %s here" % (module, name)) from None
    return value


# --- references -----------------------------------------------------------------------------------


def imported(module: str, name: str) -> Any:
    """Return a function, class or constant of a module."""
    if not may_be_inside(module, name):
        raise NotKept("%s.%s is not made again from a checkpoint" % (module, name))
    return found(module, name)


def module(name: str) -> Any:
    """Return a module."""
    return found(name, "")


def server(name: str) -> Any:
    """Return the object of a loaded server."""
    servers = _place.namespace.get("mcp_servers")
    if servers is None or name not in servers:
        raise NotKept("the server %r is not loaded" % name)
    return servers[name]


def tool(server_name: str, name: str) -> Any:
    """Return the function of a loaded server's tool."""
    return server(server_name)[name]


# --- functions ------------------------------------------------------------------------------------


def cell() -> Any:
    """Return an empty cell, which the functions that have it fill."""
    return types.CellType()


def function(reference: Reference, name: str, closure: Optional[Tuple[Any, ...]]) -> Any:
    """Return a function from its code."""
    own = found(reference[0], "").__dict__ if reference[1] else _place.namespace
    code = _place.sources.code(reference)
    return types.FunctionType(code, own, name, None, closure)


def set_function(made: Any, state: Dict[str, Any]) -> None:
    """Give a function what it was made with."""
    for target, content in state["cells"]:
        target.cell_contents = content
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__doc__"):
        if name in state:
            setattr(made, name, state[name])
    made.__qualname__ = state["qualname"]
    made.__module__ = state["module"]
    made.__dict__.update(state["dict"])


def bound(plain: Any, owner: Any) -> Any:
    """Return a function as a method of an object."""
    return types.MethodType(plain, owner)


def method(owner: Any, name: str) -> Any:
    """Return a method that Python itself has for an object or a class."""
    own = isinstance(owner, type)
    for kind in owner.__mro__ if own else type(owner).__mro__:
        made = kind.__dict__.get(name)
        if isinstance(made, _METHODS):
            return made.__get__(None, owner) if own else made.__get__(owner, type(owner))
    raise NotKept("%s has no method %s" % (type(owner).__name__, name))


def remembering(plain: Any, maxsize: Any, typed: bool) -> Any:
    """Return a function as `functools.lru_cache` makes it; what it remembered is gone."""
    import functools

    return functools.lru_cache(maxsize=maxsize, typed=typed)(plain)


def described(kind: str, parts: Tuple[Any, ...]) -> Any:
    """Return what makes a function more than a method of its class."""
    if kind == "cached_property":
        import functools

        made = functools.cached_property(parts[0])
        made.attrname = parts[1]
        return made
    return {"property": property, "staticmethod": staticmethod, "classmethod": classmethod}[kind](
        *parts
    )


# --- types ----------------------------------------------------------------------------------------


def subscript(origin: Any, args: Any) -> Any:
    """Return a generic type with its parameters."""
    return origin[args]


def union(args: Tuple[Any, ...]) -> Any:
    """Return `A | B`."""
    made = args[0]
    for other in args[1:]:
        made = made | other
    return made


def type_variable(name: str, constraints: Any, bound: Any, flags: Tuple[bool, bool]) -> Any:
    """Return a type variable."""
    import typing

    return typing.TypeVar(
        name,
        *constraints,
        bound=bound,
        covariant=flags[0],
        contravariant=flags[1],
    )


def mapping_proxy(values: Any) -> Any:
    """Return a read-only view."""
    return types.MappingProxyType(values)


def zone(key: str) -> Any:
    """Return a time zone by its name."""
    import zoneinfo

    return zoneinfo.ZoneInfo(key)


# --- classes --------------------------------------------------------------------------------------


def plain_class(name: str, bases: Tuple[Any, ...], abstract: bool, own: Dict[str, Any]) -> Any:
    """Return a class without anything in it yet but its slots."""
    kind: Any = type
    if abstract:
        import abc

        kind = abc.ABCMeta
    return kind(name, bases, dict(own))


def set_class(made: Any, attributes: Dict[str, Any]) -> None:
    """Give a class what is in it."""
    for name, value in attributes.items():
        type.__setattr__(made, name, value)


def source_class(file: str, path: str, line: int, needed: Dict[str, Any]) -> Any:
    """Run the definition of a class again.

    Args:
        needed: Values of the names that it uses.
    """
    from bridge.guest.checkpoint_classes import definition

    text = _place.sources.text(file)
    code = None if text is None else definition(text, file, path, line, needed)
    if code is None:
        raise NotKept("its definition is not in %s any more" % file)
    names = _place.namespace
    name = path.rpartition(".")[2]
    before = {key: names[key] for key in (*needed, name) if key in names}
    try:
        names.update(needed)
        exec(code, names)
        made = names[name]
    finally:
        for key in (*needed, name):
            names.pop(key, None)
        names.update(before)
    made.__qualname__ = path
    return made


def named_tuple(name: str, fields: Sequence[str], defaults: Dict[str, Any], home: str) -> Any:
    """Return a class as `collections.namedtuple` makes it."""
    import collections

    values = [defaults[field] for field in fields if field in defaults]
    return collections.namedtuple(name, fields, defaults=values, module=home)


def called_enum(base: Any, name: str, members: List[List[Any]], home: str) -> Any:
    """Return an enumeration that was made by a call."""
    return base(name, [tuple(member) for member in members], module=home)


def member(kind: Any, name: Optional[str], value: Any) -> Any:
    """Return a member of an enumeration; one made of several by its value."""
    members: Any = kind.__members__
    if name is not None:
        if name not in members:
            raise NotKept("%s has no member %s" % (kind.__name__, name))
        return members[name]
    return kind(value)


# --- instances ------------------------------------------------------------------------------------


def instance(kind: Any, args: Tuple[Any, ...]) -> Any:
    """Return an instance without having its class make it."""
    for base in kind.__mro__:
        make = base.__dict__.get("__new__")
        if type(make) is types.BuiltinFunctionType:
            return make(kind, *args)
    raise NotKept("%s cannot be made without its own code" % kind.__name__)


def set_instance(made: Any, state: Dict[str, Any]) -> None:
    """Give an instance what was in it."""
    if "items" in state:
        add: Any = list.extend if isinstance(made, list) else set.update
        add(made, state["items"])
    for key, value in state.get("pairs", ()):
        _set_item(made)(made, key, value)
    if "factory" in state:
        made.default_factory = state["factory"]
    if "own" in state:
        restore: Any = getattr(type(made), "__setstate__", None)
        if restore is not None:
            restore(made, state["own"])
            return
        state = _plainly(state["own"])
    if state.get("dict"):
        made.__dict__.update(state["dict"])
    for name, value in (state.get("slots") or {}).items():
        object.__setattr__(made, name, value)


def _plainly(own: Any) -> Dict[str, Any]:
    """Return what a `__getstate__` gave whose class has no `__setstate__`, as pickle reads it."""
    if isinstance(own, tuple) and len(own) == 2:
        return {"dict": own[0], "slots": own[1]}
    return {"dict": own}


def _set_item(made: Any) -> Any:
    if "collections" in sys.modules and isinstance(made, sys.modules["collections"].OrderedDict):
        return sys.modules["collections"].OrderedDict.__setitem__
    return dict.__setitem__


STEPS = {
    step.__name__: step
    for step in (
        *(imported, module, server, tool, cell, function, set_function, bound, method),
        *(remembering, described, subscript, union, type_variable, mapping_proxy, zone),
        *(plain_class, set_class, source_class, named_tuple, called_enum, member),
        *(instance, set_instance),
    )
}
"""All that a checkpoint can ask for, by name."""
