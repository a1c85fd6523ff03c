"""One program from its text to its outcome.

Owns compiling, top-level await, the value of the last expression and the translation of whatever
ends a program into a `Done` frame. Runs in the worker, in its main thread.
"""

from __future__ import annotations

import _ast
import atexit
import contextlib
import gc
import sys
import types
import warnings
from collections.abc import Awaitable
from itertools import islice

from bridge.guest.api.program_files import FILENAME, file_name
from bridge.guest.api.tracebacks import (
    describe,
    describe_syntax,
    guest_files,
    register_source,
)
from bridge.guest.api.values import Blob, to_json
from bridge.guest.protocol.placeholders import Unknown
from bridge.guest.protocol.wire import Done, Run, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Optional, Tuple


RESULT_NAME = "__run_python_result__"
"""Holds the last expression's value between the code and us; gone before anybody else looks."""

MAX_REPR_CHARS = 4000
"""Of a value that JSON cannot hold: enough for a data frame as pandas prints it."""

DEFAULT_RESULT_BYTES = 1024 * 1024

MAX_LOOKED_AT = 20
"""Items of a last expression's value of which it is asked whether they are for showing."""

_SEEN = frozenset(("PIL", "matplotlib", "numpy", "pandas", "polars", "pyarrow"))
"""Libraries whose values are, also where a list holds them."""

_COMPILE_FLAGS = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""`_ast` is what `ast` is made of, without the tools around it that take milliseconds to import."""

_COROUTINE, _ITERABLE_COROUTINE = 0x80, 0x100
"""Flags of code, named in `inspect`, which is not imported for them."""


class Refused(Exception):
    """The program's text is no program; holds the message for its author."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


def compile_program(source: str, name: str = FILENAME) -> Tuple[types.CodeType, bool]:
    """Return the program's code and whether it ends in an expression.

    Args:
        name: What it goes by in tracebacks.

    Raises:
        Refused: It does not compile.
    """
    source = source[1:] if source.startswith("\ufeff") else source
    register_source(source, name)
    try:
        tree = _parse(source, name)
        has_value = _keep_last_value(tree)
        if "memor" in source or "_skill" in source or "save_tool" in source:
            from bridge.guest.api.awaits import strip_await

            strip_await(tree)
        code = compile(tree, name, "exec", _COMPILE_FLAGS, dont_inherit=True)
    except SyntaxError as error:
        raise Refused(describe_syntax(error), type(error).__name__) from None
    except UnicodeEncodeError as error:
        message = "SyntaxError: the program holds %r at position %d, which is no character (%s)"
        text = message % (source[error.start : error.start + 1], error.start, error.reason)
        raise Refused(text, "SyntaxError") from None
    except ValueError as error:
        # Older Pythons report null bytes this way.
        raise Refused("SyntaxError: %s" % error, "SyntaxError") from None
    except (RecursionError, MemoryError) as error:
        text = "SyntaxError: the program is nested too deeply to compile (%s)"
        raise Refused(text % type(error).__name__, "SyntaxError") from None
    return code, has_value


def _parse(source: str, name: str) -> _ast.Module:
    flags = _ast.PyCF_ONLY_AST | _COMPILE_FLAGS
    try:
        tree = compile(source, name, "exec", flags, dont_inherit=True)
    except IndentationError:
        # A program pasted out of a block is indented as a whole; its author meant the inside.
        import textwrap

        dedented = textwrap.dedent(source)
        if dedented == source:
            raise
        try:
            tree = compile(dedented, name, "exec", flags, dont_inherit=True)
        except SyntaxError:
            tree = None
        if tree is None:
            raise
        register_source(dedented, name)
    assert isinstance(tree, _ast.Module)
    return tree


def _keep_last_value(tree: _ast.Module) -> bool:
    """Turn a last expression into an assignment; return whether there was one."""
    if not tree.body or not isinstance(tree.body[-1], _ast.Expr):
        return False
    last = tree.body[-1]
    place: Dict[str, Any] = {name: getattr(last, name) for name in last._attributes}
    target = _ast.Name(RESULT_NAME, _ast.Store(), **place)
    tree.body[-1] = _ast.Assign([target], last.value, **place)
    return True


