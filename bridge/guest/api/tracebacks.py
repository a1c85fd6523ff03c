"""An exception as text for the model: the program's own frames, bounded, without rows of carets.

Owns which frames are shown and how much of a text is kept. Chained causes, notes and exception
groups stay; the guest's frames go wherever they stand.
"""

from __future__ import annotations

import io
import os
import sys

from bridge.guest import imports
from bridge.guest.api.program_files import FILENAME, add_program_file, is_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, FrozenSet, Iterator, List, NoReturn, Optional, Set


MAX_TEXT_CHARS = 24_000
"""Of one traceback: its beginning says where it started, its end what went wrong."""

MAX_LIBRARY_FRAMES = 3
"""Of those below the program's last: the one it called and two where it went wrong. Tracebacks out
of pandas and matplotlib have ten, and each costs as much as many a program's output."""

_GAP = "<left out>"
"""Stands for the file of frames that are left out."""

MAX_FRAMES = 2000
"""Frames of one traceback that are looked at, the last ones: more than the usual recursion limit
allows. A program that raised that may have a million."""

MAX_EXCEPTIONS = 64
"""Exceptions of a chain or group whose frames are trimmed; beyond that the text is cut anyway."""

_STANDARD = os.path.dirname(os.__file__) + os.sep

packages_offered = False
"""Whether a run may ask for packages here."""


def register_source(source: str, name: str = FILENAME) -> None:
    """Let tracebacks and `inspect` find the lines of the program that goes by `name`."""
    if not is_program(name):
        add_program_file(name)
    # Lines end where Python says so: str.splitlines knows ends that are none.
    lines = io.StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        # Without it the carets under the last line come out one column off.
        lines[-1] += "\n"

    def remember() -> None:
        sys.modules["linecache"].cache[name] = (len(source), None, lines, name)

    # Few programs need it, and it takes long to import.
    imports.OnImport("linecache", remember)


def describe(error: BaseException, ours: FrozenSet[str]) -> str:
    """Return the traceback of `error` as the program's author wants to see it."""
    try:
        import traceback

        details = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES)
        _trim(details, ours)
        return _shorten(_told_gaps("".join(details.format()).strip("\n"))) + _hint(error)
    except BaseException as problem:
        # Hostile or broken exceptions: a __str__ that raises, a cause that refers to itself.
        return "%s (its traceback cannot be shown: %s)" % (
            type(error).__name__,
            type(problem).__name__,
        )


def _told_gaps(text: str) -> str:
    """Return a traceback's text with its gaps in words."""
    parts = text.split('  File "%s", line ' % _GAP)
    told = [parts[0]]
    for part in parts[1:]:
        count, _, rest = part.partition(", in ")
        told.append("  [... %s calls inside the library left out ...]%s" % (count, rest))
    return "".join(told)


def _hint(error: BaseException) -> str:
    try:
        from bridge.guest.api.hints import hint  # most programs need none

        return hint(error, packages_offered)
    except BaseException:
        # The program may have broken imports; the traceback is worth more than advice.
        return ""


def describe_syntax(error: BaseException) -> str:
    """Return why a program does not compile: no frames, they are the compiler's."""
    import linecache
    import traceback

    if isinstance(error, SyntaxError) and error.text is None and error.lineno:
        # What the compiler finds only after parsing comes without its line.
        error.text = linecache.getline(error.filename or FILENAME, error.lineno) or None
    lines = traceback.format_exception_only(type(error), error)
    return _shorten("".join(lines).strip("\n")) + _hint(error)


def _trim(details: Any, ours: FrozenSet[str]) -> None:
    queue: List[Any] = [details]
    seen: Set[int] = set()
    while queue and len(seen) < MAX_EXCEPTIONS:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.stack[:] = _own_frames(current.stack, ours)
        queue += [current.__cause__, current.__context__]
        queue += getattr(current, "exceptions", None) or []


def _own_frames(stack: List[Any], ours: FrozenSet[str]) -> List[Any]:
    """Return the frames from the program's first to its last and what these called.

    What leads up to the program is ours (event loop included), and so is what the program's last
    frame reached through us. Those of the standard library are left out.
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
        elif not _is_standard(frame.filename):
            (kept if index <= own[-1] else below).append(frame)
    for frame in kept + below:
        # Carets, which Python has since 3.11, cost as much as the line itself.
        if hasattr(frame, "colno"):
            frame.colno = frame.end_colno = None
    return kept + _without_middle(below)


def _is_standard(filename: str) -> bool:
    """Whether a file is of the standard library, whose lines tell less than its message."""
    return filename.startswith("<frozen ") or (
        filename.startswith(_STANDARD) and "-packages" + os.sep not in filename
    )


def _without_middle(frames: List[Any]) -> List[Any]:
    """Leave out what lies between a library's entry and where it failed, if that is much."""
    left_out = len(frames) - MAX_LIBRARY_FRAMES
    if left_out < 2:
        return frames
    import traceback

    gap = traceback.FrameSummary(_GAP, left_out, "", lookup_line=False, line="")
    return [frames[0], gap, *frames[1 - MAX_LIBRARY_FRAMES :]]


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    head, tail = text[: MAX_TEXT_CHARS // 3], text[-(MAX_TEXT_CHARS - MAX_TEXT_CHARS // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return "%s\n  [... %d characters of traceback left out ...]\n%s" % (head, left_out, tail)


def guest_files() -> FrozenSet[str]:
    """Return the file names of our own code, as they stand in tracebacks."""
    specs = [
        module.__spec__
        for name, module in list(sys.modules.items())
        if name.startswith("bridge.guest")
    ]
    return frozenset(str(spec.origin) for spec in specs if spec is not None and spec.origin)


# --- interrupted from outside ---------------------------------------------------------------------

MAX_TASKS = 5
"""Told of when a program is interrupted that waits in its event loop."""

STOPPED = "the run was stopped from outside: its time was over, or nobody waits for it any more"


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside: its time was over, or whoever asked for it is gone."""

    # What tracebacks show.
    __module__ = "builtins"


def interrupt(frame: Optional[FrameType]) -> NoReturn:
    """Raise in the program, whose main thread is at `frame`."""
    error = Interrupted(STOPPED)
    where = list(_waiting(frame))
    if where:
        error.args = ("%s; it was waiting at %s" % (STOPPED, "; ".join(where)),)
    raise error


def _waiting(frame: Optional[FrameType]) -> Iterator[str]:
    """Yield where tasks wait, if the main thread is in an event loop and not in the program."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or frame is None or is_program(frame.f_code.co_filename):
        return
    loop = asyncio._get_running_loop()
    if loop is None:
        return
    ours = guest_files()
    told = 0
    for task in asyncio.all_tasks(loop):
        if task.done() or told >= MAX_TASKS:
            continue
        place = _place(task, ours)
        if place:
            told += 1
            yield place


def _place(task: Any, ours: Any) -> str:
    """Return the innermost line of the program's in which a task waits."""
    place, code = "", task.get_coro()
    for _ in range(100):
        frame = getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)
        if frame is None:
            break
        if is_program(frame.f_code.co_filename):
            place = "line %d, in %s" % (frame.f_lineno, frame.f_code.co_name)
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
    return place
