"""What a program gets for a call that a plan holds back, and what becomes of code that looks at it.

Owns the placeholders, what may be done with one (to pass it on, whole or in part, as it is or in a
text) and the end of a program that does anything else: it would go on from an answer that does not
exist. Imported with the first placeholder; runs without a plan do without it. How placeholders are
written in arguments is `placeholders`'.

A program is stopped once and for all: code that survives it, behind a bare `except` or in another
thread, makes no further calls, and the run ends as stopped.
"""

from __future__ import annotations

import re
import sys
from abc import ABCMeta

from bridge.guest.held_methods import BETWEEN, DICT_METHODS, LOOKS, TEXT_LOOKS, TEXT_METHODS
from bridge.guest.placeholders import (
    LABEL,
    READING,
    WHOLE,
    Unknown,
    find,
    for_reading,
    label,
    write,
)
from bridge.guest.wire import Done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Tuple, Union

    Step = Union[str, int]
    State = Tuple[str, int, str, Tuple[Step, ...], bool]

PROGRAM = "<run_python>"
"""What the program's code goes by; as in `tracebacks`, which takes long to import."""

MAX_STEPS = 32
MAX_NAME_CHARS = 200
MAX_INDEX = 2**53
"""Of the way into a result: nobody has deeper ones, and a loop that goes on for ever ends."""

MAX_LINE_CHARS = 120
"""Of the program's line in a message."""

MAX_LEAVES = 64
"""Exceptions of a group that are looked at."""

ADVICE = (
    "What held calls return can only be passed on: to later held calls, as it is or in f-strings, "
    "lists and dicts. What depends on it belongs in a run after this plan was applied."
)

_PLAINLY = " Without a format it can be put into texts."

_KINDS = r"\bHeld(?:Result|Text)\b"

_calls: Dict[int, str] = {}
_first = ""
"""Why the program was stopped; empty while it was not."""


class HeldResultError(BaseException):
    """The program wants to know what a held call returned. No `except Exception` may hide it."""


def placeholder(shape: Mapping[str, Any], raw: bool = False) -> HeldResult:
    """Return what stands for a held call's result; of a raw one not even parts can be passed on."""
    number, call = int(shape["number"]), str(shape["call"])
    _calls[number] = call
    return HeldResult((str(shape["plan"]), number, call, (), raw))


def any_made() -> bool:
    """Whether the program has got a placeholder."""
    return bool(_calls)


def written(value: Any) -> Any:
    """Return a placeholder as it stands in arguments, where it keeps its type."""
    plan, number, _, path, raw = value._held
    # A label, which `check` refuses in calls, may still be a program's result.
    return repr(value) if raw else {WHOLE: write(plan, number, path)}


def check(line: bytes) -> int:
    """Look at a call on its way; return the program's line that makes it, 0 if that is unknown.

    Raises:
        HeldResultError: The program was stopped before, or this is what stops it.
    """
    if _first:
        raise HeldResultError(_first)
    known = [label(*each).encode() for each in _calls.items()] if LABEL.encode() in line else []
    if any(each in line for each in known) or (_calls and b"end" + READING.encode() in line):
        # Labels are for people to read, and nothing that a call could be made with.
        problem = (
            "it passes on what is only to be read: the repr of a held call's result, the text of a "
            "container with one, one in JSON or quoted, or what call_tool_raw gave. Put fields "
            "into f-strings, pass containers as they are, use call_tool."
        )
        raise stopping(problem)
    return _lineno()


def refused(message: str, lineno: int) -> HeldResultError:
    """Return the end of a program whose call the host refuses for a placeholder in it."""
    return stopping(message, lineno)


def stop(value: Any, doing: str, hint: str = "") -> NoReturn:
    """Stop the program, which does something with a value that has to be known for it.

    Args:
        doing: What it does; the value's name goes in the place of "...", or behind it.
    """
    before, between, after = doing.partition(" ...")
    whole = "%s %s%s" % (before, _name(value), after if between else "")
    raise stopping("it %s: nobody knows that yet.%s" % (whole, hint))


