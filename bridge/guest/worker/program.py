"""Runs one program in the worker's main thread, from its source to a `Done` frame."""

from __future__ import annotations

import _ast
import atexit
import gc
import os
import sys
import types
import warnings
from collections.abc import Awaitable
from contextlib import suppress
from itertools import islice

from bridge.guest.api.program_files import FILENAME, PROGRAM_FILE, strip_await
from bridge.guest.api.tracebacks import describe, describe_syntax, guest_files, register_source
from bridge.guest.api.values import to_json
from bridge.guest.imports import OnImport
from bridge.guest.protocol.helpers import PLAIN
from bridge.guest.protocol.placeholders import Unknown
from bridge.guest.protocol.wire import Done, Run, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

RESULT_NAME = "__run_python_result__"
"""The global that holds the last expression's value until it is taken out."""

ASSIGNED_NAME = "__run_python_assigned__"  # The global that holds the value of a last assignment.

_COMPILE_FLAGS = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""`_ast` is the core of `ast`, whose import takes milliseconds."""

TREE_FLAGS = _ast.PyCF_ONLY_AST | _COMPILE_FLAGS

_NEED_LOOP = frozenset(("create_task", "ensure_future", "gather", "get_running_loop", "shield"))
"""Functions of asyncio that fail where no event loop runs."""

_COROUTINE, _ITERABLE_COROUTINE = 0x80, 0x100  # Code flags as in `inspect`, whose import is slow.


def compile_program(source: str, name: str = FILENAME) -> Union[Tuple[types.CodeType, bool], Done]:
    """Return the code and whether its end has a value; the outcome if it does not compile."""
    source = source[1:] if source.startswith("\ufeff") else source
    register_source(source, name)
    try:
        tree = _parse(source, name)
        has_value = _keep_last_value(tree.body)
        if "asyncio" in source and _makes_tasks(tree):
            # Never run; code that awaits runs in an event loop.
            tree.body += compile("if 0: await 0", name, "exec", TREE_FLAGS).body
        if "await" in source and any(name in source for name in PLAIN):
            strip_await(tree)
        return compile(tree, name, "exec", _COMPILE_FLAGS, dont_inherit=True), has_value
    except SyntaxError as error:
        return Done("exception", 1, describe_syntax(error), type(error).__name__)
    except UnicodeEncodeError as error:
        message = "the program holds %r at position %d, which is no character (%s)"
        text = message % (source[error.start : error.start + 1], error.start, error.reason)
    except ValueError as error:
        # Older Pythons report null bytes this way.
        text = str(error)
    except (RecursionError, MemoryError) as error:
        text = "the program is nested too deeply to compile (%s)" % type(error).__name__
    return Done("exception", 1, "SyntaxError: " + text, "SyntaxError")


def _parse(source: str, name: str) -> Any:
    try:
        return compile(source, name, "exec", TREE_FLAGS, dont_inherit=True)
    except IndentationError:
        # A program copied out of a block may be indented as a whole.
        import textwrap

        dedented = textwrap.dedent(source)
        with suppress(SyntaxError):
            tree = compile(dedented, name, "exec", TREE_FLAGS, dont_inherit=True)
            register_source(dedented, name)
            return tree
        raise


def _keep_last_value(body: List[Any]) -> bool:
    """Keep the value of the last expression or assignment; return whether there is one.

    The last statements of a `with`, and of each branch of a `try`, `if` or `match`, count too.
    """
    last: Any = body[-1] if body else None
    places = getattr(last, "_attributes", ())
    position: Dict[str, Any] = {name: getattr(last, name) for name in places}
    if isinstance(last, _ast.Expr):
        kept = _ast.Name(RESULT_NAME, _ast.Store(), **position)
        body[-1] = _ast.Assign([kept], last.value, **position)
        return True
    if isinstance(last, (_ast.Assign, _ast.AnnAssign)) and last.value is not None:
        target = last.targets[-1] if isinstance(last, _ast.Assign) else last.target
        if isinstance(target, _ast.Name):
            kept = _ast.Name(ASSIGNED_NAME, _ast.Store(), **position)
            value = _ast.Name(target.id, _ast.Load(), **position)
            body.append(_ast.Assign([kept], value, **position))
            return True
    bodies: List[Any] = []
    kind = type(last).__name__
    if kind in ("Try", "TryStar"):
        bodies = [last.orelse or last.body, *(handler.body for handler in last.handlers)]
    elif kind in ("If", "With", "AsyncWith"):
        bodies = [last.body, getattr(last, "orelse", [])]
    elif kind == "Match":
        bodies = [case.body for case in last.cases]
    return max(map(_keep_last_value, bodies), default=False)


def _nodes(root: Any, skipped: Tuple[type, ...] = ()) -> Iterator[Any]:
    """Yield a node and those below it, but none of the skipped kinds, as `ast.walk` does."""
    queue = [root]
    for node in queue:
        if isinstance(node, list):
            queue += node
        elif isinstance(node, _ast.AST) and not isinstance(node, skipped):
            yield node
            queue += [getattr(node, field, None) for field in node._fields]


def _makes_tasks(tree: Any) -> bool:
    for node in _nodes(tree, skipped=(_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.Lambda)):
        function: Any = getattr(node, "func", None)
        of_asyncio = getattr(getattr(function, "value", None), "id", "") == "asyncio"
        if getattr(function, "attr" if of_asyncio else "id", "") in _NEED_LOOP:
            return True
    return False


class GuestProgram:
    """Runs one program in a new module, or in a session's."""

    def __init__(
        self,
        run: Run,
        namespace: Dict[str, Any],
        module: Optional[types.ModuleType] = None,
        run_loop: Optional[Callable[[Any], Any]] = None,
    ) -> None:
        self._source = run.code
        self._name = run.name or ("<run_python %d>" % run.session if run.session else FILENAME)
        self._file = run.name or PROGRAM_FILE
        self._in_session = run.session > 0
        self._result_bytes = int(run.limits.get("result_bytes", 1024 * 1024))
        self._run_loop = run_loop or (lambda coroutine: __import__("asyncio").run(coroutine))
        if module is None:
            module = types.ModuleType("__main__")
            module.__dict__.update(namespace)
            module.__dict__["__builtins__"] = sys.modules["builtins"]
        self.module = module

    def run(self) -> Done:
        compiled = compile_program(self._source, self._name)
        if isinstance(compiled, Done):
            return compiled
        sys.modules["__main__"] = self.module
        self._give_file()
        # Before the program starts, so that it may set its own.
        warnings.formatwarning = _format_warning
        try:
            code, has_value = compiled
            value = self._execute(code, has_value)
            if (left := sys.modules.get("bridge.guest.worker.leftovers")) is not None:
                left.finish_loops()
            assigned = self.module.__dict__.pop(ASSIGNED_NAME, None)
            held = "bridge.guest.api.held_results" in sys.modules
            if value is None and assigned is not None and not (self._in_session or held):
                return self._outcome_of_assignment(assigned)
            return self._outcome_of_value(value, has_value)
        except SystemExit as error:
            return _exit(error)
        except BaseException as error:
            return self._outcome_of_error(error)

    def _give_file(self) -> None:
        """Set the program's `__file__`; the file is written before code can read it."""
        path = self.module.__dict__["__file__"] = os.path.join(os.getcwd(), self._file)
        if "__file__" in self._source:
            _write_file(path, self._source)
        OnImport("multiprocessing.spawn", lambda: _write_file(path, self._source))

    def _execute(self, code: types.CodeType, has_value: bool) -> Any:
        namespace = self.module.__dict__
        if code.co_flags & _COROUTINE:
            return self._run_loop(_await_program(code, namespace))
        exec(code, namespace)
        value = namespace.pop(RESULT_NAME, None)
        if has_value and _is_awaitable(value):
            # A last line `main()` without `await` is awaited.
            return self._run_loop(_await_value(value))
        return list(value) if isinstance(value, types.GeneratorType) else value

    def _outcome_of_error(self, error: BaseException) -> Done:
        held = sys.modules.get("bridge.guest.api.held_results")
        if held is not None:
            held.blame(error)
        hook = sys.excepthook
        if hook is not sys.__excepthook__:
            try:
                hook(type(error), error, error.__traceback__)
            except BaseException:
                # The program's own hook failed; the error is still reported below.
                hook = sys.__excepthook__
        text, kind = describe(error, guest_files()), type(error).__name__
        return Done("exception", 1, text, kind, out_of_memory=_failed_to_allocate(error))

    def _outcome_of_value(self, value: Any, has_value: bool) -> Done:
        # As at Python's prompt: most programs end in a `print`, which returns None.
        if not has_value or value is None or _was_displayed(value):
            return Done("ok")
        if getattr(value, "_parts", None) is not None:
            for line in sys.modules["bridge.guest.api.results"].more_lines(value):
                print(line)
        try:
            plain = _plain(value)
            size = len(encode(Done("ok", result=plain)))
        except BaseException:
            # Not JSON, or a value whose methods raise.
            return Done("ok", result_repr=_repr_or_print(value))
        if size > self._result_bytes:
            # Printed: a client sees both ends of long output, and all of it is kept.
            return Done("ok", result_repr=print_json(plain))
        return Done("ok", has_result=True, result=plain)

    def _outcome_of_assignment(self, value: Any) -> Done:
        """Return the outcome with a value that the host shows if the program printed nothing."""
        with suppress(BaseException):  # It is not JSON.
            done = Done("ok", has_result=True, result=to_json(value), assigned=True)
            if len(encode(done)) <= self._result_bytes:
                return done
        return Done("ok")


