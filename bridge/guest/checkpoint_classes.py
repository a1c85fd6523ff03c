"""The classes that a session's programs define, as what they can be made again from.

Owns the choice. A plain class is taken apart into its bases and what is in it, and put together
again without running anything. Where Python or a library writes half of a class (data classes,
enumerations, generic classes, those with a metaclass), its definition is run again.
"""

from __future__ import annotations

import _ast
import sys
import types

from bridge.guest import checkpoint_steps as steps
from bridge.guest.checkpoint_code import NotKept, Sources, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

_LEFT_OUT = frozenset(
    (
        *("__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl"),
        *("__annotate__", "__annotate_func__", "__annotations_cache__", "__type_params__"),
    )
)
"""Made by the interpreter."""

_MADE = (types.MemberDescriptorType, types.GetSetDescriptorType)

_BLOCKS = ("body", "orelse", "finalbody", "handlers")

_OPTIMIZED = 0x1
"""Flag of the code of functions, which the code of classes does not have."""


def reduce_class(
    kind: Any, sources: Sources, names: Mapping[str, Any], annotations: Callable[[Any], Any]
) -> Tuple[Any, ...]:
    """Return how a class of the session is made again, as `__reduce__` has it.

    Args:
        names: The session's globals.
        annotations: Makes annotations something that can be kept.

    Raises:
        NotKept: It cannot be.
    """
    if _is_plain(kind):
        return _plain(kind, annotations)
    place = _find(kind, sources)
    if place is None:
        return _without_source(kind)
    file, line, node, futures = place
    if "<locals>" in kind.__qualname__:
        refuse("it is defined inside a function, and not a plain class")
    text = sources.text(file) or ""
    sources.used[file] = text
    needed = _needed(node, futures, file, names)
    args = (file, kind.__qualname__, line, needed)
    if type(kind) not in (type, _abstract()) or issubclass(kind, tuple):
        return (steps.source_class, args)
    return (steps.source_class, args, _changed(kind), None, None, steps.set_class)


def definition(
    text: str, file: str, path: str, line: int, needed: Mapping[str, Any]
) -> Optional[types.CodeType]:
    """Return the code that defines a class and nothing else; None if the source has no such class.

    Of its decorators those stay that are in `needed`: what a program's own did to the class is
    part of it, and what they did elsewhere is kept as it was.
    """
    tree = _tree(text, file)
    if tree is None:
        return None
    for found, node in _definitions(tree.body, ""):
        if found == path and node.lineno == line:
            node.decorator_list = [d for d in node.decorator_list if _root(d) in needed]
            return _compiled(node, _futures(tree), file)
    return None


# --- plain classes --------------------------------------------------------------------------------


def _is_plain(kind: Any) -> bool:
    if type(kind) not in (type, _abstract()):
        return False
    own = kind.__dict__
    if "__dataclass_params__" in own or "__orig_bases__" in own:
        return False
    if any("__dataclass_params__" in base.__dict__ for base in kind.__mro__[1:]):
        # Its fields are part of the definition.
        return "__annotations__" not in own
    if issubclass(kind, tuple) and "_fields" in own:
        return False
    return not any("__init_subclass__" in base.__dict__ for base in kind.__mro__[1:-1])


def _plain(kind: Any, annotations: Callable[[Any], Any]) -> Tuple[Any, ...]:
    own: Dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    slots = kind.__dict__.get("__slots__")
    if slots is not None:
        if not isinstance(slots, (str, tuple, list, dict)):
            raise NotKept("its __slots__ are a %s" % type(slots).__name__)
        own["__slots__"] = slots
    attributes = {
        name: value
        for name, value in kind.__dict__.items()
        if name not in _LEFT_OUT and type(value) not in _MADE
    }
    if "__annotations__" in attributes:
        attributes["__annotations__"] = annotations(attributes["__annotations__"])
    abstract = type(kind) is not type
    args = (kind.__name__, kind.__bases__, abstract, own)
    return (steps.plain_class, args, attributes, None, None, steps.set_class)


def _abstract() -> Any:
    return getattr(sys.modules.get("abc"), "ABCMeta", type)


def _changed(kind: Any) -> Dict[str, Any]:
    """Return the data in a class that is defined again: it may be another by now."""
    known = kind.__dict__.get("__dataclass_fields__", {})
    # Class variables are among them, under another type.
    fields = {name for name, field in known.items() if field._field_type.name == "_FIELD"}
    return {
        name: value
        for name, value in kind.__dict__.items()
        if not (name.startswith("__") or name.startswith("_abc_") or name in fields)
        and not hasattr(type(value), "__get__")
        and not isinstance(value, type)
    }


# --- without a source -----------------------------------------------------------------------------