def stopping(problem: str, lineno: int = 0) -> HeldResultError:
    """Note that the program is stopped, unless it was before; return what to raise.

    Args:
        lineno: Where; found on this thread's stack if left out.
    """
    global _first
    if not _first:
        lineno = lineno or _lineno()
        _first = "%s%s %s" % (_place(lineno) if lineno else "", problem, ADVICE)
    return HeldResultError(_first)


def _lineno() -> int:
    """Return the program's line that led here, 0 if it is not on this thread's stack."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != PROGRAM:
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


def _place(lineno: int) -> str:
    import linecache

    line = linecache.getline(PROGRAM, lineno).strip()
    if len(line) > MAX_LINE_CHARS:
        line = line[:MAX_LINE_CHARS] + "..."
    return "line %d%s: " % (lineno, ", `%s`" % line if line else "")


def blame(error: BaseException) -> None:
    """Note that the program was stopped, if `error` ended it and comes of a placeholder.

    C code that wants a text or a number looks at types only, and says which it got instead.
    """
    queue = [error]
    for leaf in queue:
        queue += (getattr(leaf, "exceptions", None) or ())[: max(0, MAX_LEAVES - len(queue))]
        if not isinstance(leaf, (TypeError, ValueError)) or not re.search(_KINDS, str(leaf)):
            continue
        step, lineno = leaf.__traceback__, 0
        while step is not None:
            if step.tb_frame.f_code.co_filename == PROGRAM:
                lineno = step.tb_lineno
            step = step.tb_next
        problem = (
            "%s, which stands for what a held call returns: nobody knows that yet. str(x) is text."
            % leaf
        )
        stopping(problem, lineno)


def ending(done: Done) -> Done:
    """Return how a program ended: as stopped, if ever it was, however it went on."""
    if not _first:
        return done
    return Done("exception", done.exit_code or 1, error=_first, error_type=HeldResultError.__name__)


class HeldResult(Unknown, metaclass=ABCMeta):
    """Stands for what a held call will return, or for a part of it."""

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
        asking = _asking()
        if _is_program(asking):
            stop(self, "asks for the type of")
        if asking.f_code.co_name == "default" and asking.f_globals["__name__"] == "json.encoder":
            hint = " Pass the container as it is, or print json.dumps(..., default=str)."
            stop(self, "writes as JSON", hint)
        if asking.f_globals.get("__name__") == "functools":
            stop(self, "asks for the type of")
        return HeldResult

    def __getattr__(self, name: str) -> Any:
        if name == "_held" or (name.startswith("__") and name.endswith("__")):
            # Interpreter and libraries probe for those; the other is not there before __init__.
            if name == "__dict__" and _is_program(sys._getframe(1)):
                stop(self, "asks for the fields of")
            raise AttributeError(name)
        if name == "get":
            return self._get
        if name in DICT_METHODS:
            return _caller(self, name)
        return _part(self, name)

    def __getitem__(self, key: Any) -> Any:
        return _part(self, key)

    def _get(self, key: Any, default: Any = None) -> Any:
        # Should there be no such key, applying the plan stops there.
        return _part(self, key)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        path = self._held[3]
        stop(self, "calls .%s() of" % path[-1] if path else "calls")

    def __repr__(self) -> str:
        _, number, call, path, _ = self._held
        return label(number, call, path)

    def __str__(self) -> str:
        plan, number, _, path, raw = self._held
        return repr(self) if raw else HeldText(write(plan, number, path))

    def __format__(self, spec: str) -> str:
        if spec:
            stop(self, "formats ... as %.40s" % spec, _PLAINLY)
        return str(self)

    def __add__(self, other: Any) -> Any:
        return _joined(self, self, other)

    def __radd__(self, other: Any) -> Any:
        return _joined(self, other, self)

    def __copy__(self) -> HeldResult:
        return self

    def __deepcopy__(self, memo: Any) -> HeldResult:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse_pickling(self)


class HeldText(str):
    """A text in which a placeholder stands; it can be put into others, and not be looked at."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Quoted, as what will stand there would not be.
        return for_reading(str.__repr__(self))

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        if not any(self._literals()):
            stop(self, "tests")
        return True

    def strip(self, characters: Any = None, /) -> str:
        """Return it without what stands around it, which is known if no placeholder does."""
        return self._stripped("strip", characters, 0, -1)

    def lstrip(self, characters: Any = None, /) -> str:
        """Return it without what stands before it."""
        return self._stripped("lstrip", characters, 0)

    def rstrip(self, characters: Any = None, /) -> str:
        """Return it without what stands behind it."""
        return self._stripped("rstrip", characters, -1)

    def _stripped(self, name: str, characters: Any, *ends: int) -> str:
        literals = self._literals()
        if not all(getattr(str, name)(literals[end], characters) for end in ends):
            stop(self, "calls .%s() of" % name)
        return HeldText(getattr(str, name)(self, characters))

    def _literals(self) -> List[str]:
        """Return what stands before, between and behind the placeholders."""
        text, position, found = str.__str__(self), 0, []
        for each in find(text):
            found.append(text[position : each.start])
            position = each.end
        return [*found, text[position:]]

    def __format__(self, spec: str) -> str:
        if spec:
            stop(self, "formats ... as %.40s" % spec, _PLAINLY)
        return self

    def __add__(self, other: Any) -> Any:
        return _joined(self, self, other)

    def __radd__(self, other: Any) -> Any:
        return _joined(self, other, self)

    def __copy__(self) -> HeldText:
        return self

    def __deepcopy__(self, memo: Any) -> HeldText:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse_pickling(self)


