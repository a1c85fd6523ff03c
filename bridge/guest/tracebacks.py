"""An exception as text for the model: the program's own frames, bounded.

Owns which frames are shown and how much of a text is kept. Chained causes, notes and exception
groups stay; the guest's frames go wherever they stand.
"""

from __future__ import annotations

import errno
import io
import sys
import types

from bridge.guest import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AbstractSet, Any, List, Optional, Set

FILENAME = "<run_python>"
"""What the program's code goes by in tracebacks; a session's programs have a number each."""

_NUMBERED = "<run_python %d>"
_NUMBERED_HEAD = _NUMBERED.partition("%")[0]

SKILL_HEAD = "<skill "
"""How what saved skills go by begins."""

MAX_TEXT_CHARS = 24_000
"""Of one traceback: its beginning says where it started, its end what went wrong."""

MAX_FRAMES = 2000
"""Frames of one traceback that are looked at: more than the usual recursion limit allows."""

MAX_EXCEPTIONS = 64
"""Exceptions of a chain or group whose frames are trimmed; beyond that the text is cut anyway."""

_HINTS = (
    (
        "'return' outside function",
        "Hint: make the value the last expression of the program instead of returning it.",
    ),
    (
        "outside async function",
        "Hint: top-level await works; inside a function it needs `async def`.",
    ),
    (
        "outside of an asynchronous function",
        "Hint: inside a function this needs `async def`.",
    ),
    (
        "'yield' outside function",
        "Hint: a program is no generator; collect the values in a list.",
    ),
)


_PARSED = (
    "Hint: a tool's result is a Python value already; use it without json.loads, or read a text "
    'in it: json.loads(result["content"]).'
)
_IS_TEXT = (
    "Hint: this is text: print it to see it; json.loads reads it if it is JSON. A loop over a dict "
    "gives its keys."
)
_IS_METHOD = (
    'Hint: .items, .keys, .values, .get, .pop, .copy are methods of dicts; a key is x["items"].'
)

_MISUSES = (
    (
        ("coroutine",),
        "Hint: a call of a tool or an async function has its value only after `await`.",
    ),
    (
        ("async_generator",),
        "Hint: give it a list: [await f(x) for x in xs].",
    ),
    (
        ("can't be used in 'await' expression",),
        "Hint: only calls of tools and async functions are awaited; for several, asyncio.gather.",
    ),
    (
        ("JSON object must be str", "not Result"),
        _PARSED,
    ),
    (
        ("JSON object must be str", "not list"),
        "Hint: a tool's result is a Python value already; use it without json.loads.",
    ),
    (
        ("list indices must be integers",),
        "Hint: this is a list: take an item first, as in x[0], or loop over it.",
    ),
    (
        ("string indices must be integers",),
        _IS_TEXT,
    ),
    (
        ("builtin_function_or_method",),
        _IS_METHOD,
    ),
    (
        ("'list' object has no attribute",),
        "Hint: this is a list: take an item first, as in x[0], or loop over it.",
    ),
    (
        ("'str' object has no attribute",),
        "Hint: this is text: a tool that returns text has no fields; use the value itself.",
    ),
)
"""What is in the message, and what helps."""

_OUTSIDE = ("/home/", "/Users/", "/root/", "/mnt/", "/srv/", "/opt/", "/data/", "~", "C:", "D:")
"""Where programs look for the user's files."""

_NO_NETWORK = frozenset((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EAFNOSUPPORT))


def file_name(number: int) -> str:
    """Return what the program of a session's run goes by; number 0 is a run on its own."""
    return _NUMBERED % number if number else FILENAME


def is_program(name: str) -> bool:
    """Whether a file name is that of a program, or of a skill that it imports."""
    return name == FILENAME or name.startswith((_NUMBERED_HEAD, SKILL_HEAD))


def register_source(source: str, name: str = FILENAME) -> None:
    """Let tracebacks and `inspect` find the lines of the program that goes by `name`."""
    # Lines end where Python says so: str.splitlines knows ends that are none.
    lines = io.StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        # Without it the carets under the last line come out one column off.
        lines[-1] += "\n"

    def remember() -> None:
        sys.modules["linecache"].cache[name] = (len(source), None, lines, name)

    # Few programs need it, and it takes long to import.
    imports.OnImport("linecache", remember)


def describe(error: BaseException, guest_files: AbstractSet[str]) -> str:
    """Return the traceback of `error` as the program's author wants to see it."""
    try:
        import traceback

        left_out = _cut_long_stacks(error)
        details = traceback.TracebackException.from_exception(error)
        _trim(details, guest_files)
        text = _shorten("".join(details.format()).strip("\n"))
        if left_out:
            text = "[%d more calls of a deep recursion are not shown]\n%s" % (left_out, text)
        return text + _hint(error)
    except BaseException as problem:
        # Hostile or broken exceptions: a __str__ that raises, a cause that refers to itself.
        return "%s (its traceback cannot be shown: %s)" % (
            type(error).__name__,
            type(problem).__name__,
        )


