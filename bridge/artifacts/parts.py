"""Reads artifacts, whole or in parts.

Owns the query of a URI that selects a part, open content with the check against its digest, the
bound on one response, and the query for the next part.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.artifacts.mime import is_text
from bridge.errors import ArtifactStoreError, InvalidRequestError
from bridge.model import Artifact
from bridge.store.blobs import OpenBlob
from bridge.store.store import StoreError

MAX_ANSWER = 1024 * 1024
"""Bytes of content in one answer, however much a program has left: clients have limits of a few
megabytes on a message."""

_CHARACTER = 4  # Bytes that a character of UTF-8 takes at most.

SPARE = 2 * _CHARACTER
"""Bytes that are read beyond the request: a character may begin late, and end later."""

_PART = re.compile(
    r"(length=(?P<length>N)(&(?=offset)|$))?(offset=(?P<offset>N))?"
    r"|lines=((?P<first>N)(?P<dash>-(?P<last>N)?)?|-(?P<tail>N))".replace("N", "[0-9]{1,15}")
)
"""A query, its pairs in order."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A requested part of an artifact: a range of bytes or of lines.

    Attributes:
        length: None for all bytes from `offset`.
        first: The first line, from 1; negative counts from the end; 0 for a range of bytes.
        last: The last line, inclusive; None for all lines from `first`.
    """

    offset: int = 0
    length: int | None = None
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """The position of lines in an artifact.

    Attributes:
        start, end: Offsets in bytes.
        first, last: Numbers of the lines between them; `last` is lower if there are none.
    """

    start: int
    end: int
    first: int
    last: int
    total: int


def parse_part(query: str) -> Part:
    """Return the part that a URI's query requests; raise InvalidRequestError with valid ones."""
    found = _PART.fullmatch("&".join(sorted(query.split("&"))))
    names = ("offset", "length", "first", "last", "tail")
    offset, length, first, last, tail = (
        None if found is None or found[name] is None else int(found[name]) for name in names
    )
    if found is not None and found["dash"] is None:
        last = first
    backwards = last is not None and first is not None and last < first
    if found is None or 0 in (first, tail) or backwards:
        raise InvalidRequestError(
            f"{query!r:.80} is no part of a resource.",
            remedy="Use ?offset=BYTES&length=BYTES, or for text ?lines=100-200, ?lines=100- or "
            "?lines=-50 for the last fifty.",
        )
    return Part(offset=offset or 0, length=length, first=first or -(tail or 0), last=last)


def line_span(pieces: Callable[[], Iterable[bytes]], first: int, last: int | None) -> Span:
    """Return where lines are.

    Args:
        pieces: Returns the content, part by part, each time it is called.
        first: From 1; below 0, so many from the end.
        last: None for the last there is.
    """
    if first < 0:
        _, total, _ = _after(pieces(), ())
        first, last = max(total + first + 1, 1), None
    beyond = None if last is None else max(last, first - 1)
    wanted = (first - 1,) if beyond is None else (first - 1, beyond)
    places, total, size = _after(pieces(), wanted)
    start = places.get(first - 1, size)
    end = size if beyond is None else places.get(beyond, size)
    last = total if beyond is None else min(beyond, total)
    return Span(start=start, end=end, first=first, last=last, total=total)


def _after(pieces: Iterable[bytes], counts: tuple[int, ...]) -> tuple[dict[int, int], int, int]:
    """Return the places that so many ends of lines are before, and how many lines and bytes are."""
    places = {0: 0}
    seen, size, end = 0, 0, b"\n"
    for piece in pieces:
        more = piece.count(b"\n")
        for count in counts:
            if seen < count <= seen + more:
                places[count] = size + nth_line_end(piece, count - seen) + 1
        seen, size, end = seen + more, size + len(piece), piece[-1:] or end
    return places, seen + (end != b"\n"), size


def nth_line_end(data: bytes, number: int, start: int = 0) -> int:
    """Return where the so-manieth end of a line is, of at least so many from `start` on."""
    low, high = start, len(data)
    # By halves: to look for one after the other takes long where there are a million.
    while high - low > 1:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if number <= before:
            high = middle
        else:
            low, number = middle, number - before
    return low


def text_answer(data: bytes, start: int, wanted: int, size: int) -> tuple[int, int, str | None]:
    """Return the requested length of a text, in whole characters, and at least one.

    It comes after the places where it begins and ends, and is None where it is not text.

    Args:
        data: What is there from `start` on; `wanted` bytes and `SPARE` more, if there are.
    """
    begin, end = 0, min(wanted, len(data))
    while start > 0 and begin < min(len(data), _CHARACTER - 1) and _inside(data, begin):
        begin += 1
    cut = end
    while cut > begin and end - cut < _CHARACTER and _inside(data, cut):
        cut -= 1
    if cut <= begin:
        cut = min(begin + 1, len(data)) if wanted else begin
        while cut < len(data) and cut - begin < _CHARACTER and _inside(data, cut):
            cut += 1
    try:
        text = data[begin:cut].decode()
    except UnicodeDecodeError:
        return start, min(start + max(end, 0), size), None
    return start + begin, start + cut, text


