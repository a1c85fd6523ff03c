"""A part of something that is kept, as one answer has it, and how the rest is had."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.artifacts.content import Content
from bridge.artifacts.mime import is_text
from bridge.artifacts.ranges import MAX_ANSWER, SPARE, Part, text_answer
from bridge.errors import InvalidRequestError


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one answer has.

    Attributes:
        data: The bytes; empty where there is a text.
        text: None where it is not text.
        start, end: Bytes of the whole that it has, of `size`.
        first, last: Lines that it has, if lines were asked for, of `lines`; a last one may be cut.
        more: The query that goes on behind it; empty at the end.
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
        """Whether nothing is missing."""
        return self.start == 0 and self.end == self.size

    def told(self, uri: str) -> str:
        """Return what of the whole it is, and how to read on.

        Args:
            uri: Of the whole.
        """
        if self.lines:
            what = f"lines {self.first:,}-{self.last:,} of {self.lines:,}"
            if self.last < self.first:
                what = f"no lines: there are {self.lines:,}"
        else:
            what = f"bytes {self.start:,}-{self.end:,} of {self.size:,}"
        told = f"These are {what}."
        return f"{told} Read on with {uri}?{self.more}" if self.more else told


def read_part(content: Content, part: Part) -> Reading:
    """Read a part, or as much of it as one answer has. Blocks.

    Raises:
        InvalidRequestError: Lines are asked for of what is not text.
        ArtifactStoreError: It cannot be read, or is not what was kept.
    """
    text = is_text(content.artifact.mime_type)
    if not part.first:
        return _bytes(content, part, text=text)
    if not text:
        message = f"{content.artifact.name!r} is no text, and has no lines."
        raise InvalidRequestError(message, remedy="Use ?offset=BYTES&length=BYTES.")
    return _lines(content, part)


def _bytes(content: Content, part: Part, *, text: bool) -> Reading:
    size = content.artifact.size
    start = min(part.offset, size)
    wanted = min(size - start, MAX_ANSWER if part.length is None else part.length, MAX_ANSWER)
    # The whole is checked.
    data = content.whole() if wanted == size else content.read(start, wanted + SPARE)
    if text:
        answer = text_answer(data, start, wanted, size)
        if answer.text is not None:
            return Reading(
                text=answer.text,
                start=answer.start,
                end=answer.end,
                size=size,
                more=_next(answer.end, part.length, size),
            )
    data = data[:wanted]
    end = start + len(data)
    return Reading(data=data, start=start, end=end, size=size, more=_next(end, part.length, size))


def _next(end: int, length: int | None, size: int) -> str:
    if end >= size:
        return ""
    return f"offset={end}" if length is None else f"offset={end}&length={length}"


def _lines(content: Content, part: Part) -> Reading:
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
    answer = text_answer(data, 0, len(data), size)
    if not more and end < size and last >= span.first:
        many = span.last - span.first + 1
        more = f"lines={last + 1}-{last + many}"
    if last == span.first and not data.endswith(b"\n") and end < size:
        # One line that is longer than an answer goes on in bytes, from a whole character.
        answer = text_answer(data + content.read(end, SPARE), 0, len(data), size)
        end = span.start + answer.end
        more = f"offset={end}"
    return Reading(
        text=answer.text,
        data=b"" if answer.text is not None else data,
        start=span.start,
        end=end,
        size=size,
        first=span.first,
        last=last,
        lines=span.total,
        more=more,
    )
