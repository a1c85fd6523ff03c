"""A hostile guest's output: frames, damaged frames and bytes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bridge.guest.protocol import wire
from bridge.guest.protocol.wire import GuestFrame, encode

FUZZING = settings.get_current_profile_name() == "fuzz"

searched = settings(
    deadline=None,
    derandomize=not FUZZING,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""The same hundred examples in each run, or many random ones in `make fuzz`."""

texts = st.text(max_size=20) | st.sampled_from(("\ud800", '",[{\\', "\\\\", "\n", "\x00", "é😀"))
raw = st.binary(max_size=20) | st.sampled_from((b"\n", b"+1\n", b'\n{"type":"call"'))
whole = st.integers(-wire.MAX_ID + 1, wire.MAX_ID - 1)
ids = st.integers(0, wire.MAX_ID - 1)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6),
    max_leaves=20,
)
objects = st.dictionaries(texts, json_values, max_size=4)

guest_frames: st.SearchStrategy[GuestFrame] = st.one_of(
    st.builds(wire.Hello, digest=texts, python=texts, protocol=whole, facts=objects),
    st.builds(wire.Call, id=ids, method=texts, params=objects),
    st.builds(wire.Cancel, id=ids),
    st.builds(wire.Output, stream=st.sampled_from(("stdout", "stderr")), data=raw, skipped=whole),
    st.builds(wire.File, name=texts, data=raw, size=whole, more=st.booleans(), problem=texts),
    st.builds(
        wire.Done,
        outcome=st.sampled_from(("ok", "exception", "exit")),
        exit_code=whole,
        error=texts,
        error_type=texts,
        has_result=st.booleans(),
        result=json_values,
        result_repr=texts,
    ),
    st.builds(
        wire.Exited,
        code=st.none() | whole,
        signal=st.none() | whole,
        timed_out=st.booleans(),
        oom_kills=whole,
        cpu_ms=whole,
        peak_memory_bytes=whole,
    ),
)

NAMES = ("hello", "call", "cancel", "output", "done", "exited", "run", "reply", "stop", "else")
FIELDS = (
    "type", "id", "method", "params", "stream", "text", "skipped", "outcome", "exit_code",
    "result", "code", "signal", "timed_out", "digest", "python", "protocol", "facts",
)  # fmt: skip
FRAGMENTS = (
    b'"type":"exited"', b"1e999", b"-1e999", b"NaN", b"Infinity", b'"\\ud800"', b"9" * 5000,
    b"[" * 2000, b'{"a":' * 2000, b"[" * 985 + b"]" * 985, b"\xff", b"\xed\xa0\x80", b"\x00",
    b"\\u0022", b"true", b"-0", b'"id":7,', b",", b"}", b"{", b'"', b"\\", b" ", b"\r",
    b"+3\n", b"+99999999999999\n",
)  # fmt: skip
"""What parsers and their users are known to trip over."""

values = st.sampled_from(FRAGMENTS) | json_values.map(lambda value: json.dumps(value).encode())


@st.composite
def nearly_frames(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(NAMES))
    pairs = draw(st.lists(st.tuples(st.sampled_from(FIELDS), values), max_size=6))
    inside = b"".join(b',"%s":%s' % (key.encode(), value) for key, value in pairs)
    return b'{"type":"%s"%s}' % (name.encode(), inside)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    line = encode(draw(guest_frames))[:-1]
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(line))] * 2)))
    return line[:start] + draw(st.sampled_from((b"", line[start:] * 2, *FRAGMENTS))) + line[end:]


lines = st.one_of(
    guest_frames.map(lambda frame: encode(frame)[:-1]),
    nearly_frames(),
    damaged(),
    st.binary(max_size=60),
)
"""One frame, without its end."""

streams = st.lists(lines, max_size=8).map(b"\n".join)
"""Lines, the last of which may be torn."""


@st.composite
def portions(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=12)))
    edges = [0, *(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return [piece for piece in pieces if piece]