def _part(whole: HeldResult, step: Any) -> HeldResult:
    """Return what stands for a field or an item."""
    plan, number, call, path, raw = whole._held
    if raw:
        stop(whole, "looks into", " Only results of call_tool have parts that can be passed on.")
    if isinstance(step, str) and not isinstance(step, HeldText):
        step, fits = str.__str__(step), len(step) <= MAX_NAME_CHARS
    else:
        fits = type(step) is int and -MAX_INDEX < step < MAX_INDEX
    if not fits or len(path) >= MAX_STEPS:
        stop(whole, "takes from ... what is no field or item, or too far down")
    return HeldResult((plan, number, call, (*path, step), raw))


def _joined(held: Any, first: Any, second: Any) -> Any:
    other = second if first is held else first
    if not isinstance(other, str):
        stop(held, "calculates with")
    return HeldText("".join((str(first), str(second))))


def _refuse_pickling(held: Any) -> NoReturn:
    error = stopping("it pickles %s: nobody knows that yet." % _name(held))
    import threading

    if threading.current_thread() is threading.main_thread():
        raise error
    # Pools do this in threads of their own, which an error of another kind would end: whoever waits
    # for them would wait for ever.
    raise TypeError(str(error))


def _asking() -> FrameType:
    """Return the frame in which a placeholder's class is asked for."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in BETWEEN:
        frame = frame.f_back
    return frame


def _is_program(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name == PROGRAM or name.startswith(("<run_python", "<skill "))  # a session's, too


def _name(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    found = next(find(str.__str__(value)))
    return label(found.number, _calls.get(found.number, "?"), found.path)


def _caller(held: HeldResult, name: str) -> Callable[..., NoReturn]:
    def method(*args: Any, **kwargs: Any) -> NoReturn:
        stop(held, "calls .%s() of" % name, ' A field of that name is x["%s"].' % name)

    return method


def _stopper(doing: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        stop(self, doing)

    return method


for _doing, _names in LOOKS:
    for _each in _names.split():
        setattr(HeldResult, "__%s__" % _each, _stopper(_doing))
for _doing, _names in TEXT_LOOKS:
    for _each in _names.split():
        setattr(HeldText, "__%s__" % _each, _stopper(_doing))
for _each in TEXT_METHODS.split():
    setattr(HeldText, _each, _stopper("calls .%s() of" % _each))
