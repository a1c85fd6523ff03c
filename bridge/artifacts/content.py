"""The content of artifacts: its type, and the whole or the part that a URI's query selects.

The content outweighs a claim: a type with a signature needs the signature, and executable content
always gets its own type.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ArtifactStoreError, InvalidRequestError
from bridge.model import Artifact
from bridge.store.blobs import OpenBlob

HEAD = 4096  # Bytes at the beginning that decide the type.

TEXT = "text/plain"

_SIGNATURES: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    ((b"GIF87a", b"GIF89a"), "image/gif"),
    (b"%PDF-", "application/pdf"),
    ((b"PK\x03\x04", b"PK\x05\x06"), "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-msdownload"),
    ((b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf"), "application/x-mach-binary"),
    ((b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe"), "application/x-mach-binary"),
    (b"\xca\xfe\xba\xbe", "application/x-mach-binary"),
    (b"#!", "text/x-script"),
)

_SIGNED = frozenset(kind for _, kind in _SIGNATURES) | {"image/webp"}  # They need a signature.

_ACTIVE = frozenset({
    "application/java-archive", "application/javascript", "application/x-bat", "application/x-csh",
    "application/x-sh", "application/xhtml+xml", "image/svg+xml", "text/html", "text/javascript",
})  # fmt: skip
"""Types that may execute when opened: a name may give them, a claim may not."""

_TEXTS = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml|toml|sql|javascript|x-ndjson|x-sh|x-csh|x-bat|x-tex)"
    r"|application/x-python(-code)?|image/svg\+xml"
)

_MORE = {
    ".csv": "text/csv", ".geojson": "application/geo+json", ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson", ".log": TEXT, ".md": "text/markdown",
    ".ndjson": "application/x-ndjson", ".parquet": "application/vnd.apache.parquet",
    ".sql": "application/sql", ".toml": "application/toml", ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".yaml": "application/yaml", ".yml": "application/yaml",
}  # fmt: skip

_ZIPPED = re.compile(
    r"application/(vnd\.openxmlformats-officedocument\..+|vnd\.oasis\.opendocument\..+"
    r"|epub\+zip|zip)"
)

# Without the system's tables, so that a name has one type on every machine.
_by_name = mimetypes.MimeTypes(filenames=())

_CLAIM = re.compile(r"[a-z0-9][a-z0-9.+-]{0,48}/[a-z0-9][a-z0-9.+-]{0,48}")


def is_text(mime_type: str) -> bool:
    return _TEXTS.fullmatch(mime_type) is not None


def mime_type(name: str, head: bytes, claimed: str = "") -> str:
    """Return the MIME type of content that begins with `head`."""
    head = head[:HEAD]
    end = name[name.rfind(".") :].lower() if "." in name else ""
    # Only the suffix, since `guess_type` may take a prefix for the scheme of a URL.
    guessed, encoding = _by_name.guess_type("file" + end)
    named = _MORE.get(end) or (guessed if guessed and encoding is None else "")
    signed = next((kind for start, kind in _SIGNATURES if head.startswith(start)), "")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        signed = "image/webp"
    if signed == "application/zip" and _ZIPPED.fullmatch(named):
        return named
    if signed and signed != "text/x-script":
        return signed
    claimed = claimed.lower()
    if not _CLAIM.fullmatch(claimed) or claimed in _ACTIVE:
        claimed = ""
    guesses = [guess for guess in (claimed, named) if guess and guess not in _SIGNED]
    if not _looks_like_text(head):
        return next((guess for guess in guesses if not is_text(guess)), "application/octet-stream")
    if signed:
        return named if named.startswith("text/x-") else signed
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1024].lower()
    if b"<svg" in start and start.startswith((b"<svg", b"<?xml", b"<!doctype svg", b"<!--")):
        return "image/svg+xml"
    return next((guess for guess in guesses if is_text(guess) and guess != "image/svg+xml"), TEXT)


def _looks_like_text(head: bytes) -> bool:
    try:
        # Incremental, since the last character may be cut.
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


MAX_ANSWER = 1024 * 1024  # Bytes; an artifact has any size, and clients accept a few megabytes.

_CHARACTER = 4  # Longest character of UTF-8, in bytes.
SPARE = 2 * _CHARACTER  # Bytes read beyond the request, to complete characters.

_PART = re.compile(  # A query with sorted pairs.
    r"(length=(?P<length>N)(&(?=offset)|$))?(offset=(?P<offset>N))?"
    r"|lines=((?P<first>N)(?P<dash>-(?P<last>N)?)?|-(?P<tail>N))".replace("N", "[0-9]{1,15}")
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The lines `first` to `last` of an artifact or, if `first` is 0, a range of its bytes."""

    offset: int = 0
    length: int | None = None  # None for all bytes from `offset`.
    first: int = 0  # From 1; a negative number counts from the end.
    last: int | None = None  # Inclusive; None for all lines from `first`.


