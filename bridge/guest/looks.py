"""What a program in plan mode looks at without Python asking the placeholder.

Owns the rewriting of such a program: `x.id is None`, `type(x)`, `hasattr(x, "id")`, and all that C
code does to a text in which a placeholder stands, would go on from an answer that does not exist.
Every call, comparison and text that the program makes itself is looked at on its way; what
libraries do among themselves is not. Imported by runs that make a plan alone, which may take
longer.
"""

from __future__ import annotations

import ast
import re

from bridge.guest import held
from bridge.guest.held import HeldResult, HeldText, stop
from bridge.guest.placeholders import PREFIX, find, for_reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

_ACCUMULATE = " The whole result may be compared with None: keep that, and not a part of it."

_ASKING = {type: "asks for the type of", hasattr: "asks for the fields of", callable: "asks for"}
"""Built-in functions that see the placeholder, and take it for the result."""

_READING = (bytes, bytearray, ord, open)
"""Those that look into a text without asking it; none that looks at who calls it."""

_ALSO_READING = frozenset(("binascii", "fnmatch", "uuid", "zlib"))
"""Modules whose functions do."""

_SEARCHING = frozenset(("capitalize", "format", "format_map", "join", "replace"))
"""Methods of texts that only pass on what they are given; `replace` as to what it puts in."""

_QUOTING = frozenset(("base64", "html", "json", "shlex", "urllib.parse", "xml.sax.saxutils"))
"""Modules that quote texts: what would be put in for the placeholder later is not quoted."""


def watch(tree: ast.Module, namespace: Dict[str, Any]) -> None:
    """Have a program stop where it looks at a placeholder; adds what that needs to its globals."""
    _Watcher().visit(tree)
    namespace.update(_NAMES)


def called(function: Any) -> Any:
    """Return a function as it is to be called."""
    doing = _asking(function)
    if doing:

        def asks(*args: Any) -> Any:
            if args and isinstance(args[0], HeldResult) and (function is not type or not args[1:]):
                stop(args[0], doing)
            return function(*args)

        return asks
    home, owner = getattr(function, "__module__", None), getattr(function, "__self__", None)
    if home in _ALSO_READING or any(function is known for known in _READING):
        return _unless_held(function, "looks into", 0)
    if home == "re" or type(owner) is re.Pattern:
        return _unless_held(function, "searches in", 0)
    if type(owner) is str or getattr(function, "__objclass__", None) is str:
        name = getattr(function, "__name__", "")
        if name not in _SEARCHING:
            return _unless_held(function, "searches for", 0)
        return _unless_held(function, "replaces", 0, 1) if name == "replace" else function
    if home in _QUOTING:
        name = getattr(function, "__name__", "")
        if name == "dump" and home == "json":
            return _dumping(function)
        return _unless_held(function, "parses", 0) if name == "loads" else _quoting(function)
    return function


def text(value: Any) -> Any:
    """Return what the program made; a text with a placeholder as one that is not looked at."""
    if type(value) is str and PREFIX in value and held.any_made():
        try:
            if any(True for _ in find(value)):
                return HeldText(value)
        except ValueError:
            # Changed: a call that is made with it stops the program.
            return value
    return value


def same(left: Any, right: Any) -> bool:
    """Tell whether two are the same object, as `is` does."""
    for value, other in ((left, right), (right, left)):
        if isinstance(value, HeldResult) and other in _only(other):
            if other is None and not value._held[3]:
                # What a tool returns is something, as good as always; programs that begin with
                # `last = None` need that.
                continue
            stop(value, "compares", _ACCUMULATE if other is None else "")
    return left is right


def not_same(left: Any, right: Any) -> bool:
    """Tell whether two are not the same object."""
    return not same(left, right)


def among(left: Any, right: Any) -> Any:
    """Tell whether one is in the other."""
    if isinstance(left, (HeldResult, HeldText)) and isinstance(right, str):
        stop(left, "looks for")
    return left in right


def not_among(left: Any, right: Any) -> Any:
    """Tell whether one is not in the other."""
    return not among(left, right)


def _only(value: Any) -> Any:
    """Return what there is one of, of which `value` may be one."""
    return (value,) if value is None or value is True or value is False else ()


def _asking(function: Any) -> str:
    try:
        return _ASKING.get(function, "")
    except TypeError:
        # Not every object that can be called has a hash.
        return ""


def _unless_held(function: Any, doing: str, first: int, end: int = 9) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args[first:end], *kwargs.values()):
            if isinstance(value, (HeldResult, HeldText)):
                stop(value, doing)
        return function(*args, **kwargs)

    return checked


def _quoting(function: Any) -> Callable[..., Any]:
    def quoted(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return for_reading(value) if type(value) is str and PREFIX in value else value

    return quoted


def _dumping(function: Any) -> Callable[..., Any]:
    def dumped(value: Any, *args: Any, **kwargs: Any) -> Any:
        import json

        if held.any_made() and PREFIX in json.dumps(value, default=str, skipkeys=True):
            problem = (
                "it writes a held call's result as JSON into a file: nobody knows that yet. Pass "
                "the container as it is, or print json.dumps(..., default=str)."
            )
            raise held.stopping(problem)
        return function(value, *args, **kwargs)

    return dumped


def plainly(error: BaseException) -> None:
    """Have errors that a program made with placeholders be described without looking at them."""
    queue = [error]
    for each in queue:
        each.args = tuple(
            str.__str__(arg)
            if isinstance(arg, HeldText)
            else repr(arg)
            if type(arg) is HeldResult
            else arg
            for arg in each.args
        )
        more = [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
        queue += [one for one in more if one is not None and one not in queue][: held.MAX_LEAVES]
        if len(queue) > held.MAX_LEAVES:
            break


class _Watcher(ast.NodeTransformer):
    """Puts our functions around what programs do."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.func = _call("called", [node.func], node.func)
        return _call("text", [node], node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self._inside(node)
        return _call("text", [node], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("text", [node], node) if isinstance(node.op, ast.Mod) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        name = _COMPARISONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
        return node if name is None else _call(name, [node.left, *node.comparators], node)

    def _inside(self, node: ast.JoinedStr) -> None:
        # A format of a value is of this type, too, and nothing else can stand there.
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
                if isinstance(part.format_spec, ast.JoinedStr):
                    self._inside(part.format_spec)


_COMPARISONS: Dict[Any, str] = {
    ast.Is: "same",
    ast.IsNot: "not_same",
    ast.In: "among",
    ast.NotIn: "not_among",
}


def _call(name: str, arguments: List[Any], place: Any) -> ast.Call:
    function = ast.copy_location(ast.Name("__plan_%s__" % name, ast.Load()), place)
    return ast.copy_location(ast.Call(function, arguments, []), place)


_NAMES = {
    "__plan_%s__" % function.__name__: function
    for function in (called, text, same, not_same, among, not_among)
}
