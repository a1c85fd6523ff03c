"""The frames between host and guest: what each holds, and nothing of how it travels.

Owns the types of both directions and the small base they share. `dataclasses` would do the same,
but importing it takes a third of the time that a sandbox may take to start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        Callable,
        ClassVar,
        Dict,
        List,
        Mapping,
        Optional,
        Tuple,
        Union,
        dataclass_transform,  # in 3.11, which is what types are checked with
    )
else:

    def dataclass_transform(**options):
        """Stand in for what only type checkers need."""
        return lambda kind: kind


PROTOCOL = 1
"""Raised when a frame changes its meaning; `hello` carries it."""


class _Fresh:
    """Stands for a default that every frame gets its own of."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def _fresh(make: Callable[[], Any]) -> Any:
    return _Fresh(make)


@dataclass_transform(frozen_default=True)
class Frame:
    """A value with the annotated fields of its class, in their order; it does not change."""

    _fields: ClassVar[Tuple[str, ...]] = ()
    _defaults: ClassVar[Dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        # Before Python 3.10 a class without annotations shows those it inherits.
        own = cls.__annotations__
        cls._fields = () if own is Frame.__annotations__ else tuple(own)
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}

    def __init__(self, *args: Any, **given: Any) -> None:
        fields = self._fields
        if len(args) > len(fields):
            self._refuse("too many values")
        for name, value in zip(fields, args):  # noqa: B905 - `strict` is newer than Python 3.9
            if name in given:
                self._refuse("two values for %r" % name)
            given[name] = value
        values = {}
        for name in fields:
            if name in given:
                values[name] = given.pop(name)
            elif name in self._defaults:
                default = self._defaults[name]
                values[name] = default.make() if type(default) is _Fresh else default
            else:
                self._refuse("no %r" % name)
        if given:
            self._refuse("an unknown %r" % next(iter(given)))
        self.__dict__.update(values)

    def _refuse(self, problem: str) -> None:
        raise TypeError("%s() was given %s" % (type(self).__name__, problem))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a frame's %r cannot be set" % name)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        fields = ", ".join("%s=%r" % item for item in self.__dict__.items())
        return "%s(%s)" % (type(self).__name__, fields)


# --- guest to host ------------------------------------------------------------------------------


class Hello(Frame):
    """The guest is up and waits for `Run`.

    `facts` is what it sees of its own isolation; a claim, shown as such.
    """

    digest: str
    python: str
    protocol: int = PROTOCOL
    facts: Mapping[str, Any] = _fresh(dict)


class Call(Frame):
    """The program asks the host for something; the host answers with a `Reply` of the same id."""

    id: int
    method: str
    params: Mapping[str, Any]


class Cancel(Frame):
    """The program no longer waits for the `Call` of this id; the host may stop it unanswered."""

    id: int


class Output(Frame):
    """Text the program wrote. `skipped` bytes were dropped just before it."""

    stream: str
    text: str
    skipped: int = 0


class Done(Frame):
    """The program ended by itself: "ok", "exception" or "exit".

    A last expression of None counts as no result, as at Python's prompt. `result_repr` stands in
    for a value that JSON cannot hold, and for one that was printed because it is over the limit.
    `holds` is what a session has then: name, type and size each, the size -1 if it cannot be told;
    `more` counts names beside those. `lost` is what a restored one lacks: name and reason.
    """

    outcome: str
    exit_code: int = 0
    error: str = ""
    error_type: str = ""
    has_result: bool = False
    result: Any = None
    result_repr: str = ""
    holds: List[List[Any]] = _fresh(list)
    more: int = 0
    lost: List[List[str]] = _fresh(list)


class Shown(Frame):
    """Something for the reader that is no text on a stream: a picture, a table.

    `text` or `data` (base64) is the original. `small` is a picture of the same that fits where the
    original may not, base64 too. `note` says what was done to that.
    """

    mime: str
    text: str = ""
    data: str = ""
    small: str = ""
    note: str = ""


class Progress(Frame):
    """How far the program says it is; `total` is 0 where it does not know."""

    done: float
    total: float = 0.0
    message: str = ""


class State(Frame):
    """The next part of what a session's process made of its state, as base64.

    Only another guest reads it. `lost` names what is not in it: name and reason.
    """

    data: str = ""
    lost: List[List[str]] = _fresh(list)


class File(Frame):
    """The next part of a file that the program left in `out`, as base64; sent by the supervisor.

    `name` is relative to that directory. `size` is the whole file's as far as it was known when it
    was opened. `more` says that other parts follow. `problem` says instead why there are none.
    """

    name: str
    data: str = ""
    size: int = 0
    more: bool = False
    problem: str = ""


class Exited(Frame):
    """The worker process is gone; the last frame of a run, sent by the supervisor.

    `kept` says that this is a session's, whose
    process is still there with its state and waits for the next `Run`.
    """

    code: Optional[int] = None
    signal: Optional[int] = None
    timed_out: bool = False
    oom_kills: int = 0
    cpu_ms: int = 0
    peak_memory_bytes: int = 0
    kept: bool = False


# --- host to guest ------------------------------------------------------------------------------


class Run(Frame):
    """Everything one program needs.

    `servers` is the stubs' data: per loaded server its name, alias, description and tools (name,
    alias, description, inputSchema, outputSchema). `discovered` names every server there is.
    `limits`: timeout (seconds), output_bytes, result_bytes, frame_bytes, and address_space_bytes,
    processes where the guest has to limit itself because the engine could not. `session` is the
    number of the run in its session, from 1; 0 for a run on its own. `name` is that of the file
    that holds the program, if one does. `state` is what `State` frames held, base64, for a
    session's first run; `save` asks a session for such frames instead of running anything. `files`
    (name, data as base64) are put into the workspace, and `paths` joined to where imports look.
    `skills` are modules below `skills`: name and source. `packages`: a run may ask for some here.
    """

    code: str
    argv: List[str] = _fresh(list)
    servers: List[Dict[str, Any]] = _fresh(list)
    discovered: List[Dict[str, Any]] = _fresh(list)
    capabilities: str = ""
    limits: Dict[str, Any] = _fresh(dict)
    session: int = 0
    name: str = ""
    state: str = ""
    save: bool = False
    files: List[Dict[str, str]] = _fresh(list)
    paths: List[str] = _fresh(list)
    skills: List[Dict[str, str]] = _fresh(list)
    packages: bool = False


class Clock(Frame):
    """The run's time goes on, or stands still while somebody is asked a question.

    For the supervisor alone; the program's process does not get it. What the guest makes of it is
    a courtesy: the deadline that counts is the host's.
    """

    running: bool


class Stop(Frame):
    """A session's program is to be interrupted now, as at its deadline; for the supervisor."""


class Reply(Frame):
    """The answer to a `Call`: a value, or an error with "kind" and "message"."""

    id: int
    value: Any = None
    error: Optional[Dict[str, Any]] = None


if TYPE_CHECKING:
    GuestFrame = Union[Hello, Call, Cancel, Output, Shown, Progress, State, File, Done, Exited]
    HostFrame = Union[Run, Reply, Clock, Stop]
else:
    GuestFrame = HostFrame = Frame