@dataclass(frozen=True, kw_only=True)
class Span:
    """The position of lines, as byte offsets and as line numbers; `last < first` if empty."""

    start: int
    end: int
    first: int
    last: int
    total: int


def parse_part(query: str) -> Part:
    match = _PART.fullmatch("&".join(sorted(query.split("&"))))
    names = ("offset", "length", "first", "last", "tail")
    offset, length, first, last, tail = (
        None if match is None or match[name] is None else int(match[name]) for name in names
    )
    if match is not None and match["dash"] is None:
        last = first
    backwards = last is not None and first is not None and last < first
    if match is None or 0 in (first, tail) or backwards:
        raise InvalidRequestError(
            f"{query!r:.80} selects no part of a resource.",
            remedy="Use ?offset=BYTES&length=BYTES, or for text ?lines=100-200, ?lines=100- or "
            "?lines=-50 for the last fifty.",
        )
    return Part(offset=offset or 0, length=length, first=first or -(tail or 0), last=last)


def line_span(pieces: Callable[[], Iterable[bytes]], first: int, last: int | None) -> Span:
    """Return the position of lines as in `Part`; each call of `pieces` starts the content again."""
    if first < 0:
        _, total, _ = _after(pieces(), ())
        first, last = max(total + first + 1, 1), None
    beyond = None if last is None else max(last, first - 1)
    wanted = (first - 1,) if beyond is None else (first - 1, beyond)
    offsets, total, size = _after(pieces(), wanted)
    start = offsets.get(first - 1, size)
    end = size if beyond is None else offsets.get(beyond, size)
    last = total if beyond is None else min(beyond, total)
    return Span(start=start, end=end, first=first, last=last, total=total)


def _after(pieces: Iterable[bytes], counts: tuple[int, ...]) -> tuple[dict[int, int], int, int]:
    """Return the offset after each of these counts of line ends, the lines and the bytes."""
    offsets = {0: 0}
    seen, size, end = 0, 0, b"\n"
    for piece in pieces:
        more = piece.count(b"\n")
        for count in counts:
            if seen < count <= seen + more:
                offsets[count] = size + nth_line_end(piece, count - seen) + 1
        seen, size, end = seen + more, size + len(piece), piece[-1:] or end
    return offsets, seen + (end != b"\n"), size


def nth_line_end(data: bytes, number: int, start: int = 0) -> int:
    """Return the offset of line end `number` from `start` on; there must be that many."""
    low, high = start, len(data)
    # Bisection: a search for each of a million line ends takes too long.
    while high - low > 1:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if number <= before:
            high = middle
        else:
            low, number = middle, number - before
    return low


def text_answer(data: bytes, start: int, wanted: int, size: int) -> tuple[int, int, str | None]:
    """Return a part's start and end, aligned to characters, and its text; None if not UTF-8.

    `data` has the `wanted` bytes from `start` on, and up to `SPARE` more.
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


def _inside(data: bytes, index: int) -> bool:
    return index < len(data) and data[index] & 0xC0 == 0x80


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def translate_errors(doing: str, root: Path | str) -> Iterator[None]:
    """Raise each OSError as an ArtifactStoreError: "... cannot be <doing>"."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            message = f"No artifact can be {doing}: the disk is full."
            remedy = "Free space on it, or remove artifacts with mcp-code-bridge artifacts rm."
        else:
            reason = error.strerror or str(error) or type(error).__name__
            message = f"Artifacts cannot be {doing}: {reason}."
            remedy = getattr(error, "remedy", "")
            remedy = remedy or "Only this user may have write access to the directory."
        raise ArtifactStoreError(message, remedy=remedy, host_detail=f"[{root}]") from error