def _without_source(kind: Any) -> Tuple[Any, ...]:
    fields = kind.__dict__.get("_fields")
    if issubclass(kind, tuple) and isinstance(fields, tuple) and kind.__bases__ == (tuple,):
        defaults = dict(kind.__dict__.get("_field_defaults", {}))
        return (steps.named_tuple, (kind.__name__, fields, defaults, kind.__module__))
    if _is_enum(kind) and len(kind.__bases__) == 1 and kind.__bases__[0].__module__ == "enum":
        members = [[name, each.value] for name, each in kind.__members__.items()]
        return (steps.called_enum, (kind.__bases__[0], kind.__name__, members, kind.__module__))
    return refuse("its source is not known")


def _is_enum(kind: Any) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and isinstance(kind, enum.EnumMeta)


# --- where a definition is ------------------------------------------------------------------------


def _find(kind: Any, sources: Sources) -> Optional[Tuple[str, int, Any, List[Any]]]:
    """Return the file, the line and the tree of a class, and what it imports from the future."""
    path = kind.__qualname__
    first = kind.__dict__.get("__firstlineno__")
    inside = _a_method(kind)
    files = [inside[0]] if inside is not None else list(reversed(sources.files()))
    for file in files:
        text = sources.text(file)
        tree = None if text is None or kind.__name__ not in text else _tree(text, file)
        if tree is None:
            continue
        for found, node in _definitions(tree.body, ""):
            if found != path:
                continue
            top = min([node.lineno] + [d.lineno for d in node.decorator_list])
            if first is not None and first not in (top, node.lineno):
                continue
            if inside is not None and not top <= inside[1] <= (node.end_lineno or top):
                continue
            if _agrees(node, kind):
                return file, node.lineno, node, _futures(tree)
    return None


def _a_method(kind: Any) -> Optional[Tuple[str, int]]:
    """Return file and line of a method that was defined with the class."""
    for value in kind.__dict__.values():
        plain = getattr(value, "__func__", getattr(value, "fget", value))
        if type(plain) is types.FunctionType:
            code = plain.__code__
            named = plain.__qualname__.startswith(kind.__qualname__ + ".")
            written = code.co_filename.startswith("<") and code.co_filename != "<string>"
            if named and written and plain.__module__ == kind.__module__:
                return code.co_filename, code.co_firstlineno
    return None


def _agrees(node: Any, kind: Any) -> bool:
    """Whether a definition is a class's own, and not of another of the same name."""
    annotated: Set[str] = set()
    assigned: Set[str] = set()
    for statement in node.body:
        if isinstance(statement, _ast.AnnAssign) and isinstance(statement.target, _ast.Name):
            annotated.add(statement.target.id)
        elif isinstance(statement, _ast.Assign):
            assigned |= {t.id for t in statement.targets if isinstance(t, _ast.Name)}
    if _is_enum(kind):
        return assigned.issuperset(kind.__members__)
    own = kind.__dict__.get("__annotations__")
    return own is None or annotated.issuperset(own)


def _tree(text: str, file: str) -> Any:
    flags = _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(text, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(body: Any, prefix: str) -> Iterator[Tuple[str, Any]]:
    for node in body:
        if isinstance(node, _ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node.body, prefix + node.name + ".")
        elif not isinstance(node, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
            for block in _BLOCKS:
                inner = getattr(node, block, None)
                if isinstance(inner, list):
                    yield from _definitions(inner, prefix)


def _futures(tree: Any) -> List[Any]:
    return [n for n in tree.body if isinstance(n, _ast.ImportFrom) and n.module == "__future__"]


def _compiled(node: Any, futures: List[Any], file: str) -> types.CodeType:
    whole = _ast.Module([*futures, node], [])
    code = compile(whole, file, "exec", dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


# --- what a definition needs ----------------------------------------------------------------------


def _needed(node: Any, futures: List[Any], file: str, names: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the globals that a definition uses when it is run, its own decorators left out."""
    decorators = node.decorator_list
    node.decorator_list = [d for d in decorators if _is_foreign(names.get(_root(d) or ""))]
    try:
        used = _used(_compiled(node, futures, file), True)
    finally:
        node.decorator_list = decorators
    return {name: names[name] for name in sorted(used) if name in names and name != node.name}


def _used(code: types.CodeType, outermost: bool) -> Set[str]:
    """Return the names that are looked up when a definition is run, not when its methods are."""
    used: Set[str] = set()
    is_function = bool(code.co_flags & _OPTIMIZED) and not code.co_name.startswith("<")
    if outermost or not is_function:
        used.update(code.co_names)
        for constant in code.co_consts:
            if type(constant) is types.CodeType:
                used |= _used(constant, False)
    return used


def _root(decorator: Any) -> Optional[str]:
    while isinstance(decorator, (_ast.Call, _ast.Attribute)):
        decorator = decorator.func if isinstance(decorator, _ast.Call) else decorator.value
    return decorator.id if isinstance(decorator, _ast.Name) else None


def _is_foreign(value: Any) -> bool:
    """Whether a decorator is a library's."""
    if value is None or isinstance(value, types.ModuleType):
        return value is not None
    return getattr(value, "__module__", "__main__") != "__main__"