def _plain(value: Any) -> Any:
    try:
        return to_json(value)
    except TypeError:
        from bridge.guest.schema.schemas import convert  # most values are plain

        return to_json(_with_texts(convert(value, True, {})))


def _with_texts(value: Any, inside: bool = False) -> Any:
    """Return a value with durations, bytes and keys converted to their printed texts."""
    kind = type(value)
    if kind is dict:
        import json

        texts = [k if isinstance(k, (str, tuple)) else json.dumps(k) for k in value]
        items = [_with_texts(item, True) for item in value.values()]
        # Two keys may have one text.
        return dict(zip(texts, items)) if len({*texts}) == len(items) else value  # noqa: B905
    if kind is list:
        return [_with_texts(item, True) for item in value]
    if kind is bytes and inside:
        return value.decode("utf-8", "backslashreplace")
    return str(value) if (kind.__module__, kind.__name__) == ("datetime", "timedelta") else value


def _failed_to_allocate(error: BaseException) -> bool:
    """Return whether the interpreter or a library raised a MemoryError, not a `raise` statement."""
    if not isinstance(error, MemoryError):
        return False
    from opcode import opmap

    instruction, trace = -1, error.__traceback__
    while trace is not None:
        instruction, trace = trace.tb_frame.f_code.co_code[trace.tb_lasti], trace.tb_next
    return instruction != opmap["RAISE_VARARGS"]