_PIECE = 1024 * 1024


@dataclass(frozen=True)
class Content:
    """The open content of an artifact, readable even after its removal."""

    artifact: Artifact
    blob: OpenBlob
    root: Path | str

    def read(self, start: int, size: int) -> bytes:
        pieces, left = [], max(min(size, self.artifact.size - start), 0)
        with translate_errors("read", self.root):
            while left > 0 and (piece := self.blob.read(min(left, _PIECE), start)):
                pieces.append(piece)
                start, left = start + len(piece), left - len(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for piece in self.unchecked_pieces():
            digest.update(piece)
            yield piece
        if digest.hexdigest() != self.artifact.digest:
            raise self.damage_error()

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def unchecked_pieces(self) -> Iterator[bytes]:
        start = 0
        while piece := self.read(start, _PIECE):
            start += len(piece)
            yield piece

    def damage_error(self) -> ArtifactStoreError:
        message = f"The artifact {self.artifact.uri} is damaged: its content has changed."
        return ArtifactStoreError(message, remedy="Remove it and run the program again.")


@dataclass(frozen=True, kw_only=True)
class PartialContent:
    """The part of an artifact in one response."""

    data: bytes
    text: str | None  # None if it is no text.
    # The range of bytes, of all.
    start: int
    end: int
    size: int
    # The lines, of all, if lines were requested; the last one may be cut.
    first: int = 0
    last: int = 0
    lines: int = 0
    more: str = ""  # The query for the next part; empty at the end.

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end == self.size

    def describe(self, uri: str) -> str:
        if self.lines:
            what = f"lines {self.first:,}-{self.last:,} of {self.lines:,}"
            if self.last < self.first:
                what = f"no lines: there are {self.lines:,}"
        else:
            what = f"bytes {self.start:,}-{self.end:,} of {self.size:,}"
        text = f"These are {what}."
        return f"{text} Read on with {uri}?{self.more}" if self.more else text


def read_part(content: Content, part: Part) -> PartialContent:
    """Read a part, at most `MAX_ANSWER` bytes."""
    text = is_text(content.artifact.mime_type)
    if part.first and not text:
        message = f"{content.artifact.name!r} is not text, so it has no lines."
        raise InvalidRequestError(message, remedy="Use ?offset=BYTES&length=BYTES.")
    if part.first:
        return _read_lines(content, part)
    size = content.artifact.size
    start = min(part.offset, size)
    wanted = min(size - start, MAX_ANSWER if part.length is None else part.length, MAX_ANSWER)
    # Only the whole content can be checked against its digest.
    data = content.whole() if wanted == size else content.read(start, wanted + SPARE)
    begin, end, answer = start, start + len(data[:wanted]), None
    if text:
        begin, end, answer = text_answer(data, start, wanted, size)
    more = f"offset={end}" + ("" if part.length is None else f"&length={part.length}")
    return PartialContent(
        data=data[:wanted],
        text=answer,
        start=begin,
        end=end,
        size=size,
        more=more if end < size else "",
    )


def _read_lines(content: Content, part: Part) -> PartialContent:
    size = content.artifact.size
    span = line_span(content.unchecked_pieces, part.first, part.last)
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
        # A line that is longer than a response continues by bytes.
        _, beyond, text = text_answer(data + content.read(end, SPARE), 0, len(data), size)
        end = span.start + beyond
        more = f"offset={end}"
    return PartialContent(
        text=text,
        data=data,
        start=span.start,
        end=end,
        size=size,
        first=span.first,
        last=last,
        lines=span.total,
        more=more,
    )
