"""A session's values as `cloudpickle` writes them, and why some of them are not kept.

Owns what differs from `cloudpickle`: functions stay in the session's namespace, which they do not
bring along; code is marked with the Python that it is for; what belongs to the bridge is referred
to; and what would come back as something else than it was is refused.
"""

from __future__ import annotations

import copyreg
import functools
import marshal
import sys
import types
from enum import Enum

from bridge.guest import checkpoint_restore as again
from bridge.guest.checkpoint_restore import NotKept
from bridge.guest.cloudpickle import Pickler
from bridge.guest.placeholders import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

PROTOCOL = 5

_BY_TYPE: Tuple[Tuple[Any, str], ...] = (
    (types.GeneratorType, "a generator"),
    (types.CoroutineType, "a coroutine"),
    (types.AsyncGeneratorType, "an asynchronous generator"),
    (types.FrameType, "a frame of the interpreter"),
    (types.TracebackType, "a traceback"),
    (memoryview, "a memoryview"),
    (Unknown, "a placeholder of a plan"),
    (type({}.keys()), "a view of a dict"),
    (type({}.values()), "a view of a dict"),
    (type({}.items()), "a view of a dict"),
)

_BY_NAME = (
    ("io", "IOBase", "an open file"),
    ("socket", "socket", "a socket"),
    ("_socket", "socket", "a socket"),
    ("ssl", "SSLContext", "an SSL context"),
    ("sqlite3", "Connection", "a database connection"),
    ("sqlite3", "Cursor", "a database cursor"),
    ("threading", "Thread", "a thread"),
    ("threading", "Event", "an event that threads wait for"),
    ("threading", "Condition", "a lock"),
    ("threading", "Semaphore", "a lock"),
    ("threading", "local", "data of a thread"),
    ("_thread", "LockType", "a lock"),
    ("_thread", "RLock", "a lock"),
    ("asyncio", "Future", "a task"),
    ("asyncio", "Task", "a task"),
    ("asyncio", "Lock", "a lock"),
    ("asyncio", "Event", "an event that tasks wait for"),
    ("asyncio", "Queue", "a queue that tasks wait for"),
    ("asyncio", "AbstractEventLoop", "an event loop"),
    ("concurrent.futures", "Future", "a task"),
    ("concurrent.futures", "Executor", "a pool of workers"),
    ("queue", "Queue", "a queue that threads wait for"),
    ("queue", "SimpleQueue", "a queue that threads wait for"),
    ("subprocess", "Popen", "a process"),
    ("tempfile", "TemporaryDirectory", "a temporary directory"),
    ("contextvars", "Context", "a context"),
    ("contextvars", "ContextVar", "a context variable"),
    ("weakref", "ref", "a weak reference"),
    ("re", "Match", "a match of a regular expression"),
)
"""Looked up only among modules that are loaded: nobody has one of these otherwise."""


def what_it_is(value: Any) -> Optional[str]:
    """Return what a value is that is never kept; None for all others."""
    kind = type(value)
    for base, words in _BY_TYPE:
        if issubclass(kind, base):
            return words
    for module, name, words in _BY_NAME:
        known: Any = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and issubclass(kind, known):
            io = sys.modules["io"]
            return None if kind in (io.StringIO, io.BytesIO) else words
    if "__next__" in dir(kind) and kind.__module__ in ("builtins", "itertools", "_csv", "re"):
        return "an iterator (%s)" % kind.__name__
    return None


