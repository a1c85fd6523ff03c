"""Placeholders: what a program gets for a call that a plan holds back.

A program may pass a placeholder on, whole or in part, alone or inside a text. Any other use stops
the program permanently: code behind a bare `except` or in another thread makes no further calls.
Imported with the first placeholder, so never in runs without a plan.
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
    from typing import Any, Mapping, NoReturn, Optional, Tuple, Union

    Step = Union[str, int]
    State = Tuple[str, int, str, Tuple[Step, ...], bool]

ADVICE = (
    "What held calls return can only be passed on: to later held calls, as it is or in f-strings, "
    "lists and dicts. What depends on it belongs in a run after this plan was applied."
)

# Modules whose frames lie between `isinstance` and its caller.
_ISINSTANCE_MODULES = frozenset(("abc", "_py_abc", "typing", "_collections_abc"))

_ARITHMETIC = " sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"

_STOPPING_METHODS = (
    ("tests", "bool"), ("compares", "eq ne lt le gt ge"),
    ("uses ... as a key or in a set", "hash"), ("takes the length of", "len"),
    ("loops over", "iter reversed aiter"), ("looks into", "contains"),
    ("needs ... as a number", "int float complex index round trunc floor ceil"),
    ("needs ... as bytes", "bytes"), ("needs ... as a path", "fspath"), ("awaits", "await"),
    ("opens", "enter exit aenter aexit"), ("changes", "setattr delattr setitem delitem"),
    ("asks for the fields of", "dir"),
    ("calculates with", "neg pos abs invert" + _ARITHMETIC + _ARITHMETIC.replace(" ", " r")),
)  # fmt: skip
"""Uses that need the value itself, and the methods that Python calls for them."""

_first = ""  # Why the program was stopped; empty if it was not.


class HeldResultError(BaseException):
    """The program used the value of a held call. `except Exception` does not catch it."""


def placeholder(shape: Mapping[str, Any], raw: bool = False) -> Placeholder:
    """Return the placeholder of a held call's result; a raw one has no parts."""
    return Placeholder((str(shape["plan"]), int(shape["number"]), str(shape["call"]), (), raw))


def to_reference(value: Any) -> Any:
    """Return a placeholder's JSON form for arguments, which keeps the value's type."""
    plan, number, _, path, raw = value._held
    # The host refuses a label in calls; a program's result may contain one.
    return repr(value) if raw else {WHOLE: write(plan, number, path)}


def check() -> str:
    """Return the source line of a call, for messages; raise if the program was stopped before."""
    if _first:
        raise HeldResultError(_first)
    return _place()


def stop(value: Any, doing: str, hint: str = "") -> NoReturn:
    """Stop the program because of a use that needs a placeholder's value.

    `doing` is the use, as a verb; the placeholder's label replaces "..." or is appended.
    """
    before, between, after = doing.partition(" ...")
    whole = "%s %r%s" % (before, value, after if between else "")
    raise record_stop("it %s: its value is unknown.%s" % (whole, hint))


def record_stop(problem: str, place: str = "") -> HeldResultError:
    """Record that the program is stopped, unless it was before; return the error to raise."""
    global _first
    if not _first:
        _first = "%s%s %s" % (place or _place(), problem, ADVICE)
    return HeldResultError(_first)


def blame(error: BaseException) -> None:
    """Record that the program was stopped, if `error` is a TypeError about a placeholder.

    C code that needs a string or a number checks types only, and names the wrong type.
    """
    queue = [error]
    for leaf in queue:
        queue += getattr(leaf, "exceptions", None) or ()
        if not isinstance(leaf, TypeError) or not re.search(r"\bPlaceholder\b", str(leaf)):
            continue
        step, place = leaf.__traceback__, ""
        while step is not None:
            place = _line(step.tb_frame.f_code.co_filename, step.tb_lineno) or place
            step = step.tb_next
        about = "%s, which stands for what a held call returns: its value is unknown."
        record_stop(about % leaf + " str(x) is text.", place)


def final_outcome(done: Done) -> Done:
    """Return the outcome: the placeholder error if the program was stopped, else `done`."""
    if not _first:
        return done
    return Done("exception", done.exit_code or 1, error=_first, error_type=HeldResultError.__name__)


class Placeholder(Unknown, metaclass=ABCMeta):
    """Stands for what a held call will return, or for a part of it.

    It can be passed on, indexed, and put into texts and containers; other uses stop the program.
    """

    __slots__ = ("_held",)

    # `match` treats it as a mapping and calls `len`, which stops the program, instead of skipping
    # the case. Not `Mapping.register`: libraries would read items of it.
    __abc_tpflags__ = 1 << 6

    _held: State

    def __init__(self, state: State) -> None:
        object.__setattr__(self, "_held", state)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Used by `isinstance`: stops the program if its own code asks, not if a library does."""
        asking: Optional[FrameType] = sys._getframe(1)
        while asking is not None and asking.f_globals.get("__name__") in _ISINSTANCE_MODULES:
            asking = asking.f_back
        if asking is not None and is_program(asking.f_code.co_filename):
            stop(self, "asks for the type of")
        return Placeholder

    def __getattr__(self, name: str) -> Placeholder:
        if name == "_held" or (name.startswith("__") and name.endswith("__")):
            # Interpreter and libraries probe dunder names; `_held` is missing before __init__.
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
        """Return the placeholder of an item; applying the plan fails if the item is missing."""
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
        # A TypeError: process pools pickle in their own threads, which another error would end, and
        # callers would wait forever.
        raise TypeError(str(record_stop("it pickles %r: its value is unknown." % self)))


for _doing, _names in _STOPPING_METHODS:
    for _each in _names.split():
        _stop: Any = lambda self, *args, doing=_doing, **kwargs: stop(self, doing)  # noqa: E731
        setattr(Placeholder, "__%s__" % _each, _stop)


def _place() -> str:
    frame: Optional[FrameType] = sys._getframe(1)
    line = ""
    while frame is not None and not line:
        line = _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return line


def _line(file: str, number: int) -> str:
    if not is_program(file) or file.startswith(SKILL_HEAD):
        return ""
    import linecache

    line = linecache.getline(file, number).strip()
    line = line if len(line) <= 120 else line[:120] + "..."
    return "line %d%s: " % (number, ", `%s`" % line if line else "")