def _inside(data: bytes, place: int) -> bool:
    return place < len(data) and data[place] & 0xC0 == 0x80


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def translated(doing: str, root: Path | str) -> Iterator[None]:
    """Raise each OSError as an ArtifactStoreError.

    Args:
        doing: A participle for the message: "... cannot be <doing>".

    Raises:
        ArtifactStoreError: The body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            message = f"Nothing more can be {doing}: the disk is full."
            remedy = (
                "Free space on it, or remove what is not needed any more: "
                "mcp-code-bridge artifacts rm."
            )
        else:
            reason = error.strerror or str(error) or type(error).__name__
            message = f"What programs leave cannot be {doing}: {reason}."
            remedy = "The directory has to be one that this user alone can write to."
            if isinstance(error, StoreError) and error.remedy:
                remedy = error.remedy
        raise ArtifactStoreError(message, remedy=remedy, host_detail=f"[{root}]") from error


_PIECE = 1024 * 1024


@dataclass(frozen=True)
class Content:
    """An artifact's open content, which can be read even if it is removed meanwhile."""

    artifact: Artifact
    blob: OpenBlob
    root: Path | str

    def read(self, start: int, size: int) -> bytes:
        """Return a range of bytes, shorter at the end of the content."""
        pieces, left = [], max(min(size, self.artifact.size - start), 0)
        with translated("read", self.root):
            while left > 0 and (piece := self.blob.read(min(left, _PIECE), start)):
                pieces.append(piece)
                start, left = start + len(piece), left - len(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for piece in self._unchecked():
            digest.update(piece)
            yield piece
        if digest.hexdigest() != self.artifact.digest:
            raise self.damaged()

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def lines(self, first: int, last: int | None) -> Span:
        return line_span(self._unchecked, first, last)

    def _unchecked(self) -> Iterator[bytes]:
        start = 0
        while piece := self.read(start, _PIECE):
            start += len(piece)
            yield piece

    def damaged(self) -> ArtifactStoreError:
        message = f"What is kept as {self.artifact.uri} is damaged: it is not what was kept."
        return ArtifactStoreError(message, remedy="Run the program again, and remove this.")


@dataclass(frozen=True, kw_only=True)
class PartialContent:
    """The part of an artifact that one response has.

    Attributes:
        data: The bytes; empty if there is a text.
        text: None if the content is not text.
        start, end: Its range of bytes, of `size`.
        first, last: Its lines, of `lines`, if lines were requested; the last may be cut.
        more: The query for the next part; empty at the end.
    """

    data: bytes = b""
    text: str | None = None
    start: int
    end: int
    size: int
    first: int = 0
    last: int = 0
    lines: int = 0
    more: str = ""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end == self.size

    def told(self, uri: str) -> str:
        """Return a sentence on which part this is, and how to read on."""
        if self.lines:
            what = f"lines {self.first:,}-{self.last:,} of {self.lines:,}"
            if self.last < self.first:
                what = f"no lines: there are {self.lines:,}"
        else:
            what = f"bytes {self.start:,}-{self.end:,} of {self.size:,}"
        told = f"These are {what}."
        return f"{told} Read on with {uri}?{self.more}" if self.more else told


def read_part(content: Content, part: Part) -> PartialContent:
    """Read a part, up to the bound of one response. Blocks.

    Raises:
        InvalidRequestError: Lines are requested of content that is not text.
        ArtifactStoreError: It cannot be read, or its digest is wrong.
    """
    text = is_text(content.artifact.mime_type)
    if not part.first:
        return _read_bytes(content, part, text=text)
    if not text:
        message = f"{content.artifact.name!r} is no text, and has no lines."
        raise InvalidRequestError(message, remedy="Use ?offset=BYTES&length=BYTES.")
    return _read_lines(content, part)


def _read_bytes(content: Content, part: Part, *, text: bool) -> PartialContent:
    size = content.artifact.size
    start = min(part.offset, size)
    wanted = min(size - start, MAX_ANSWER if part.length is None else part.length, MAX_ANSWER)
    # The whole is checked.
    data = content.whole() if wanted == size else content.read(start, wanted + SPARE)
    if text:
        begin, end, found = text_answer(data, start, wanted, size)
        if found is not None:
            more = _next(end, part.length, size)
            return PartialContent(text=found, start=begin, end=end, size=size, more=more)
    data = data[:wanted]
    end = start + len(data)
    return PartialContent(
        data=data, start=start, end=end, size=size, more=_next(end, part.length, size)
    )


def _next(end: int, length: int | None, size: int) -> str:
    if end >= size:
        return ""
    return f"offset={end}" if length is None else f"offset={end}&length={length}"


def _read_lines(content: Content, part: Part) -> PartialContent:
    size = content.artifact.size
    span = content.lines(part.first, part.last)
    last, end = span.last, span.end
    data = content.read(span.start, min(end - span.start, MAX_ANSWER))
    more = ""
    if span.start + len(data) < end:
        whole_lines = data[: data.rfind(b"\n") + 1]
        if whole_lines:
            data = whole_lines
            last = span.first + data.count(b"\n") - 1
            more = f"lines={last + 1}-{part.last or ''}"
        else:
            last = span.first
    end = span.start + len(data)
    _, _, text = text_answer(data, 0, len(data), size)
    if not more and end < size and last >= span.first:
        many = span.last - span.first + 1
        more = f"lines={last + 1}-{last + many}"
    if last == span.first and not data.endswith(b"\n") and end < size:
        # One line that is longer than an answer continues in bytes, from a whole character.
        _, beyond, text = text_answer(data + content.read(end, SPARE), 0, len(data), size)
        end = span.start + beyond
        more = f"offset={end}"
    return PartialContent(
        text=text,
        data=b"" if text is not None else data,
        start=span.start,
        end=end,
        size=size,
        first=span.first,
        last=last,
        lines=span.total,
        more=more,
    )