class _Globals:
    """Stands for a namespace that functions are in, which they find again and do not bring."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return (again.namespace, (self._module,))


class Imported:
    """Stands for what cannot be written, and is imported again."""

    def __init__(self, module: str, name: str) -> None:
        self._home = (module, name)

    def __reduce__(self) -> Any:
        return (again.found, self._home)


class Keeper(Pickler):  # type: ignore[misc]
    """Writes values of a session's namespace.

    Attributes:
        files: Names of the sources that the functions written are from.
    """

    memo: Any

    def __init__(self, sink: Any, names: Dict[str, Any]) -> None:
        """Make one.

        Args:
            names: The session's globals.
        """
        super().__init__(sink, PROTOCOL)
        self.files: Set[str] = set()
        self._names = names
        self._main = getattr(sys.modules.get("__main__"), "__dict__", names)
        self._how: Dict[type, Optional[Callable[[Any], Any]]] = {}

    def go_back(self, first: Any) -> None:
        """Forget what was written since `first`, which is the object that was begun with."""
        memo: Dict[int, Tuple[int, Any]] = self.memo.copy()
        entry = memo.get(id(first))
        if entry is not None:
            self.memo = {k: v for k, v in memo.items() if v[0] < entry[0]}

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is made again; what `pickle` does itself is left to it."""
        kind = type(value)
        try:
            how = self._how[kind]
        except KeyError:
            how = self._how[kind] = self._choose(kind, value)
        return NotImplemented if how is None else how(value)

    def _choose(self, kind: Any, value: Any) -> Optional[Callable[[Any], Any]]:
        for known, how in (
            (types.ModuleType, _module),
            (types.FunctionType, self._function),
            (type, self._class),
            (types.CodeType, _code),
            (types.CellType, lambda cell: (types.CellType, ())),
            (functools._lru_cache_wrapper, _remembering),
            (functools.cached_property, lambda v: (_cached, (v.func, v.attrname))),
            (types.MethodType, _method),
        ):
            if issubclass(kind, known):
                return how
        words = what_it_is(value)
        if words is not None:
            return _refusing(words)
        if str(kind.__module__).startswith("bridge."):
            return _ours
        if (kind.__module__, kind.__name__) == ("typing", "NewType"):
            return lambda v: (kind, (v.__name__, v.__supertype__))
        plain = _maker(kind) is object and _first_with(kind, *_RUN) is object
        return None if plain or again.is_importable(kind) else _instance

    # --- functions and classes --------------------------------------------------------------------

    def _function(self, value: Any) -> Any:
        if str(value.__module__).startswith("mcp.servers.") and hasattr(value, "tool"):
            return (again.tool, (value.server, value.tool))
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, func: Any) -> Any:
        """Have `cloudpickle` write a function, but for globals that are found again."""
        own = func.__globals__
        is_main = own is self._names or own is self._main
        module = "" if is_main else str(own.get("__name__"))
        known = not module or getattr(sys.modules.get(module), "__dict__", None) is own
        if known:
            # Each function its own: one that cannot be read takes no other along.
            self.globals_ref[id(own)] = _Globals(module)
        reduced = super()._dynamic_function_reduce(func)
        made, args, state, _, _, fill = reduced
        state[1]["__closure__"] = None
        if known:
            state[1]["__globals__"] = {}
        self.files.add(func.__code__.co_filename)
        # The cells themselves: functions that share one share it afterwards.
        cells = func.__closure__
        state = (fill, state, _full(cells or ()))
        return (made, (*args[:4], cells), state, None, None, _set_function)

    def _class(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or len(reduced) < 6:
            return reduced
        attributes = reduced[2][0]
        if issubclass(value, Enum):
            members = dict(value.__members__)
            for name in members:
                attributes.pop(name, None)
            values = {name: each.value for name, each in members.items()}
            args = (*reduced[1][:3], values, *reduced[1][4:])
            # What an `__init__` or a `__new__` of its own has given to its members.
            given = [(name, dict(vars(each))) for name, each in members.items()]
            return (reduced[0], args, (reduced[5], reduced[2], given), None, None, _set_enum)
        if "__slots__" in attributes and not issubclass(value, tuple):
            # cloudpickle sets them on the class that is made, which is too late.
            reduced[1][3]["__slots__"] = attributes.pop("__slots__")
        for name in [n for n, v in attributes.items() if type(v) is types.MemberDescriptorType]:
            del attributes[name]
        return (_make_class, (reduced[0], *reduced[1]), *reduced[2:])


def _make_class(make: Any, kind: Any, name: str, bases: Any, *more: Any) -> Any:
    """Make a class without what the session defines to be told of new ones: that has been told."""
    told = [
        (base, vars(base)["__init_subclass__"])
        for each in bases
        for base in getattr(getattr(each, "__origin__", each), "__mro__", ())
        if "__init_subclass__" in vars(base) and not again.is_importable(base)
    ]
    plain = next(base for base in kind.__mro__ if again.is_importable(base))
    if plain is not kind:
        # What is no class itself is called as it is.
        kind = functools.partial(plain.__new__, kind)
    try:
        for base, _ in told:
            type.__setattr__(base, "__init_subclass__", classmethod(lambda cls, **given: None))
        return make(kind, name, bases, *more)
    finally:
        for base, own in told:
            type.__setattr__(base, "__init_subclass__", own)


def _set_enum(made: Any, state: Any) -> None:
    fill, own, given = state
    fill(made, own)
    for name, attributes in given:
        each = made.__members__[name]
        for key, value in attributes.items():
            each.__dict__.setdefault(key, value)


# --- how some kinds are written -------------------------------------------------------------------


def _refusing(words: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise NotKept("it is or holds %s" % words)

    return refuse


def _module(value: Any) -> Any:
    name = getattr(value, "__name__", None)
    if sys.modules.get(str(name)) is not value and not str(name).startswith("mcp."):
        name = next((n for n, other in list(sys.modules.items()) if other is value), None)
    if name is None or name == "__main__":
        again.refuse("it is or holds a module that cannot be imported by its name")
    return (again.found, (name, ""))


def _code(value: Any) -> Any:
    return (again.code, (again.python(), marshal.dumps(value)))


def _full(cells: Any) -> List[Tuple[Any, Any]]:
    """Return the cells that hold something, and what."""
    full = []
    for cell in cells:
        try:
            full.append((cell, cell.cell_contents))
        except ValueError:
            continue
    return full


def _set_function(made: Any, state: Any) -> None:
    fill, own, cells = state
    for cell, content in cells:
        cell.cell_contents = content
    fill(made, own)


def _remembering(value: Any) -> Any:
    if again.is_importable(value):
        return NotImplemented
    options = value.cache_parameters()
    return (_remember, (value.__wrapped__, options["maxsize"], options["typed"]))


def _remember(function: Any, maxsize: Optional[int], typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _cached(function: Any, name: str) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _method(value: Any) -> Any:
    if type(value.__self__).__module__ == "bridge.guest.mcp_api":
        return (again.found, ("mcp.runtime", value.__name__))
    return NotImplemented


def _ours(value: Any) -> Any:
    proxies = sys.modules.get("bridge.guest.proxies")
    if proxies is not None and type(value) is proxies.Server:
        return (again.server, (value._tools.server["name"],))
    if type(value) in (_Globals, Imported):
        return NotImplemented
    raise NotKept("it is or holds something of the bridge's own (%s)" % type(value).__name__)


# --- instances of the session's classes -----------------------------------------------------------

_BY_DEFAULT = (object, BaseException, set, frozenset)
"""Those whose way of being written is made up for here: it would run what a class defines."""

_RUN = ("__new__", "__setattr__", "__getattr__", "__getattribute__")
"""What pickle's own way may run of a class without its author having thought of that."""

_PLAIN: Dict[Any, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex.__add__(value, 0),
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
_FILLED: Dict[Any, Tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    list: (lambda value: list.__getitem__(value, slice(None)), list.extend),
    dict: (lambda value: dict(dict.items(value)), dict.update),
    set: (lambda value: list(set.__iter__(value)), set.update),
}
"""How what is in a value is had, and put into another."""


def _first_with(kind: Any, *names: str) -> Any:
    """Return the class that defines the first of some attributes."""
    return next((b for b in kind.__mro__ if any(n in b.__dict__ for n in names)), object)


def _instance(value: Any) -> Any:
    """Have an instance made again that runs nothing of its class but a `__setstate__`.

    In pickle's own way its `__new__`, `__setattr__`, `__setitem__` would run, and may do again what
    they have done. What its author or a library has defined for being written down is honoured.
    """
    kind = type(value)
    maker = _maker(kind)
    if _first_with(kind, "__reduce_ex__", "__reduce__") not in _BY_DEFAULT:
        return NotImplemented
    if _first_with(kind, "__getnewargs__", "__getnewargs_ex__").__module__ != "builtins":
        return NotImplemented
    content: Any = None
    args: Any = ()
    if maker in _FILLED:
        content = _FILLED[maker][0](value)
    elif maker in _PLAIN:
        args = (_PLAIN[maker](value),)
    elif issubclass(kind, BaseException):
        args = value.args
    elif maker is not object:
        return NotImplemented
    if _first_with(kind, "__getstate__") is object:
        state = _own_state(value)
    else:
        state = value.__getstate__()
    return (_make, (kind, args), (content, state), None, None, _fill)


def _own_state(value: Any) -> Any:
    slots = {}
    for name in copyreg._slotnames(type(value)):  # type: ignore[attr-defined]
        try:
            slots[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    own = getattr(value, "__dict__", None)
    return (own, slots) if slots else own


def _maker(kind: Any) -> Any:
    """Return the first class whose `__new__` is not written in Python."""
    for base in kind.__mro__:
        if type(base.__dict__.get("__new__")) is types.BuiltinFunctionType:
            return base
    return None


def _make(kind: Any, args: Any) -> Any:
    return _maker(kind).__new__(kind, *args)


def _fill(made: Any, parts: Any) -> None:
    content, state = parts
    if content is not None:
        _FILLED[_maker(type(made))][1](made, content)
    if state is None:
        return
    if _first_with(type(made), "__setstate__") not in (object, BaseException):
        made.__setstate__(state)
        return
    own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if own:
        made.__dict__.update(own)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)
