"""The frames between host and guest, and their encoding. Does no I/O and keeps no clock.

A frame is one line of JSON. Output, files, pictures and states are raw bytes in front of their
line: "+", their number, a newline and the bytes. As JSON text they would cost both ends ten times
the time. The host treats the guest as hostile: `decode_guest_frame` accepts the exact shapes below
only. Runs on Python 3.9.
"""

from __future__ import annotations

import math

from bridge.guest.protocol import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Types are checked with 3.11, which has `dataclass_transform`.
    from typing import Any, Callable, ClassVar, Iterator, Mapping, NoReturn, dataclass_transform
else:

    def dataclass_transform(**options):
        return lambda kind: kind


# What a hostile guest can send to the host, and a hostile program to its supervisor:
MAX_FRAME_BYTES = 64 * 1024 * 1024  # Of a line, in either direction: fits a 10 MB result.
MAX_ID = 2**53  # Below this, ids are exact in every JSON implementation.
MAX_DIGITS = 1_000  # Of an integer: parsing takes time quadratic in their number.
MAX_VALUES = 250_000  # JSON values: about a second of the host's time, and 200 bytes each.

_COUNT_BYTES = 256 * 1024  # Size of the pieces in which the values of a line are counted.
_SIZE_CHARS = 16  # Most characters of a line that announces raw bytes.


class WireError(Exception):
    """The peer sent bytes that are not a valid frame."""


PROTOCOL = 2  # Protocol version, sent in `hello`; raised when a frame changes its meaning.


def _fresh(kind: Callable[[], Any]) -> Any:
    """Return a default that is created for each frame: the type stands for a new empty value."""
    return kind


