"""How a program is stopped from outside, and says where it was.

Owns the exception and its text. Who is interrupted, and when, is the supervisor's business; what
does not heed it is killed.
"""

from __future__ import annotations

import sys

from bridge.guest.program import guest_files
from bridge.guest.tracebacks import is_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Iterator, NoReturn, Optional

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