def _was_displayed(value: Any) -> bool:
    if isinstance(value, list):
        # A list with parts is displayed as a plain one.
        value = list(value)
    items = _first(value)
    parts = [value, *items, *(part for item in items for part in _first(item))]
    if type(value) is not bytes and not any(_may_be_displayed(type(part)) for part in parts):
        return False
    from bridge.guest.worker.environment import current_display  # most values are data

    return current_display().show_last(value)


def _may_be_displayed(kind: type) -> bool:
    plain = dict, str, int, float, list, Unknown
    return kind.__module__ != "builtins" and not issubclass(kind, plain)


def _first(value: Any) -> Any:
    items = value.values() if type(value) is dict else value
    return list(islice(items, 20)) if type(value) in (dict, list, tuple) else ()


def _is_awaitable(value: Any) -> bool:
    if isinstance(value, Unknown):
        return False
    if isinstance(value, types.GeneratorType):
        return bool(value.gi_code.co_flags & _ITERABLE_COROUTINE)
    return isinstance(value, Awaitable)


async def _await_program(code: types.CodeType, namespace: Dict[str, Any]) -> Any:
    await eval(code, namespace)
    value = namespace.pop(RESULT_NAME, None)
    if isinstance(value, types.AsyncGeneratorType):
        return [item async for item in value]
    if isinstance(value, types.GeneratorType) and not _is_awaitable(value):
        return list(value)
    return await value if _is_awaitable(value) else value


