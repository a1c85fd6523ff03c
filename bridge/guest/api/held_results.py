"""What a program gets for a call that a plan holds back, and what becomes of code that looks at it.

Owns the placeholder, what may be done with one (to pass it on, whole or in part, as it is or in a
text) and the end of a program that does anything else: it would go on from an answer that does not
exist. Imported with the first placeholder; runs without a plan do without it. How placeholders are
written in arguments is `placeholders`', and what may be sent with one is the host's to say.

A program is stopped once and for all: code that survives it, behind a bare `except` or in another
thread, makes no further calls, and the run ends as stopped.
"""

from __future__ import annotations

import re
import sys
from abc import ABCMeta

from bridge.guest.api.program_files import SKILL_HEAD, is_program
from bridge.guest.protocol.placeholders import MAX_PATH, WHOLE, Unknown, label, way, write
from bridge.guest.protocol.wire import Done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Mapping, NoReturn, Optional, Tuple, Union

    Step = Union[str, int]
    State = Tuple[str, int, str, Tuple[Step, ...], bool]

MAX_LINE_CHARS = 120
"""Of the program's line in a message."""

MAX_LEAVES = 64
"""Exceptions of a group that are looked at."""

ADVICE = (
    "What held calls return can only be passed on: to later held calls, as it is or in f-strings, "
    "lists and dicts. What depends on it belongs in a run after this plan was applied."
)

_BETWEEN = frozenset(("abc", "_py_abc", "typing", "_collections_abc"))
"""Modules through which `isinstance` goes."""

_ARITHMETIC = " sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"

_LOOKS = (
    ("tests", "bool"),
    ("compares", "eq ne lt le gt ge"),
    ("uses ... as a key or in a set", "hash"),
    ("takes the length of", "len"),
    ("loops over", "iter reversed aiter"),
    ("looks into", "contains"),
    ("needs ... as a number", "int float complex index round trunc floor ceil"),
    ("needs ... as bytes", "bytes"),
    ("needs ... as a path", "fspath"),
    ("awaits", "await"),
    ("opens", "enter exit aenter aexit"),
    ("changes", "setattr delattr setitem delitem"),
    ("asks for the fields of", "dir"),
    ("calculates with", "neg pos abs invert" + _ARITHMETIC + _ARITHMETIC.replace(" ", " r")),
)
"""What programs do that takes the value itself, and the methods that Python calls for it."""

_first = ""
"""Why the program was stopped; empty while it was not."""


class HeldResultError(BaseException):
    """The program wants to know what a held call returned. No `except Exception` may hide it."""


def placeholder(shape: Mapping[str, Any], raw: bool = False) -> Placeholder:
    """Return what stands for a held call's result; of a raw one not even parts can be passed on."""
    return Placeholder((str(shape["plan"]), int(shape["number"]), str(shape["call"]), (), raw))


def written(value: Any) -> Any:
    """Return a placeholder as it stands in arguments, where it keeps its type."""
    plan, number, _, path, raw = value._held
    # A label, which the host refuses in calls, may still be a program's result.
    return repr(value) if raw else {WHOLE: write(plan, number, path)}


def check() -> str:
    """Return the program's line that makes a call, as messages begin with it.

    Raises:
        HeldResultError: The program was stopped before, and makes no more calls.
    """
    if _first:
        raise HeldResultError(_first)
    return _place()


def stop(value: Any, doing: str, hint: str = "") -> NoReturn:
    """Stop the program, which does something with a value that has to be known for it.

    Args:
        doing: What it does; the value's name goes in the place of "...", or behind it.
    """
    before, between, after = doing.partition(" ...")
    whole = "%s %r%s" % (before, value, after if between else "")
    raise stopping("it %s: nobody knows that yet.%s" % (whole, hint))


def stopping(problem: str, place: str = "") -> HeldResultError:
    """Note that the program is stopped, unless it was before; return what to raise.

    Args:
        place: Where; found on this thread's stack if left out.
    """
    global _first
    if not _first:
        _first = "%s%s %s" % (place or _place(), problem, ADVICE)
    return HeldResultError(_first)