@dataclass_transform(frozen_default=True)
class Frame:
    """A value with the annotated fields of its class, in order."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _raw: ClassVar[str] = ""
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        # Before Python 3.10 a class without annotations shows those it inherits.
        own = cls.__annotations__
        cls._fields = () if own is Frame.__annotations__ else tuple(own)
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
        # The field that stands in front of the line.
        cls._raw = next((name for name in cls._fields if own[name] == "bytes"), "")

    def __init__(self, *args: Any, **given: Any) -> None:
        fields = self._fields
        given.update(zip(fields, args))  # noqa: B905 - `strict` is newer than Python 3.9
        for name, default in self._defaults.items():
            if name not in given:
                given[name] = default() if isinstance(default, type) else default
        if len(args) > len(fields) or given.keys() != set(fields):
            raise TypeError("%s takes %s" % (type(self).__name__, ", ".join(fields)))
        self.__dict__.update({name: given[name] for name in fields})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        fields = ", ".join("%s=%r" % item for item in self.__dict__.items())
        return "%s(%s)" % (type(self).__name__, fields)


class Hello(Frame):
    """The guest is running and waits for `Run`.

    `facts`: the isolation that the guest observes; the host treats it as a claim.
    """

    digest: str
    python: str
    protocol: int = PROTOCOL
    facts: Mapping[str, Any] = _fresh(dict)


class Call(Frame):
    """The program calls the host, which answers with a `Reply` of the same id."""

    id: int
    method: str
    params: Mapping[str, Any]


class Cancel(Frame):
    """The program no longer waits for this `Call`; the host may stop it without a reply."""

    id: int


class Output(Frame):
    """Output of the program. `skipped`: bytes dropped just before it."""

    stream: str
    data: bytes = b""
    skipped: int = 0


class Done(Frame):
    """The program ended by itself: "ok", "exception" or "exit".

    A last expression of None counts as no result, as at Python's prompt. `result_repr` replaces a
    value that JSON cannot hold, or one over the limit, which is printed. `assigned`: the result is
    the value of a last assignment, which counts if nothing was printed. `holds` lists a session's
    globals: name, type and size, where -1 is an unknown size; `more` counts further names. `lost`
    lists the globals that could not be restored: name and reason. `out_of_memory`: an allocation
    failed. `unsent` names the unfinished tasks and coroutines of the run.
    """

    outcome: str
    exit_code: int = 0
    error: str = ""
    error_type: str = ""
    out_of_memory: bool = False
    has_result: bool = False
    result: Any = None
    result_repr: str = ""
    holds: list[list[Any]] = _fresh(list)
    more: int = 0
    lost: list[list[str]] = _fresh(list)
    unsent: list[str] = _fresh(list)
    assigned: bool = False


class Shown(Frame):
    """A picture or a table that the program displayed.

    `text` or `data` is the original. `small` is a smaller picture as base64, for an original over
    the limit. `note` describes the reduction.
    """

    mime: str
    text: str = ""
    data: bytes = b""
    small: str = ""
    note: str = ""


class Progress(Frame):
    """The progress that the program reports; `total` is 0 if unknown."""

    done: float
    total: float = 0.0
    message: str = ""


class State(Frame):
    """The next part of a session's checkpoint, which only another guest reads.

    `lost`: [name, reason] of each global that the checkpoint lacks.
    """

    data: bytes = b""
    lost: list[list[str]] = _fresh(list)


class File(Frame):
    """The next part of a file in `out`; from the supervisor.

    `name` is relative to that directory. `size` is the file's size when it was opened. `more`:
    other parts follow. `problem`: why the file was not read.
    """

    name: str
    data: bytes = b""
    size: int = 0
    more: bool = False
    problem: str = ""


class Exited(Frame):
    """The worker process ended; the last frame of a run, from the supervisor.

    `kept`: a session's process continues and waits for the next `Run`.
    """

    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom_kills: int = 0
    cpu_ms: int = 0
    peak_memory_bytes: int = 0
    kept: bool = False


class Run(Frame):
    """One program and its inputs.

    `servers` is the data of loaded servers: name, alias, description and tools (name, alias,
    description, inputSchema, outputSchema). `discovered` names every server. `limits`: timeout
    (seconds; the host stops a program sooner), output_bytes, result_bytes, frame_bytes, and
    data_bytes, processes where the engine cannot limit them. `session` is the number of the run in
    its session, from 1; 0 for a run without a session. `name` is the name of the program's file, if
    any. `state` has the data of `State` frames as base64, for a session's first run. `save` asks a
    session for such frames instead of running a program; with `argv`, they hold the report of
    `bridge.guest.state.installed`. `files` (name, data as base64) are written into the workspace;
    `paths` are added to the import path. `skills` are modules below `skills`: name and source.
    `packages` may be requested by a run. `names` maps undefined names in the program to their
    meaning: a path such as `mcp_github.create_issue`.
    """

    code: str
    argv: list[str] = _fresh(list)
    servers: list[dict[str, Any]] = _fresh(list)
    discovered: list[dict[str, Any]] = _fresh(list)
    capabilities: str = ""
    limits: dict[str, Any] = _fresh(dict)
    session: int = 0
    name: str = ""
    state: str = ""
    save: bool = False
    files: list[dict[str, str]] = _fresh(list)
    paths: list[str] = _fresh(list)
    skills: list[dict[str, str]] = _fresh(list)
    packages: list[str] = _fresh(list)
    names: dict[str, str] = _fresh(dict)


class Stop(Frame):
    """Interrupts the program; the supervisor handles it, the worker does not receive it.

    `late`: the program's time is over. If the program does not end, the host ends the sandbox.
    """

    late: bool


class Ping(Frame):
    """Asks the supervisor whether the sandbox still works; the answer is a `Pong`."""


class Pong(Frame):
    """The supervisor's answer to a `Ping`."""


class Reply(Frame):
    """The answer to a `Call`: a value, or an error with "kind" and "message"."""

    id: int
    value: Any = None
    error: dict[str, Any] | None = None


if TYPE_CHECKING:
    GuestFrame = (
        Hello | Call | Cancel | Output | Shown | Progress | State | File | Done | Exited | Pong
    )
    HostFrame = Run | Reply | Stop | Ping
else:
    GuestFrame = HostFrame = Frame


_GUEST = (Hello, Call, Cancel, Output, Done, Exited, Shown, Progress, State, File, Pong)
_HOST = (Run, Reply, Stop, Ping)
_TYPES: dict[str, Any] = {kind.__name__.lower(): kind for kind in (*_GUEST, *_HOST)}

GUEST_TYPES = frozenset(kind.__name__.lower() for kind in _GUEST)
_HOST_TYPES = frozenset(kind.__name__.lower() for kind in _HOST)