class Program:
    """Runs one program in a module of its own, or a session's, and says how it ended.

    Args:
        module: The session's, which has the globals already.
        run_loop: Runs a coroutine to its end.
    """

    def __init__(
        self,
        run: Run,
        namespace: Dict[str, Any],
        module: Optional[types.ModuleType] = None,
        run_loop: Optional[Callable[[Any], Any]] = None,
    ) -> None:
        self._source = run.code
        self._name = run.name or file_name(run.session)
        self._result_bytes = int(run.limits.get("result_bytes", DEFAULT_RESULT_BYTES))
        self._run_loop = run_loop or _run_loop
        if module is None:
            module = types.ModuleType("__main__")
            module.__dict__.update(namespace)
            module.__dict__["__builtins__"] = sys.modules["builtins"]
        self.module = module

    def run(self) -> Done:
        """Run the program to the end of its main thread's work."""
        try:
            code, has_value = compile_program(self._source, self._name)
        except Refused as refused:
            return Done("exception", 1, error=refused.text, error_type=refused.kind)
        sys.modules["__main__"] = self.module
        # Before the program's first line, so that it may still put its own in place.
        warnings.formatwarning = _format_warning
        try:
            value = self._execute(code, has_value)
            return self._finished(value, has_value)
        except SystemExit as error:
            return _exit(error)
        except BaseException as error:
            return self._failed(error)

    def _execute(self, code: types.CodeType, has_value: bool) -> Any:
        namespace = self.module.__dict__
        if code.co_flags & _COROUTINE:
            return self._run_loop(_await_program(code, namespace))
        exec(code, namespace)
        value = namespace.pop(RESULT_NAME, None)
        if has_value and _is_awaitable(value):
            # `main()` without `await` at the end of a program means what it says.
            return self._run_loop(_await_value(value))
        return value

    def _failed(self, error: BaseException) -> Done:
        held = sys.modules.get("bridge.guest.api.held_results")
        if held is not None:
            held.blame(error)
        hook = sys.excepthook
        if hook is not sys.__excepthook__:
            try:
                hook(type(error), error, error.__traceback__)
            except BaseException:
                # The program's own hook failed; the error itself is reported below all the same.
                hook = sys.__excepthook__
        return Done(
            "exception",
            1,
            error=describe(error, guest_files()),
            error_type=type(error).__name__,
        )

    def _finished(self, value: Any, has_value: bool) -> Done:
        if not has_value or value is None:
            # As at Python's prompt: most programs end in a `print`, whose None tells nothing.
            return Done("ok")
        if _is_shown(value):
            return Done("ok")
        try:
            plain = to_json(value)
            size = len(encode(Done("ok", result=plain)))
        except BaseException:
            # Not JSON, or a value that answers questions about itself with errors of its own.
            return Done("ok", result_repr=_told_repr(value))
        if size > self._result_bytes:
            # Of output the ends are shown, and all of it is kept.
            return Done("ok", result_repr=print_json(plain))
        return Done("ok", has_result=True, result=plain)


