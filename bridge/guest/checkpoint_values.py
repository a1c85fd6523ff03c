"""Values written down, with what they share: the writing half of a checkpoint.

Owns how each kind of value is taken apart for the steps of `checkpoint_steps`. The stream is
pickle's; it is opened by an unpickler that knows those steps and nothing else.
"""

from __future__ import annotations

import _pickle
import sys
import types

from bridge.guest import checkpoint_steps as steps
from bridge.guest.checkpoint_classes import reduce_class
from bridge.guest.checkpoint_code import NotKept, Sources, refuse
from bridge.guest.checkpoint_parts import (
    annotation,
    as_it_is,
    descriptor,
    first_with,
    full_cells,
    home_of,
    is_a,
    made_of,
    member,
    module_name,
    reference,
    refusing,
    slot_names,
    special,
)
from bridge.guest.checkpoint_reasons import what_it_is

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Set, Tuple

    How = Callable[[Any], Any]

PROTOCOL = 5

_HEAP_TYPE = 1 << 9
"""Flag of types that were made while Python ran."""

_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)

_CONSTANT_TYPES = (type(Ellipsis), type(NotImplemented))


class Keeper(_pickle.Pickler):
    """Writes values of a session's namespace."""

    def __init__(self, sink: Any, names: Mapping[str, Any], sources: Sources) -> None:
        """Make one.

        Args:
            names: The session's globals.
            sources: Learns which sources are needed.
        """
        super().__init__(sink, PROTOCOL)
        self._names = names
        self._main = getattr(sys.modules.get("__main__"), "__dict__", names)
        self._sources = sources
        self._how: Dict[type, How] = {}
        self._begun: Set[int] = set()

    def go_back(self, pair: List[Any]) -> None:
        """Forget what was written since `pair`, which is the list that was begun with."""
        self._begun.clear()
        memo: Dict[int, Tuple[int, Any]] = self.memo.copy()
        entry = memo.get(id(pair))
        if entry is not None:
            self.memo = {k: v for k, v in memo.items() if v[0] < entry[0]}

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is made again that is none of the plain containers."""
        kind = type(value)
        how = self._how.get(kind)
        if how is None:
            how = self._how[kind] = self._choose(kind, value)
        return how(value)

    def _choose(self, kind: Any, value: Any) -> How:
        for known, how in (
            (types.ModuleType, self._module),
            (types.FunctionType, self._function),
            (types.BuiltinFunctionType, self._builtin),
            (types.MethodType, self._method),
            (type, self._class),
            (types.CellType, lambda cell: (steps.cell, ())),
            (types.MappingProxyType, lambda proxy: (steps.mapping_proxy, (dict(proxy),))),
            ((property, staticmethod, classmethod), descriptor),
        ):
            if issubclass(kind, known):
                return how
        if kind in _DESCRIPTORS:
            return self._slot
        if kind in _CONSTANT_TYPES:
            return lambda constant: (steps.imported, ("builtins", repr(constant)))
        own_way = special(kind)
        if own_way is not None:
            return own_way
        words = what_it_is(value)
        if words is not None:
            return refusing(words)
        if is_a(kind, "enum", "Enum"):
            return member
        if str(kind.__module__).startswith("bridge."):
            return self._ours
        return self._instance if self._is_own(kind) else as_it_is

    # --- references -------------------------------------------------------------------------------

    def _module(self, value: Any) -> Any:
        name = module_name(value)
        if name is None:
            refuse("it is or holds a module that cannot be imported by its name")
        return (steps.module, (name,))

    def _builtin(self, value: Any) -> Any:
        owner = value.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return (steps.method, (owner, value.__name__))
        return reference(value)

    def _method(self, value: Any) -> Any:
        if type(value.__self__).__module__ == "bridge.guest.mcp_api":
            return (steps.imported, ("mcp.runtime", value.__name__))
        return (steps.bound, (value.__func__, value.__self__))

    def _slot(self, value: Any) -> Any:
        owner = value.__objclass__
        return (
            steps.imported,
            (owner.__module__, "%s.%s" % (owner.__qualname__, value.__name__)),
        )

    def _ours(self, value: Any) -> Any:
        proxies = sys.modules.get("bridge.guest.proxies")
        if proxies is not None and type(value) is proxies.Server:
            return (steps.server, (value._tools.server["name"],))
        raise NotKept("it is or holds something of the bridge's own (%s)" % type(value).__name__)

    # --- functions --------------------------------------------------------------------------------

    def _function(self, value: Any) -> Any:
        if steps.STEPS.get(value.__name__) is value:
            return NotImplemented
        if home_of(value) is not None:
            return reference(value)
        if str(value.__module__).startswith("mcp.servers.") and hasattr(value, "tool"):
            return (steps.tool, (value.server, value.tool))
        names = value.__globals__
        if names is self._names or names is self._main:
            place = self._sources.reference(value.__code__)
        else:
            module = str(names.get("__name__"))
            if getattr(sys.modules.get(module), "__dict__", None) is not names:
                raise NotKept("%s was defined in globals of its own" % value.__name__)
            place = self._sources.reference(value.__code__, module)
        state = {
            "qualname": value.__qualname__,
            "module": value.__module__,
            "dict": value.__dict__,
            "cells": full_cells(value.__closure__ or ()),
        }
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(value, name):
                state[name] = getattr(value, name)
        noted = getattr(value, "__annotations__", None)
        if noted:
            state["__annotations__"] = self.annotations(noted)
        if value.__doc__ is not None:
            state["__doc__"] = value.__doc__
        args = (place, value.__name__, value.__closure__)
        return (steps.function, args, state, None, None, steps.set_function)

    def annotations(self, noted: Any) -> Dict[str, Any]:
        """Return annotations, those as text that cannot be written down."""
        return {name: annotation(value, 0) for name, value in dict(noted).items()}

    # --- classes and instances --------------------------------------------------------------------

    def _class(self, value: Any) -> Any:
        if value is type(None) or value in _CONSTANT_TYPES:
            return NotImplemented
        if home_of(value) is not None:
            return reference(value)
        if not value.__flags__ & _HEAP_TYPE:
            for name, other in list(vars(types).items()):
                if other is value:
                    return (steps.imported, ("types", name))
            raise NotKept("the type %s cannot be imported" % value.__name__)
        if id(value) in self._begun:
            message = "the definition of the class %s needs something that holds the class itself"
            raise NotKept(message % value.__name__)
        self._begun.add(id(value))
        try:
            return reduce_class(value, self._sources, self._main, self.annotations)
        except NotKept as error:
            raise NotKept("of the class %s: %s" % (value.__qualname__, error)) from None

    def _is_own(self, kind: Any) -> bool:
        return any(base.__module__ == "__main__" for base in kind.__mro__) or home_of(kind) is None

    def _instance(self, value: Any) -> Any:
        kind = type(value)
        definer = first_with(kind, "__reduce_ex__", "__reduce__")
        if definer.__module__ == "__main__":
            return NotImplemented  # its own way, which its author has asked for
        args = made_of(value)
        if args is None:
            return NotImplemented
        state: Dict[str, Any] = {}
        if isinstance(value, list):
            state["items"] = list.__getitem__(value, slice(None))
        elif isinstance(value, set):
            state["items"] = list(set.__iter__(value))
        elif isinstance(value, dict):
            ordered = getattr(sys.modules.get("collections"), "OrderedDict", dict)
            base = ordered if isinstance(value, ordered) else dict
            state["pairs"] = list(base.items(value))
            if is_a(kind, "collections", "defaultdict"):
                state["factory"] = getattr(value, "default_factory", None)
        if first_with(kind, "__getstate__", "__getstate__") is not object:
            state["own"] = value.__getstate__()
        else:
            state["dict"] = getattr(value, "__dict__", None)
            slots = {}
            for name in slot_names(kind):
                try:
                    slots[name] = object.__getattribute__(value, name)
                except AttributeError:
                    continue
            if slots:
                state["slots"] = slots
            if first_with(kind, "__setstate__", "__setstate__") is not object:
                own = (state.pop("dict"), state.pop("slots", None))
                state["own"] = own if own[1] else own[0]
        return (steps.instance, (kind, args), state, None, None, steps.set_instance)


class Finder(Keeper):
    """Looks in values for instances of a class."""

    def __init__(self, wanted: type) -> None:
        """Make one."""
        super().__init__(_Nowhere(), {}, Sources())
        self._wanted = wanted

    def finds(self, value: Any) -> bool:
        """Whether there is one in a value."""
        self.clear_memo()
        self._begun.clear()
        try:
            self.dump(value)
        except _Found:
            return True
        except Exception:
            # It was made from what can be written, and need not be written now.
            return False
        return False

    def reducer_override(self, value: Any) -> Any:
        """Stop at one."""
        if type(value) is self._wanted:
            raise _Found
        return super().reducer_override(value)


class _Found(Exception):
    """There is one."""


class _Nowhere:
    def write(self, data: Any) -> int:
        """Take nothing of it."""
        return 0  # which nobody looks at