def encode(frame: GuestFrame | HostFrame) -> bytes:
    """Return `frame` as one line.

    Raises:
        ValueError: A value is not JSON: a cycle, too deep nesting; outside of replies also NaN.
        TypeError: JSON has no such type.
    """
    document: dict[str, Any] = {"type": type(frame).__name__.lower()}
    document.update(frame.__dict__)
    raw = document.pop(frame._raw, b"")
    try:
        # A server's numbers are passed on unchanged, NaN and infinities too.
        text = (_encoded_reply if type(frame) is Reply else _encoded)(document)
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    try:
        line = text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        # Lone surrogates have no UTF-8 form, but JSON can escape them.
        line = json_text.encoder(ascii_only=True)(document).encode() + b"\n"
    return b"".join((b"+%d\n" % len(raw), raw, line)) if raw else line


def raw_size(line: bytes) -> int:
    """Return how many raw bytes follow a line, which is 0 unless it announces some."""
    announces = line[:1] == b"+" and len(line) <= _SIZE_CHARS and line[1:].rstrip(b"\n").isdigit()
    return int(line[1:]) if announces else 0


def json_start(frame: bytes) -> int:
    """Return the offset of a frame's JSON, behind its raw bytes."""
    end = frame.find(b"\n", 0, _SIZE_CHARS) + 1
    size = raw_size(frame[:end])
    return end + size if 0 < size < len(frame) - end else 0


class LineDecoder:
    """Splits chunks of bytes into frames, keeping at most one unfinished frame.

    A frame is a line with its raw bytes in front. Chunks are joined once, so that a long frame
    takes time linear in its length.

    With `drops_long`, a frame over the limit is dropped instead of an error.
    """

    def __init__(self, max_line_bytes: int = MAX_FRAME_BYTES, drops_long: bool = False) -> None:
        self.max_bytes = max_line_bytes
        self._drops_long = drops_long
        self._line: list[bytes] = []
        self._forget_frame()

    def _forget_frame(self, skipping: bool = False) -> None:
        self._before: list[bytes] = []  # The raw bytes, and the lines that announce them.
        self._line.clear()
        self._size = self._raw = 0
        self._skipping = skipping

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each frame that `data` completes, without its last newline; no blank lines.

        Exhaust the iterator before feeding again. A frame over the limit raises WireError: the rest
        of the stream cannot be read.
        """
        start = 0
        while True:
            raw = data[start : start + self._raw]
            self._raw -= len(raw)
            end = -1 if self._raw else data.find(b"\n", start + len(raw))
            stop = len(data) if end < 0 else end
            self._size += stop - start
            if self._size + self._raw > self.max_bytes:
                if not self._drops_long:
                    raise WireError(f"a frame is longer than {self.max_bytes} bytes")
                self._skipping, self._before = True, []
                self._line.clear()
            if not self._skipping:
                self._before += [raw] if raw else []
                self._line += [data[start + len(raw) : stop]] if stop > start + len(raw) else []
            if end < 0:
                return
            line = self._line[0] if len(self._line) == 1 else b"".join(self._line)
            start = end + 1
            if size := raw_size(line):
                self._before += [line, b"\n"]
                self._line.clear()
                self._raw, self._size = size, self._size + 1
                continue
            frame = b"".join([*self._before, line]) if self._before else line
            self._forget_frame()
            if frame:
                yield frame

    def forget(self) -> None:
        """Drop the unfinished frame, and its remainder up to the next newline."""
        self._forget_frame(skipping=self._size > 0)


def count_values(line: bytes, exact_above: int = MAX_VALUES) -> int:
    """Return an upper bound on the number of values in a line of JSON, without parsing it.

    Fast and small for any input. If the line is invalid, the bound holds for the values before the
    error, which is all that a parser creates. Up to `exact_above`, punctuation inside strings is
    counted too, which is faster.
    """
    values = 0
    # In pieces: each count holds the interpreter lock, which blocks all threads.
    for start in range(0, len(line), _COUNT_BYTES):
        values += _punctuation(line[start : start + _COUNT_BYTES])
    if values <= exact_above:
        return values
    # Without escaped quotation marks, the rest are the ends of strings.
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most two strings, itself and its name; an exact count would be slow.
    strings = bare.count(b'"') // 2
    if strings > 2 * (max(exact_above, MAX_VALUES) + 1):
        return strings // 2
    values = 0
    inside = 0
    for start in range(0, len(bare), _COUNT_BYTES):
        parts = bare[start : start + _COUNT_BYTES].split(b'"')
        values += _punctuation(b"".join(parts[inside::2]))
        inside = (inside + len(parts) - 1) % 2
    return values


def _punctuation(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def decode_guest_frame(line: bytes) -> GuestFrame:
    """Return the frame that a guest's line holds, every field checked, or raise WireError."""
    start = json_start(line)
    name, document = _parse(line[start:], GUEST_TYPES, _decoded_of_guest)
    if not line.startswith(b'{"type":"%s"' % name.encode(), start):
        # The supervisor passes a worker's lines on by their beginning. A second "type" further on,
        # which JSON readers prefer, must not turn a call into one of the supervisor's own frames.
        raise WireError(f"the type of the {name} frame does not come first")
    _check_fields(name, document)
    if start:
        raw = _TYPES[name]._raw
        if not raw:
            _fail(name, "+", "is not known")
        document[raw] = line[line.index(b"\n") + 1 : start]
    if name in ("call", "cancel") and not 0 <= document["id"] < MAX_ID:
        _fail(name, "id", "is out of range")
    if name == "output" and document["stream"] not in ("stdout", "stderr"):
        _fail("output", "stream", 'is neither "stdout" nor "stderr"')
    if name == "done" and document["outcome"] not in ("ok", "exception", "exit"):
        _fail("done", "outcome", "is not a known outcome")
    frame: GuestFrame = _TYPES[name](**document)
    return frame