def _run_loop(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


def _is_shown(value: Any) -> bool:
    """Show a value that is rather seen than told, such as a figure; return whether it was."""
    kind = type(value)
    if kind in (list, tuple, dict):
        if not _holds_others(value):
            return False
    elif not (kind is bytes or _is_other(kind)):
        return False
    from bridge.guest.worker.surroundings import shower  # most values are data

    return shower().show_last(value)


def _is_other(kind: type) -> bool:
    """Tell whether values of a type are for showing, perhaps: most are data."""
    return kind.__module__ != "builtins" and not issubclass(
        kind, (dict, str, int, float, list, Unknown)
    )


def _holds_others(value: Any) -> bool:
    """Tell whether a list, tuple or dict holds such values."""
    if _SEEN.isdisjoint(sys.modules) and Blob not in map(type, _first(value)):
        return False
    return any(
        _is_other(type(item)) or any(_is_other(type(part)) for part in _first(item))
        for item in _first(value)
    )


def _first(value: Any) -> Any:
    """Return the first few items of a list, tuple or dict; of anything else none."""
    kind = type(value)
    if kind is dict:
        return list(islice(value.values(), MAX_LOOKED_AT))
    return value[:MAX_LOOKED_AT] if kind is list or kind is tuple else ()


def _is_awaitable(value: Any) -> bool:
    if isinstance(value, Unknown):
        return False
    if isinstance(value, types.GeneratorType):
        return bool(value.gi_code.co_flags & _ITERABLE_COROUTINE)
    return isinstance(value, Awaitable)


async def _await_program(code: types.CodeType, namespace: Dict[str, Any]) -> Any:
    await eval(code, namespace)
    value = namespace.pop(RESULT_NAME, None)
    return await value if _is_awaitable(value) else value


async def _await_value(value: Any) -> Any:
    return await value


def _exit(error: SystemExit) -> Done:
    """Return what the interpreter makes of `sys.exit(...)`."""
    code = error.code
    if code is None:
        return Done("exit", 0, error_type="SystemExit")
    if isinstance(code, int):
        return Done("exit", int(code) & 0xFF, error_type="SystemExit")
    try:
        text = str(code)
    except BaseException:
        text = "<unprintable %s object>" % type(code).__name__
    try:
        print(text, file=sys.stderr, flush=True)
    except BaseException:
        # The program may have replaced or closed its stderr.
        return Done("exit", 1, error=text[:MAX_REPR_CHARS], error_type="SystemExit")
    return Done("exit", 1, error_type="SystemExit")


def _told_repr(value: Any) -> str:
    """Return the `repr` of a value; a long one is printed."""
    try:
        text = repr(value)
        if len(text) <= MAX_REPR_CHARS:
            return text
        return print_repr(value)
    except BaseException as error:
        return "<%s object; its repr raised %s>" % (type(value).__name__, type(error).__name__)


def ending(done: Done) -> Done:
    """Return how a program ended, or that the plan it was to make ended before.

    Asked when its threads and exit handlers are through: they may be what has to stop.
    """
    held = sys.modules.get("bridge.guest.api.held_results")
    return done if held is None else held.ending(done)


def wind_down(module: types.ModuleType) -> None:
    """Do what the interpreter does at its end, as far as a program can notice.

    Non-daemon threads are joined, exit handlers run, and the program's globals are dropped, which
    is when Python warns of coroutines that nobody awaited.
    """
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        _quietly(threading._shutdown)
    _quietly(atexit._run_exitfuncs)
    threads = threading.enumerate() if threading is not None else ()
    if len([thread for thread in threads if thread.name != "mcp-replies"]) <= 1:
        # Daemon threads still running would trip over missing globals, and say so at length.
        _quietly(module.__dict__.clear)
        _quietly(gc.collect)
    # The program may have put its own streams in place of ours.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        flush: Optional[Callable[[], Any]] = getattr(stream, "flush", None)
        if flush is not None:
            _quietly(flush)


_python_format = warnings.formatwarning


def _format_warning(
    message: Any, category: Any, filename: str, lineno: int, line: Optional[str] = None
) -> str:
    """Return a warning's text; with a hint if an `await` is missing."""
    text = str(message)
    if "was never awaited" not in text:
        return _python_format(message, category, filename, lineno, line)
    text = "%s: %s; nothing was sent or run. Put `await` before it.\n" % (category.__name__, text)
    # In our own code it was only found, long after the line that forgot it.
    return text if filename in guest_files() else "%s:%d: %s" % (filename, lineno, text)


def _quietly(action: Callable[[], Any]) -> None:
    try:
        action()
    except BaseException:
        # Each step is best effort, as in the interpreter: the outcome is decided already.
        return


# --- a value that is too much for a result: printed, an item a line -------------------------------

MAX_KEYS = 8
"""Of an object that are named in the result."""

MAX_KEY_CHARS = 40

_BRACKETS: Dict[Any, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def print_json(value: Any) -> str:
    """Print a value of plain JSON; return what stands for it. A text is printed as it is."""
    import json

    def dump(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False)

    if isinstance(value, str):
        return _printed(iter((value,)), value, "")
    # Of an object, what is in its lists.
    return _printed(_lines(value, 2 if type(value) is dict else 1, dump), value, " as JSON")


def print_repr(value: Any) -> str:
    """Print a value that JSON cannot hold as its `repr`; return what stands for it."""
    return _printed(_lines(value, 1, repr), value, " as repr")


def _printed(pieces: Iterator[str], value: Any, form: str) -> str:
    # Past whatever the program put there, which nobody will read.
    stream = sys.__stdout__ or sys.stdout
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        piece = ""
        for piece in pieces:
            stream.write(piece)
        stream.write("" if piece.endswith("\n") else "\n")
        stream.flush()
    except Exception as error:
        # The program may have closed it, or put something of its own there.
        return "%s; it cannot be printed: %s" % (shape(value), type(error).__name__)
    by_items = ", an item a line" if type(value) in _BRACKETS else ""
    return "%s, printed to stdout%s%s" % (shape(value), form, by_items)


def _lines(value: Any, depth: int, dump: Callable[[Any], str]) -> Iterator[str]:
    """Yield the pieces of a value's text, with an item a line down to a depth."""
    kind = type(value)
    brackets = _BRACKETS.get(kind)
    if not depth or not brackets or not value:
        yield dump(value)
        return
    before = brackets[0] + "\n"
    for item in value.items() if kind is dict else value:
        yield before
        before = ",\n"
        if kind is dict:
            key, item = item
            yield "%s: " % dump(key)
        yield from _lines(item, depth - 1, dump) if type(item) in (list, dict) else (dump(item),)
    # One item in round brackets alone is no tuple.
    yield (",\n" if kind is tuple and len(value) == 1 else "\n") + brackets[1]


def shape(value: Any) -> str:
    """Return what a value is and how large, with the first of its keys."""
    kind = type(value)
    if kind is str:
        return "text of %s characters" % f"{len(value):,}"
    if kind not in _BRACKETS:
        return str(kind.__name__)
    told = "%s of %s" % (kind.__name__, f"{len(value):,}")
    if kind is not dict or len(value) > MAX_KEYS:
        return told
    keys = ("%s: %s" % (_key(key), _brief(item)) for key, item in value.items())
    return "%s (%s)" % (told, ", ".join(keys))


def _brief(value: Any) -> str:
    kind = type(value)
    return "%s of %s" % (kind.__name__, f"{len(value):,}") if kind in _BRACKETS else kind.__name__


def _key(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= MAX_KEY_CHARS else text[:MAX_KEY_CHARS] + "..."
