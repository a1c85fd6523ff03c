"""Responses that are one large text are read in pieces, and give what reading them whole gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.large_text import LargeText, with_plain_text
from bridge.upstream import results
from bridge.upstream.results import (
    EDGE_BYTES,
    LEAST_BYTES,
    parse_large_response,
    parse_response,
)

LINE = 'one of many lines, \\ with "quotes", ä, \U0001f600 and \ttabs\n'
LARGE = LINE * (2 * LEAST_BYTES // len(LINE))


def response(text: str, *, ascii_only: bool = True, **more: Any) -> bytes:
    """Return the line of a result with one text."""
    result = {"content": [{"type": "text", "text": text}], **more}
    message = {"jsonrpc": "2.0", "id": 7, "result": result}
    return json.dumps(message, ensure_ascii=ascii_only).encode()


def plain(line: bytes) -> Any:
    """Return what a line says, with its text as one."""
    found = parse_large_response(line)
    assert found is not None
    assert isinstance(found[1]["content"][0]["text"], LargeText)
    return found[0], with_plain_text(found[1])


@pytest.mark.parametrize("ascii_only", [True, False])
def test_it_gives_what_reading_it_whole_gives(ascii_only: bool) -> None:
    line = response(LARGE, ascii_only=ascii_only, isError=False, _meta={"a": 'b"'})
    assert plain(line) == parse_response(line)


@given(
    unit=st.text(
        st.sampled_from(["\\", '"', "é", "€", "\U0001f600", "\n", "a", "u", "d"]), min_size=1
    ),
    ascii_only=st.booleans(),
    piece=st.integers(min_value=40, max_value=60),
)
def test_wherever_the_text_is_cut(unit: str, ascii_only: bool, piece: int) -> None:
    line = response("x" + unit * (2 * EDGE_BYTES // len(unit)), ascii_only=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "LEAST_BYTES", 0)
        patch.setattr(results, "PIECE_BYTES", piece)
        found = parse_large_response(line)
    # A text with too many backslashes in a row cannot be cut, and is read whole.
    assert found is None or (found[0], with_plain_text(found[1])) == parse_response(line)
    assert found is not None or "\\" in unit


@pytest.mark.parametrize(
    "line",
    [
        response(LARGE, isError=True),
        response(LARGE, structuredContent={"result": LARGE}),
        response(f" [{json.dumps(LARGE)}]"),
        response("  \n" + " " * len(LARGE)),
        response(LARGE).replace(b"of many", b"of \xff many", 1),
        response(LARGE).replace(b"of many", b'of "many', 1),
        response(LARGE).replace(b"of many", b"of \x01 many", 1),
        response(LARGE).replace(b"of many", b"of \\ud83d many", 1),
        response(LARGE)[:-2],
        response(LARGE).replace(b'"id": 7', b'"id": 7, "method": "x"', 1),
        response(LARGE).replace(b'{"type": "text"', b'{"type": "text"}, {"type": "text"', 1),
        b'{"id": 7, "result": {"content": [{"type": "text", "text": "' + b"\\" * len(LARGE),
    ],
    ids=[
        "an error",
        "two large texts",
        "data",
        "blanks",
        "no UTF-8",
        "a quote",
        "a control character",
        "half a character",
        "cut off",
        "a request",
        "two blocks",
        "nothing but backslashes",
    ],
)
def test_what_has_to_be_looked_at_is_left_to_be_read_whole(line: bytes) -> None:
    assert parse_large_response(line) is None