def decode_host_frame(line: bytes) -> HostFrame:
    name, document = _parse(line, _HOST_TYPES, _decoded)
    try:
        frame: HostFrame = _TYPES[name](**document)
    except TypeError as error:
        raise WireError(f"malformed {name} frame: {error}") from None
    return frame


_JSON_TYPES: dict[str, tuple[type, ...] | None] = {
    "int": (int,), "float": (int, float), "str": (str,), "bytes": (), "bool": (bool,), "Any": None,
    "Mapping": (dict,), "list": (list,), "int | None": (int, type(None)),
}  # fmt: skip
"""What JSON may hold for a field of a guest's frame, by how its annotation begins."""


def _parse(
    line: bytes, allowed: "frozenset[str]", decode: Callable[[str], Any]
) -> tuple[str, dict[str, Any]]:
    try:
        document = decode(line.decode("utf-8"))
    except RecursionError:
        raise WireError("the frame is nested too deeply") from None
    except ValueError as error:
        # Covers bad UTF-8, bad JSON, NaN, and numbers beyond what Python reads.
        raise WireError(f"the line is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise WireError(f"the frame is a JSON {type(document).__name__}, not an object")
    name = document.pop("type", None)
    if not isinstance(name, str) or name not in allowed:
        raise WireError(f"unknown frame type {name!r:.80}")
    return name, document


def _refuse_constant(token: str) -> None:
    raise ValueError(f"{token} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    # 1e999 would become an infinity, which no frame and no result can hold.
    if math.isinf(value):
        _refuse_constant(text[:80])
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; the limit is {MAX_DIGITS}")
    return int(text)


# Created once: creating one takes longer than encoding a small frame. Without the check for cycles,
# which doubles the time, a cycle raises RecursionError.
_encoded = json_text.encoder()
_encoded_reply = json_text.encoder(allow_nan=True)
_decoded = json_text.decoder(parse_constant=_refuse_constant, parse_float=_finite)
_decoded_of_guest = json_text.decoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
)


def _check_fields(name: str, document: dict[str, Any]) -> None:
    kind = _TYPES[name]
    for key, value in document.items():
        if key not in kind._fields:
            _fail(name, key, "is not known")
        types = _JSON_TYPES[kind.__annotations__[key].partition("[")[0]]
        if types is None:
            continue
        # bool is an int to Python, and must not pass for a number here.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            _fail(name, key, f"is a {type(value).__name__}")
        if isinstance(value, int) and not isinstance(value, bool) and not -MAX_ID < value < MAX_ID:
            _fail(name, key, "is out of range")
    for key in kind._fields:
        if key not in document and key not in kind._defaults:
            _fail(name, key, "is missing")


def _fail(name: str, key: str, problem: str) -> NoReturn:
    raise WireError(f"malformed {name} frame: {key[:80]!r} {problem}")
