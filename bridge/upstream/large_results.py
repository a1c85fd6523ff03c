"""Reads responses that are one large text but for their ends, without parsing them as a whole.

That would take three times their size in memory. Pure. A result of another shape is left to
`parse_response`, and so is one that has to be looked at: an error, data as JSON, several blocks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from pydantic_core import from_json

from bridge.large_text import LargeText
from bridge.model import Json
from bridge.upstream.direct_dispatcher import Response, parse_response

LEAST_BYTES = 1024 * 1024  # Of a line; reading a shorter one as a whole costs little.
EDGE_BYTES = 4096  # Before the text, and after it; there is no more of the response than that.
PIECE_BYTES = 256 * 1024  # Decoded at a time.

_TEXT_BEGINS = re.compile(rb'"text"\s*:\s*"')
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def parse_large_response(line: bytes) -> Response | None:
    """Return id and result, with a `LargeText`; None if the line is not such a response."""
    begins = _TEXT_BEGINS.search(line, 0, EDGE_BYTES)
    end = _end_of_text(line)
    if begins is None or end - begins.end() < LEAST_BYTES - 2 * EDGE_BYTES:
        return None
    # With a mark in its place the rest is valid, and the text is valid by itself: so is the line.
    mark = secrets.token_hex(16)
    response = parse_response(line[: begins.end()] + mark.encode() + line[end:])
    block = None if response is None else _only_text(response[1])
    if response is None or block is None or block["text"] != mark:
        return None
    pieces = _decoded(line, begins.end(), end)
    # Plans, and what is learned of a tool, read such a text as data: see `bridge.rpc.values`.
    if pieces is None or pieces[0].lstrip()[:1] in (b"", b"{", b"["):
        return None
    response[1]["content"] = [{**block, "text": LargeText(pieces)}]
    return response


def _only_text(result: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """Return the block of a result that is no error and has a text and no other content."""
    content = result.get("content")
    if result.get("isError") is True or not isinstance(content, list) or len(content) != 1:
        return None
    (block,) = content
    return block if isinstance(block, dict) and block.get("type") == "text" else None


def _end_of_text(line: bytes) -> int:
    """Return the place of the first quote near the end that no backslash escapes; -1 for none."""
    edge = line[-EDGE_BYTES:]
    at = edge.find(b'"')
    while at >= 0:
        backslashes = at - len(edge[:at].rstrip(b"\\"))
        if backslashes % 2 == 0 and backslashes < at:
            return len(line) - len(edge) + at
        at = edge.find(b'"', at + 1)
    return -1


def _decoded(line: bytes, start: int, end: int) -> list[bytes] | None:
    """Return the text of a JSON string as UTF-8; None if it is invalid, or cannot be cut."""
    pieces = []
    while start < end:
        cut = end if end - start <= PIECE_BYTES else _cut(line, start, start + PIECE_BYTES)
        if cut <= start:
            return None
        try:
            text: str = from_json(b'"%b"' % line[start:cut], cache_strings=False)
        except ValueError:
            return None
        pieces.append(text.encode())
        start = cut
    return pieces


def _cut(line: bytes, start: int, end: int) -> int:
    """Return a place at `end`, or shortly before it, that is not within a character."""
    for _ in range(3):
        if line[end] & 0xC0 == 0x80:
            end -= 1
    # Two halves of a character beyond Unicode's first plane.
    escape = line.rfind(b"\\", max(start, end - 12), end)
    if escape < 0:
        return end
    # Of several backslashes in a row the first is certain to begin an escape.
    end = start + len(line[start:escape].rstrip(b"\\"))
    return end - 6 if _FIRST_HALF.fullmatch(line, max(start, end - 6), end) else end
