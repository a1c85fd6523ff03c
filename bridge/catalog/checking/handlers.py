"""What becomes of an exception: caught by whom, and which statements end a block.

Owns the reading of `except`, of contexts that swallow exceptions and of statements after which
nothing runs. Where it cannot be told, everything counts as caught: only what is sure to end a
program may be called certain.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

EVERYTHING = frozenset({"*"})
"""Stands for every exception."""

NOTHING: frozenset[str] = frozenset()

_BUILTIN = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
_OWN_PARENTS = {
    "MCPError": ("RuntimeError",),
    "ArgumentsError": ("TypeError", "RuntimeError", "MCPError"),
    "MissingKeyError": ("KeyError",),
    "JSONDecodeError": ("ValueError",),
    "CancelledError": ("BaseException",),
}
"""Exceptions that are no builtins, and what they are."""

_ENDS = frozenset({"exit", "quit", "_exit", "abort"})
_SWALLOWING = ("suppress", "raises", "Raises", "ignor", "except", "Except", "catch", "timeout")


def catches(caught: frozenset[str], kind: str) -> bool:
    """Return whether one of the names catches an exception, builtin or one of `runtime`'s."""
    if not caught:
        return False
    if "*" in caught:
        return True
    names = {kind, *_OWN_PARENTS.get(kind, ())}
    for name in names & _BUILTIN.keys():
        names |= {ancestor.__name__ for ancestor in _BUILTIN[name].__mro__}
    return not caught.isdisjoint(names)


def swallowed(
    handlers: Sequence[ast.ExceptHandler], last: Sequence[ast.stmt] = ()
) -> frozenset[str]:
    """Return the exceptions that some handler, or the `finally`, keeps from going further."""
    found = NOTHING
    if last and isinstance(last[-1], ast.Return | ast.Break | ast.Continue):
        # Whatever was raised is dropped.
        return EVERYTHING
    for handler in handlers:
        if not _raises_again(handler.body):
            found |= _named(handler.type)
    return found


def _raises_again(body: Sequence[ast.stmt]) -> bool:
    """Whether a handler only says something and then raises the same again."""
    last = body[-1]
    plain = all(isinstance(statement, ast.Expr) for statement in body[:-1])
    return isinstance(last, ast.Raise) and last.exc is None and plain


def swallowed_in_with(node: ast.With | ast.AsyncWith) -> frozenset[str]:
    """Return the exceptions that a `with` may keep from going further."""
    found = NOTHING
    for item in node.items:
        context = item.context_expr
        function = context.func if isinstance(context, ast.Call) else context
        name = _last_name(function)
        if name == "suppress" and isinstance(context, ast.Call):
            for argument in context.args:
                found |= _named(argument)
        elif not name or (isinstance(function, ast.Name) and name not in _PLAIN_CONTEXTS):
            # The program's own, as far as can be told.
            found |= EVERYTHING
        elif any(part in name for part in _SWALLOWING) and name not in _PLAIN_CONTEXTS:
            found |= EVERYTHING
    return found


_PLAIN_CONTEXTS = frozenset(
    """
    open Lock Semaphore BoundedSemaphore TaskGroup timeout timeout_at TemporaryDirectory
    NamedTemporaryFile TemporaryFile ZipFile ThreadPoolExecutor closing StringIO BytesIO
    """.split()  # noqa: SIM905 - as words they can be read
)


def leaves(statement: ast.stmt) -> bool:
    """Return whether nothing after a statement runs in its block."""
    if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _last_name(statement.value.func) in _ENDS
    return False


def _named(node: ast.expr | None) -> frozenset[str]:
    if isinstance(node, ast.Tuple):
        found = NOTHING
        for item in node.elts:
            found |= _named(item)
        return found
    name = _last_name(node) if node is not None else ""
    if name in _BUILTIN:
        # A task group wraps whatever its tasks raise.
        return EVERYTHING if name.endswith("ExceptionGroup") else frozenset({name})
    if name in _OWN_PARENTS:
        return frozenset({name})
    return EVERYTHING


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def may_leave(statement: ast.If) -> bool:
    """Return whether one way through an `if` ends the block around it."""
    return any(body and leaves(body[-1]) for body in (statement.body, statement.orelse))


def truth(test: ast.expr) -> bool | None:
    """Return whether a condition holds, where its text says so."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name):
        against = test.comparators[0]
        if test.left.id == "__name__" and isinstance(against, ast.Constant):
            same = against.value == "__main__"
            if isinstance(test.ops[0], ast.Eq):
                return same
            return not same if isinstance(test.ops[0], ast.NotEq) else None
    return None