async def _await_value(value: Any) -> Any:
    return await value


def _exit(error: SystemExit) -> Done:
    code = error.code
    if code is None or isinstance(code, int):
        return Done("exit", int(code or 0) & 0xFF, error_type="SystemExit")
    text = "<unprintable %s object>" % type(code).__name__
    with suppress(BaseException):
        text = str(code)
    with suppress(BaseException):  # The program may have replaced or closed its stderr.
        print(text, file=sys.stderr, flush=True)
        text = ""
    return Done("exit", 1, text, "SystemExit")


def _repr_or_print(value: Any) -> str:
    try:
        text = repr(value)
        if len(text) <= 4000:
            # Enough for a data frame as pandas prints it.
            return text
        return _print_pieces(_lines(value, 1, repr), value, " as repr")
    except BaseException as error:
        return "<%s object; its repr raised %s>" % (type(value).__name__, type(error).__name__)


def final_outcome(done: Done) -> Done:
    """Return the program's outcome; an exception if a placeholder stopped it."""
    held = sys.modules.get("bridge.guest.api.held_results")
    done = done if held is None else held.final_outcome(done)
    left = sys.modules.get("bridge.guest.worker.leftovers")
    return done if left is None else Done(**{**done.__dict__, "unsent": left.take_unsent()})


def show_uncaught(done: Done) -> None:
    """Print an exception as the interpreter does, unless the program has its own hook."""
    if done.outcome != "exception" or sys.excepthook is not sys.__excepthook__:
        return
    try:
        print(done.error, file=sys.stderr, flush=True)
    except Exception:
        # The program may have replaced or closed its stderr.
        return


def shut_down(module: types.ModuleType) -> None:
    """Do what the interpreter does at exit, as far as a program can observe.

    Joins non-daemon threads, runs exit handlers and clears the program's globals; then Python warns
    about coroutines that were never awaited.
    """
    threading: Any = sys.modules.get("threading")
    # Each step is best effort, as in the interpreter: the outcome is set already.
    with suppress(BaseException):
        if threading is not None:
            threading._shutdown()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    threads = threading.enumerate() if threading is not None else ()
    if len([thread for thread in threads if thread.name != "mcp-replies"]) <= 1:
        # Not with daemon threads: they would fail on missing globals and print tracebacks.
        with suppress(BaseException):
            module.__dict__.clear()
            gc.collect()
    flush_streams()


def flush_streams() -> None:
    streams: Any = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    for stream in streams:
        with suppress(BaseException):  # The program may have replaced or closed it.
            stream.flush()


_python_format = warnings.formatwarning


def _format_warning(
    message: Any, category: Any, filename: str, lineno: int, line: Optional[str] = None
) -> str:
    text = str(message)
    if "was never awaited" not in text:
        return _python_format(message, category, filename, lineno, line)
    from bridge.guest.worker.leftovers import note_unsent

    note_unsent(text.partition("'")[2].partition("'")[0] + " (not awaited)")
    text = "%s: %s; nothing was sent or run. Put `await` before it.\n" % (category.__name__, text)
    # A line of the guest's own code is not where the `await` is missing.
    return text if filename in guest_files() else "%s:%d: %s" % (filename, lineno, text)


