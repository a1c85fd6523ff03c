"""How the frames between host and guest become bytes.

Owns their encoding as JSON lines and a bounded incremental decoder; what they hold is `frames`'.
Does no I/O and keeps no clock, so that both ends and every test drive it the same way. The host
imports this module too: it must stay free of imports beyond the standard library and run on Python
3.9.

One frame is one line of JSON ended by a newline. JSON escapes newlines, so a line is always a whole
frame and a reader that meets a torn line finds its place again at the next one.

Each side treats the other's frames by its own rules. To the host the guest is hostile:
`decode_guest_frame` accepts the exact shapes below and nothing else.
"""

from __future__ import annotations

import json
import math

from bridge.guest.frames import (
    PROTOCOL,
    Call,
    Cancel,
    Clock,
    Done,
    Exited,
    File,
    GuestFrame,
    Hello,
    HostFrame,
    Output,
    Progress,
    Reply,
    Run,
    Shown,
    State,
    Stop,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

    # Field name to its types and whether it must be present; None admits any JSON value.
    _Fields = Mapping[str, Tuple[Optional[Tuple[type, ...]], bool]]

__all__ = [
    "MAX_FRAME_BYTES",
    "MAX_ID",
    "MAX_VALUES",
    "PROTOCOL",
    "Call",
    "Cancel",
    "Clock",
    "Done",
    "Exited",
    "File",
    "FrameTooLargeError",
    "GuestFrame",
    "Hello",
    "HostFrame",
    "LineDecoder",
    "Output",
    "Progress",
    "Reply",
    "Run",
    "Shown",
    "State",
    "Stop",
    "WireError",
    "count_values",
    "decode_guest_frame",
    "decode_host_frame",
    "encode",
]

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Longest line either side accepts unless told otherwise: a 10 MB result with room to spare."""

MAX_ID = 2**53
"""Ids stay exact in every JSON implementation below this."""


MAX_DIGITS = 1_000
"""Of a whole number in a guest's frame: to read and to write one takes time that grows with the
square of that."""

MAX_VALUES = 250_000
"""Values that a frame made by a program may hold. As objects they take some 200 bytes each, however
short their text, and a second of the host's time in all."""

_COUNT_BYTES = 256 * 1024
"""Looked at together when the values of a line are counted."""


class WireError(Exception):
    """The peer sent bytes that are no frame."""


class FrameTooLargeError(WireError):
    """A line went past the limit; nothing after it can be trusted."""


_TYPES: Dict[str, Any] = {
    "hello": Hello,
    "call": Call,
    "cancel": Cancel,
    "output": Output,
    "done": Done,
    "exited": Exited,
    "shown": Shown,
    "progress": Progress,
    "state": State,
    "file": File,
    "run": Run,
    "reply": Reply,
    "clock": Clock,
    "stop": Stop,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}

GUEST_TYPES = frozenset(
    (
        *("hello", "call", "cancel", "output", "done", "exited"),
        *("shown", "progress", "state", "file"),
    )
)
_HOST_TYPES = frozenset(("run", "reply", "clock", "stop"))


def encode(frame: Union[GuestFrame, HostFrame]) -> bytes:
    """Return `frame` as one line.

    Raises:
        ValueError: A value in it is not JSON: NaN, an infinity, a cycle, too deep.
        TypeError: A value in it is of a type that JSON does not have.
    """
    document = {"type": _NAMES[type(frame)]}
    document.update(frame.__dict__)
    try:
        text = _ENCODER.encode(document)
    except RecursionError:
        message = "the value is nested too deeply"
        raise ValueError(message) from None
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        # Lone surrogates have no UTF-8 form, but JSON can escape them.
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


class LineDecoder:
    """Bytes in any portions to lines, holding at most one unfinished line.

    Portions are kept in a list and joined once, so a long line costs time linear in its length.
    """

    def __init__(self, max_line_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_line_bytes
        self._parts: List[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes held of a line that has not ended."""
        return self._size

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each line that `data` completes, without its newline; blank ones are left out.

        Exhaust the iterator before feeding again.

        Raises:
            FrameTooLargeError: A line is longer than the limit.
        """
        start = 0
        while True:
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end
            self._size += stop - start
            if self._size > self._max:
                message = f"a frame is longer than {self._max} bytes"
                raise FrameTooLargeError(message)
            if stop > start:
                self._parts.append(data[start:stop])
            if end < 0:
                return
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._size = 0
            start = end + 1
            if line:
                yield line


def count_values(line: bytes, exact_above: int = MAX_VALUES) -> int:
    """Return how many values a line of JSON holds, at most, without parsing it.

    It is quick and takes little memory whatever the line holds, and never too low for as much of
    it as is JSON: a parser that gives up at a mistake has made no more than this.

    Args:
        exact_above: Up to this what is inside strings may be counted too, which is quicker.
    """
    values = 0
    # Not in one go: nothing else of the process runs meanwhile, in whatever thread this is done.
    for start in range(0, len(line), _COUNT_BYTES):
        values += _punctuation(line[start : start + _COUNT_BYTES])
    if values <= exact_above:
        return values
    # Escaped quotation marks go, so that those left are the ends of strings.
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each value brings at most two strings, itself or its name; to count further would be slow.
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
    """Return the frame that a guest's line holds, every field checked.

    Raises:
        WireError: It is not exactly one of the guest's frames.
    """
    name, document = _parse(line, GUEST_TYPES, _GUEST_DECODER)
    if not line.startswith(b'{"type":"%s"' % name.encode()):
        # The supervisor passes a worker's lines on by their beginning. A second "type" further on,
        # which JSON readers prefer, must not turn a call into one of the supervisor's own frames.
        message = f"the type of the {name} frame does not come first"
        raise WireError(message)
    _check_fields(name, document, _GUEST_FIELDS[name])
    if name in ("call", "cancel") and not 0 <= document["id"] < MAX_ID:
        _fail(name, "id", "is out of range")
    if name == "output" and document["stream"] not in ("stdout", "stderr"):
        _fail("output", "stream", 'is neither "stdout" nor "stderr"')
    if name == "done" and document["outcome"] not in ("ok", "exception", "exit"):
        _fail("done", "outcome", "is not a known outcome")
    frame: GuestFrame = _TYPES[name](**document)
    return frame


def decode_host_frame(line: bytes) -> HostFrame:
    """Return the frame that a host's line holds.

    Raises:
        WireError: It is not one of the host's frames.
    """
    name, document = _parse(line, _HOST_TYPES, _DECODER)
    try:
        frame: HostFrame = _TYPES[name](**document)
    except TypeError as error:
        message = f"malformed {name} frame: {error}"
        raise WireError(message) from None
    return frame


_INT = (int,)
_TEXT = (str,)
_BOOL = (bool,)
_MAP = (dict,)
_LIST = (list,)
_NUMBER = (int, float)
_OPTIONAL_INT = (int, type(None))

_GUEST_FIELDS: Mapping[str, _Fields] = {
    "hello": {
        "digest": (_TEXT, True),
        "python": (_TEXT, True),
        "protocol": (_INT, True),
        "facts": (_MAP, False),
    },
    "call": {"id": (_INT, True), "method": (_TEXT, True), "params": (_MAP, True)},
    "cancel": {"id": (_INT, True)},
    "output": {"stream": (_TEXT, True), "text": (_TEXT, True), "skipped": (_INT, False)},
    "done": {
        "outcome": (_TEXT, True),
        "exit_code": (_INT, True),
        "error": (_TEXT, False),
        "error_type": (_TEXT, False),
        "has_result": (_BOOL, False),
        "result": (None, False),
        "result_repr": (_TEXT, False),
        "holds": (_LIST, False),
        "more": (_INT, False),
        "lost": (_LIST, False),
    },
    "exited": {
        "code": (_OPTIONAL_INT, False),
        "signal": (_OPTIONAL_INT, False),
        "timed_out": (_BOOL, False),
        "oom_kills": (_INT, False),
        "cpu_ms": (_INT, False),
        "peak_memory_bytes": (_INT, False),
        "kept": (_BOOL, False),
    },
    "shown": {
        "mime": (_TEXT, True),
        "text": (_TEXT, False),
        "data": (_TEXT, False),
        "small": (_TEXT, False),
        "note": (_TEXT, False),
    },
    "progress": {
        "done": (_NUMBER, True),
        "total": (_NUMBER, False),
        "message": (_TEXT, False),
    },
    "state": {"data": (_TEXT, False), "lost": (_LIST, False)},
    "file": {
        "name": (_TEXT, True),
        "data": (_TEXT, False),
        "size": (_INT, False),
        "more": (_BOOL, False),
        "problem": (_TEXT, False),
    },
}


def _parse(
    line: bytes, allowed: "frozenset[str]", decoder: json.JSONDecoder
) -> Tuple[str, Dict[str, Any]]:
    try:
        document = decoder.decode(line.decode("utf-8"))
    except RecursionError:
        message = "the frame is nested too deeply"
        raise WireError(message) from None
    except ValueError as error:
        # Covers bad UTF-8, bad JSON, NaN, and numbers beyond what Python reads.
        message = f"the line is not JSON: {error}"
        raise WireError(message) from None
    if not isinstance(document, dict):
        message = f"the frame is a JSON {type(document).__name__}, not an object"
        raise WireError(message)
    name = document.pop("type", None)
    if not isinstance(name, str) or name not in allowed:
        message = f"unknown frame type {name!r:.80}"
        raise WireError(message)
    return name, document


def _refuse_constant(token: str) -> None:
    message = f"{token} is not JSON"
    raise ValueError(message)


def _finite(text: str) -> float:
    """Read a number; 1e999 would become an infinity, which no frame and no result can hold."""
    value = float(text)
    if math.isinf(value):
        _refuse_constant(text[:80])
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        message = f"a number has {len(text)} digits; the limit is {MAX_DIGITS}"
        raise ValueError(message)
    return int(text)


# Made once: to make one takes longer than to read or write a small frame.
# A circle is found as nesting without an end; to look for circles takes as long as all the rest.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_GUEST_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
)


def _check_fields(name: str, document: Dict[str, Any], fields: _Fields) -> None:
    for key, value in document.items():
        if key not in fields:
            _fail(name, key, "is not known")
        types = fields[key][0]
        if types is None:
            continue
        # bool is an int to Python, and must not pass for a number here.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            _fail(name, key, f"is a {type(value).__name__}")
        if isinstance(value, int) and not isinstance(value, bool) and not -MAX_ID < value < MAX_ID:
            _fail(name, key, "is out of range")
    for key, (_, required) in fields.items():
        if required and key not in document:
            _fail(name, key, "is missing")


def _fail(name: str, key: str, problem: str) -> None:
    message = f"malformed {name} frame: {key[:80]!r} {problem}"
    raise WireError(message)