def describe_syntax(error: BaseException) -> str:
    """Return why a program does not compile: no frames, they are the compiler's."""
    import linecache
    import traceback

    if isinstance(error, SyntaxError) and error.text is None and error.lineno:
        # What the compiler finds only after parsing comes without its line.
        error.text = linecache.getline(error.filename or FILENAME, error.lineno) or None
    lines = traceback.format_exception_only(type(error), error)
    return _shorten("".join(lines).strip("\n")) + _hint(error)


def _hint(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return _syntax_hint(error)
    if isinstance(error, ModuleNotFoundError):
        name = str(error.name or "")
        if name.startswith("mcp_"):
            return "\nHint: %s needs no import; it is there already." % name
        return "\nHint: nothing can be installed here; use the standard library or a server's tool."
    if isinstance(error, OSError) and _is_network(error):
        return "\nHint: the sandbox has no network; only tools of the servers reach outside."
    if isinstance(error, FileNotFoundError):
        return _file_hint(error)
    if isinstance(error, (TypeError, AttributeError)):
        return _misuse_hint(str(error)) or _plan_hint()
    return ""


def _file_hint(error: FileNotFoundError) -> str:
    """Return where files are, for a path that only the machine outside can have."""
    path = error.filename
    if isinstance(path, str) and path.startswith(_OUTSIDE):
        return "\nHint: the sandbox has none of the user's files; a server's tool can read them."
    return ""


def _misuse_hint(message: str) -> str:
    """Return what to do instead, for what programs do to results and to calls without `await`."""
    for fragments, hint in _MISUSES:
        if all(fragment in message for fragment in fragments):
            return "\n" + hint
    return ""


def _plan_hint() -> str:
    """Return that a value may have been a placeholder, in a run that has any."""
    held = sys.modules.get("bridge.guest.held")
    if held is None or not held.any_made():
        return ""
    return "\nHint: in a plan a held call returns a placeholder, which can only be passed on."


def _syntax_hint(error: SyntaxError) -> str:
    message = str(error.msg)
    for fragment, hint in _HINTS:
        if fragment in message:
            return "\n" + hint
    line = (error.text or "").strip()
    if line.startswith("```"):
        return "\nHint: give the program alone, without the Markdown fence around it."
    if line.startswith(("!", "%")):
        return "\nHint: this is plain Python; shell and notebook commands do not work."
    return ""


def _is_network(error: BaseException) -> bool:
    """Whether an error, or what it wraps as `urllib` does, comes from there being no network."""
    import socket

    seen = 0
    current: Any = error
    while isinstance(current, BaseException) and seen < MAX_EXCEPTIONS:
        if isinstance(current, socket.gaierror) or (
            isinstance(current, OSError) and current.errno in _NO_NETWORK
        ):
            return True
        current = current.__cause__ or current.__context__ or getattr(current, "reason", None)
        seen += 1
    return False


def _cut_long_stacks(error: BaseException) -> int:
    """Cut the middle out of overlong tracebacks, which take long to format; return by how much.

    A program that raised the recursion limit may have a million frames.
    """
    cut = 0
    queue: List[Optional[BaseException]] = [error]
    seen: Set[int] = set()
    while queue and len(seen) < MAX_EXCEPTIONS:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        steps = []
        step = current.__traceback__
        while step is not None:
            steps.append(step)
            step = step.tb_next
        if len(steps) > MAX_FRAMES:
            half = MAX_FRAMES // 2
            cut += len(steps) - 2 * half
            rebuilt = None
            for kept in reversed(steps[:half] + steps[-half:]):
                rebuilt = types.TracebackType(rebuilt, kept.tb_frame, kept.tb_lasti, kept.tb_lineno)
            current.__traceback__ = rebuilt
        queue += [current.__cause__, current.__context__]
        queue += getattr(current, "exceptions", None) or ()
    return cut


def _trim(details: Any, guest_files: AbstractSet[str]) -> None:
    queue: List[Any] = [details]
    seen: Set[int] = set()
    while queue and len(seen) < MAX_EXCEPTIONS:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.stack[:] = _own_frames(current.stack, guest_files)
        queue += [current.__cause__, current.__context__]
        queue += getattr(current, "exceptions", None) or []


def _own_frames(stack: List[Any], guest_files: AbstractSet[str]) -> List[Any]:
    """Return the frames from the program's first to its last and what these called.

    What leads up to the program is ours (event loop included), and so is what the program's last
    frame reached through us.
    """
    own = [index for index, frame in enumerate(stack) if is_program(frame.filename)]
    if not own:
        return []
    kept: List[Any] = []
    for index in range(own[0], len(stack)):
        frame = stack[index]
        if frame.filename not in guest_files:
            kept.append(frame)
        elif index > own[-1]:
            break
    return kept


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    head, tail = text[: MAX_TEXT_CHARS // 3], text[-(MAX_TEXT_CHARS - MAX_TEXT_CHARS // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return "%s\n  [... %d characters of traceback left out ...]\n%s" % (head, left_out, tail)