_BRACKETS: Dict[Any, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def print_json(value: Any) -> str:
    """Print a JSON value, a string without quotes; return its description for the result."""
    import json

    def dump(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False)

    if isinstance(value, str):
        return _print_pieces(iter((value,)), value, "")
    # Of an object, what is in its lists.
    return _print_pieces(_lines(value, 2 if type(value) is dict else 1, dump), value, " as JSON")


def _print_pieces(pieces: Iterator[str], value: Any, form: str) -> str:
    # The original stream: the program may have redirected stdout to one that is not shown.
    stream = sys.__stdout__ or sys.stdout
    with suppress(Exception):
        sys.stdout.flush()
    try:
        piece = ""
        for piece in pieces:
            stream.write(piece)
        stream.write("" if piece.endswith("\n") else "\n")
        stream.flush()
    except Exception as error:
        # The program may have closed or replaced it.
        return "%s; it cannot be printed: %s" % (shape(value), type(error).__name__)
    by_items = ", an item a line" if type(value) in _BRACKETS else ""
    return "%s, printed to stdout%s%s" % (shape(value), form, by_items)


def _lines(value: Any, depth: int, dump: Callable[[Any], str]) -> Iterator[str]:
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
    # A tuple of one item needs its comma.
    yield (",\n" if kind is tuple and len(value) == 1 else "\n") + brackets[1]


def shape(value: Any, brief: bool = False) -> str:
    """Return a value's type and size, and unless `brief` an object's keys if they are few."""
    kind = type(value)
    if kind is str and not brief:
        return "text of %s characters" % f"{len(value):,}"
    if kind not in _BRACKETS:
        return str(kind.__name__)
    description = "%s of %s" % (kind.__name__, f"{len(value):,}")
    if kind is not dict or len(value) > 8 or brief:
        return description
    keys = []
    for key, item in value.items():
        name = repr(key)
        name = name if len(name) <= 40 else name[:40] + "..."
        keys.append("%s: %s" % (name, shape(item, brief=True)))
    return "%s (%s)" % (description, ", ".join(keys))


_written: Set[str] = set()


def _write_file(path: str, source: str) -> None:
    """Write a program's file, unless a file of the user's has its name."""
    try:
        with open(path, "w" if path in _written else "x", encoding="utf-8") as file:
            file.write(importable(source))
        _written.add(path)
    except Exception:
        # The directory is full or has such a file, or the text is indented; the file is optional.
        return


def importable(source: str) -> str:
    """Return a program's text in a form that a `spawn` or `forkserver` pool process can import.

    Without a `__main__` guard, or with top-level `await`, such a process gets definitions only.
    """
    tree: Any = compile(source, "", "exec", TREE_FLAGS, dont_inherit=True)
    if any(map(_is_main, tree.body)):
        try:
            compile(source, "", "exec", dont_inherit=True)
        except SyntaxError:
            pass  # it awaits at top level
        else:
            return source
    lines = source.splitlines(keepends=True)
    kept: Set[int] = set()
    for node in filter(_defines, tree.body):
        first = min(one.lineno for one in (node, *getattr(node, "decorator_list", ())))
        kept.update(range(first, node.end_lineno + 1))
    return "".join(line if n in kept else "\n" for n, line in enumerate(lines, 1))


def _defines(node: Any) -> bool:
    if isinstance(node, (_ast.Import, _ast.ImportFrom)):
        names = [getattr(node, "module", None) or node.names[0].name]
        return not names[0].startswith("mcp")
    if isinstance(node, (_ast.Assign, _ast.AnnAssign)):
        return not any(isinstance(part, (_ast.Call, _ast.Await)) for part in _nodes(node))
    return isinstance(node, (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef))


def _is_main(node: Any) -> bool:
    test: Any = node.test if isinstance(node, _ast.If) and not node.orelse else None
    named = isinstance(test, _ast.Compare) and getattr(test.left, "id", "") == "__name__"
    return named and isinstance(test.ops[0], _ast.Eq)