def blame(error: BaseException) -> None:
    """Note that the program was stopped, if `error` ended it and comes of a placeholder.

    C code that wants a text or a number looks at types only, and says which it got instead.
    """
    queue = [error]
    for leaf in queue:
        queue += (getattr(leaf, "exceptions", None) or ())[: max(0, MAX_LEAVES - len(queue))]
        if not isinstance(leaf, TypeError) or not re.search(r"\bPlaceholder\b", str(leaf)):
            continue
        step, place = leaf.__traceback__, ""
        while step is not None:
            place = _line(step.tb_frame.f_code.co_filename, step.tb_lineno) or place
            step = step.tb_next
        problem = (
            "%s, which stands for what a held call returns: nobody knows that yet. str(x) is text."
            % leaf
        )
        stopping(problem, place)


def ending(done: Done) -> Done:
    """Return how a program ended: as stopped, if ever it was, however it went on."""
    if not _first:
        return done
    return Done("exception", done.exit_code or 1, error=_first, error_type=HeldResultError.__name__)


class Placeholder(Unknown, metaclass=ABCMeta):
    """Stands for what a held call will return, or for a part of it.

    It can be passed on, indexed, and put into texts and containers; the rest stops the program.
    """

    __slots__ = ("_held",)

    # Has `match` take it for a mapping, and so ask for its length, instead of passing over it.
    # Not `Mapping.register`: libraries that ask for mappings look into what they find.
    __abc_tpflags__ = 1 << 6

    _held: State

    def __init__(self, state: State) -> None:
        object.__setattr__(self, "_held", state)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` asks for: a look if the program does it, and nothing if a library."""
        asking: Optional[FrameType] = sys._getframe(1)
        while asking is not None and asking.f_globals.get("__name__") in _BETWEEN:
            asking = asking.f_back
        if asking is not None and is_program(asking.f_code.co_filename):
            stop(self, "asks for the type of")
        return Placeholder

    def __getattr__(self, name: str) -> Placeholder:
        if name == "_held" or (name.startswith("__") and name.endswith("__")):
            # Interpreter and libraries probe for those; the other is not there before __init__.
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, step: Any) -> Placeholder:
        plan, number, call, path, raw = self._held
        if raw:
            stop(self, "looks into", " Only results of call_tool have parts that can be passed on.")
        further = (*path, step)
        # No booleans, which are numbers, and no slices.
        if type(step) not in (str, int) or len(way(further)) > MAX_PATH:
            stop(self, "takes from ... what is no field or item, or too far down")
        return Placeholder((plan, number, call, further, raw))

    def get(self, key: Any, default: Any = None) -> Placeholder:
        """Return what stands for an item; should there be none, applying the plan stops there."""
        return self[key]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        path = self._held[3]
        stop(self, "calls .%s() of" % path[-1] if path else "calls")

    def __repr__(self) -> str:
        _, number, call, path, _ = self._held
        return label(number, call, path)

    def __str__(self) -> str:
        plan, number, _, path, raw = self._held
        return repr(self) if raw else write(plan, number, path)

    def __format__(self, spec: str) -> str:
        if spec:
            stop(self, "formats ... as %.40s" % spec)
        return str(self)

    def __add__(self, other: Any) -> str:
        return str(self) + other if isinstance(other, str) else stop(self, "calculates with")

    def __radd__(self, other: Any) -> str:
        return other + str(self) if isinstance(other, str) else stop(self, "calculates with")

    def __copy__(self) -> Placeholder:
        return self

    def __deepcopy__(self, memo: Any) -> Placeholder:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # Pools pickle in threads of their own, which an error of another kind would end: whoever
        # waits for them would wait for ever.
        raise TypeError(str(stopping("it pickles %r: nobody knows that yet." % self)))


def _stopper(doing: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        stop(self, doing)

    return method


for _doing, _names in _LOOKS:
    for _each in _names.split():
        setattr(Placeholder, "__%s__" % _each, _stopper(_doing))


def _place() -> str:
    """Return the program's line that led here, if it is on this thread's stack."""
    frame: Optional[FrameType] = sys._getframe(1)
    found = ""
    while frame is not None and not found:
        found = _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return found


def _line(file: str, number: int) -> str:
    """Return a line of the program's as messages begin with it; nothing for other code's."""
    if not is_program(file) or file.startswith(SKILL_HEAD):
        return ""
    import linecache

    line = linecache.getline(file, number).strip()
    if len(line) > MAX_LINE_CHARS:
        line = line[:MAX_LINE_CHARS] + "..."
    return "line %d%s: " % (number, ", `%s`" % line if line else "")
