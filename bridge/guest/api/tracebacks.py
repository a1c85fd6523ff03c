"""Formats exceptions for the model: the program's own frames, bounded, without carets."""

from __future__ import annotations

import io
import os
import sys

from bridge.guest import imports
from bridge.guest.api.program_files import FILENAME, is_program, program_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, FrozenSet, List, NoReturn, Optional, Sequence, Set

MAX_TEXT_CHARS = 24_000  # A program's error has any length; the middle of a longer text is cut.

_GAP = "<left out>"  # File name of the frame that replaces omitted ones.

_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")

packages_offered: "Sequence[str]" = ()  # Names that runs may request; used by hints.


def register_source(source: str, name: str = FILENAME) -> None:
    """Register a program's source under `name` for tracebacks and `inspect`."""
    if not is_program(name):
        program_files.add(name)
    # As Python splits lines: str.splitlines splits at more characters.
    lines = io.StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        # Without the newline, carets under the last line are one column off.
        lines[-1] += "\n"
    entry = {name: (len(source), None, lines, name)}
    # Few programs need linecache, and its import is slow.
    imports.OnImport("linecache", lambda: sys.modules["linecache"].cache.update(entry))


def describe(error: BaseException, ours: FrozenSet[str]) -> str:
    """Return the traceback of `error`, trimmed to the program's frames, with a hint."""
    try:
        import re
        import traceback

        # A program that raised the recursion limit may have a million frames.
        details = traceback.TracebackException.from_exception(error, limit=-2000)
        _trim(details, ours)
        text = "".join(details.format()).strip("\n")
        gap = r'  File "%s", line (\d+), in ' % _GAP
        text = re.sub(gap, r"  [... \1 calls inside the library left out ...]", text)
        return _cut_middle(text) + _hint(error)
    except BaseException as problem:
        # Hostile or broken exceptions: a __str__ that raises, a cause that refers to itself.
        names = (type(error).__name__, type(problem).__name__)
        return "%s (its traceback cannot be shown: %s)" % names


def _hint(error: BaseException) -> str:
    try:
        from bridge.guest.api.hints import hint  # most programs need none

        advice = hint(error, packages_offered)
        return "\nHint: " + advice if advice else ""
    except BaseException:
        # The program may have broken imports; the traceback matters more than the hint.
        return ""


def describe_syntax(error: BaseException) -> str:
    """Return the text of a compile error, without frames."""
    import linecache
    import traceback

    if isinstance(error, SyntaxError) and error.text is None and error.lineno:
        # Errors found after parsing come without their source line.
        error.text = linecache.getline(error.filename or FILENAME, error.lineno) or None
    lines = traceback.format_exception_only(type(error), error)
    return _cut_middle("".join(lines).strip("\n")) + _hint(error)


def _trim(details: Any, ours: FrozenSet[str]) -> None:
    queue: List[Any] = [details]
    seen: Set[int] = set()
    while queue and len(seen) < 64:  # Longer text is cut anyway.
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.stack[:] = _own_frames(current.stack, ours)
        queue += [current.__cause__, current.__context__]
        queue += getattr(current, "exceptions", None) or []


def _own_frames(stack: List[Any], ours: FrozenSet[str]) -> List[Any]:
    """Return the program's frames and the library frames that they called.

    Frames before the program's first frame, frames of the guest with their callees at the end, and
    frames of the standard library are omitted.
    """
    own = [index for index, frame in enumerate(stack) if is_program(frame.filename)]
    if not own:
        return []
    kept: List[Any] = []
    below: List[Any] = []
    for index in range(own[0], len(stack)):
        frame = stack[index]
        if frame.filename in ours:
            if index > own[-1]:
                break
        elif "-packages" + os.sep in frame.filename or not frame.filename.startswith(_STANDARD):
            (kept if index <= own[-1] else below).append(frame)
    for frame in kept + below:
        # No carets (Python 3.11 and later): they cost as much as the line itself.
        if hasattr(frame, "colno"):
            frame.colno = frame.end_colno = None
    if len(below) > 4:
        import traceback

        # A frame that counts the others replaces them.
        gap = traceback.FrameSummary(_GAP, len(below) - 3, "", lookup_line=False, line="")
        below[1:-2] = [gap]
    return kept + below


def _cut_middle(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    head, tail = text[: MAX_TEXT_CHARS // 3], text[-(MAX_TEXT_CHARS - MAX_TEXT_CHARS // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return "%s\n  [... %d characters of traceback left out ...]\n%s" % (head, left_out, tail)


def guest_files() -> FrozenSet[str]:
    own = [module for name, module in [*sys.modules.items()] if name.startswith("bridge.guest")]
    return frozenset(str(one.__spec__.origin) for one in own if one.__spec__)


STOPPED = "the run was stopped"


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside: its time was over, or the caller cancelled it."""

    # The name in tracebacks.
    __module__ = "builtins"


def interrupt(frame: Optional[FrameType]) -> NoReturn:
    """Raise `Interrupted`, naming the lines where tasks wait."""
    asyncio, text = sys.modules.get("asyncio"), STOPPED
    if asyncio and frame and not is_program(frame.f_code.co_filename):
        loop = asyncio._get_running_loop()
        tasks = asyncio.all_tasks(loop) if loop is not None else ()
        places = list(filter(None, (_place(task) for task in tasks if not task.done())))[:5]
        text += "; it was waiting at " + "; ".join(places) if places else ""
    raise Interrupted(text)


def _place(task: Any) -> str:
    place, code = "", task.get_coro()
    for _ in range(100):
        frame = getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)
        if frame is None:
            break
        if is_program(frame.f_code.co_filename):
            place = "line %d, in %s" % (frame.f_lineno, frame.f_code.co_name)
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
    return place
