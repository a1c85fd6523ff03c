"""What a program displays and leaves in `out/`: pictures, texts and files, within a budget.

No frame is believed. The host computes formats, sizes, types and digests, and checks names and
numbers. Pages become plain text in time proportional to their length; nothing in them is rendered.
An error loses only its file or picture, and the result reports it.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import anyio.to_thread

from bridge.artifacts.store import ArtifactWriter, RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.guest.protocol.wire import File, Shown
from bridge.model import Artifact, Limits, Loss
from bridge.model import ShownContent as ShownItem
from bridge.rpc.channel import Redact, RedactStream
from bridge.runs.collect.picture_formats import examine, mime_of, repair_png
from bridge.runs.input_files import name_problem, quote
from bridge.text import valid_text, visible


@dataclass(kw_only=True)
class Collected:
    """The outputs of a run, as its result has them."""

    stdout: str = ""
    stderr: str = ""
    # For each cut stream, the number of bytes that `stdout` or `stderr` leaves out.
    dropped: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[ShownItem, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()  # The outputs that could not be stored.


MAX_PAGE_TEXT = 4_000  # Characters of the text of a guest's page or drawing.

MAX_STEPS = 50_000
"""Tags and texts that are read of a guest's page; they take a tenth of a second."""

# Possessive: a name of a million letters without a ">" would be tried in a million ways, and no
# other thread runs meanwhile.
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:]*+)[^<>]*+>")
_PLAIN = re.compile(r"[^<]+")

_UNREAD = frozenset(
    "script style head template iframe object noscript svg math select canvas".split()  # noqa: SIM905 - as above
)
"""Elements without text for a reader."""

_LINES = frozenset(
    """
    p div br tr table thead tbody tfoot ul ol dl dt dd section article header footer main
    blockquote pre figure figcaption caption hr form h1 h2 h3 h4 h5 h6 li
    """.split()  # noqa: SIM905 - as words they can be read
)

_DRAWN = frozenset(
    """
    svg g path rect circle ellipse line polyline polygon text tspan title desc defs stop
    lineargradient radialgradient clippath marker
    """.split()  # noqa: SIM905 - as words they can be read
)
_ACTIVE = re.compile(r"\son[a-z]+\s*=|href|javascript:|data:|url\s*\(\s*[^#\s]|@import|&#", re.I)


def html_text(page: str, limit: int = MAX_PAGE_TEXT) -> tuple[str, bool]:
    """Return a page's text, and whether it is complete.

    A row of a table becomes a line with its cells between bars.
    """
    parts: list[str] = []
    size, at, lower = 0, 0, page.lower()
    for _ in range(MAX_STEPS):
        if at >= len(page) or size > 4 * limit:
            break
        plain = _PLAIN.match(page, at)
        if plain is not None:
            # Blanks at either end separate words from those beyond the tag.
            parts.append(" ".join(f"<{html.unescape(plain[0])}>".split())[1:-1])
            size += len(parts[-1])
            at = plain.end()
            continue
        at, piece = _after_tag(page, lower, at)
        parts.append(piece)
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    whole = "\n".join(line.removeprefix("| ") for line in lines if line not in ("", "|", "-"))
    return whole[:limit], at >= len(page) and len(whole) <= limit


def _after_tag(page: str, lower: str, at: int) -> tuple[int, str]:
    """Return the end of the tag or comment at `at`, and the text that replaces it."""
    if page.startswith("<!--", at):
        end = page.find("-->", at)
        return (len(page) if end < 0 else end + 3), ""
    if page.startswith(("<!", "<?"), at):
        end = page.find(">", at)
        return (len(page) if end < 0 else end + 1), ""
    tag = _TAG.match(page, at)
    if tag is None:
        return at + 1, "<"
    name = tag[2].lower()
    if name in _UNREAD and not tag[1]:
        end = lower.find(f"</{name}", tag.end())
        return (len(page) if end < 0 else end), ""
    if name == "li" and not tag[1]:
        return tag.end(), "\n- "
    if name in _LINES:
        return tag.end(), "\n"
    return tag.end(), " | " if name in {"td", "th"} and not tag[1] else ""


def svg_source(text: str) -> str:
    """Return an SVG that is short and only draws, without its declaration; empty for others."""
    source = re.sub(r"\A\s*<\?xml[^<>]*\?>\s*", "", text[: MAX_PAGE_TEXT + 200], count=1).strip()
    if max(len(source), len(text) - 200) > MAX_PAGE_TEXT or not source.startswith("<svg"):
        return ""
    if "<!" in source or "<?" in source or _ACTIVE.search(source):
        return ""
    names = {found[2].lower() for found in _TAG.finditer(source)}
    return source if names <= _DRAWN and source.count("<") == len(_TAG.findall(source)) else ""


def svg_text(text: str) -> str:
    """Return the beginning of the words in an SVG, one element's on each line."""
    found: list[str] = []
    size, at, lower = 0, 0, text.lower()
    for _ in range(MAX_STEPS):
        start = text.find("<", at)
        if start < 0 or size > MAX_PAGE_TEXT:
            break
        tag = _TAG.match(text, start)
        at = start + 1 if tag is None else tag.end()
        if tag is None or tag[1]:
            continue
        if tag[2].lower() in ("text", "tspan", "title", "desc"):
            words = _PLAIN.match(text, at)
            line = "" if words is None else " ".join(html.unescape(words[0]).split())
            if line:
                found.append(line)
                size += len(line) + 1
        elif tag[2].lower() in ("script", "style", "metadata"):
            end = lower.find(f"</{tag[2].lower()}", at)
            at = len(text) if end < 0 else end
    return "\n".join(found)[:MAX_PAGE_TEXT]


# A guest may display any number of items of any size.
MAX_ITEMS = 20  # Displayed, or missing from the files. Further items are only counted.
MAX_PICTURES = 10  # Clients and models take few pictures. Further ones are only stored.
MAX_TEXT = 8_000  # Characters of one text.
MAX_TEXTS = 32_000  # Characters of all texts together: about the default limit of a run's output.
MAX_PART = 1024 * 1024  # Characters of a text, or bytes of a file's part, that are read at once.

_NOT_SHOWN = "not shown"  # The beginning of a guest's note on a picture that is only to be stored.

_NO_ROOM = f"{_NOT_SHOWN}: there is no room for it in this result"

_DRAWN_BY_BROWSERS = "a page for a browser, with nothing to read; for a picture use matplotlib"

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_ENDINGS = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp",
    "image/svg+xml": "svg", "text/html": "html", "text/markdown": "md",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """The outcome of one frame."""

    item: ShownItem | None = None
    less: bool = False  # Whether the item has less than the original.
    problem: str = ""  # Why there is no item, or no stored original.


class ShownItems:
    """The pictures and texts that one run displays."""

    def __init__(self, limits: Limits, artifacts: RunArtifacts | None, clear: Redact) -> None:
        self._artifacts = artifacts
        self._clear = clear
        self._room = limits.shown_bytes
        self._text_room = MAX_TEXTS
        self._count = 0
        self._pictures = 0
        self._taken: list[_Taken] = []

    async def add(self, frame: Shown) -> None:
        self._count += 1
        if self._count > MAX_ITEMS:
            return
        # Reading it and writing it to the disk takes up to a second.
        read = self._picture if frame.data or frame.small else self._text
        in_thread = self._artifacts.store.run if self._artifacts else anyio.to_thread.run_sync
        taken = await in_thread(read, frame)
        item = taken.item
        if item is not None and item.data:
            self._pictures += 1
            self._room -= base64_size(item.data)
        elif item is not None:
            self._text_room -= len(item.text)
        self._taken.append(taken)

    async def finish(self, left: Collected) -> None:
        for number, taken in enumerate(self._taken, start=1):
            if taken.item is not None:
                left.shown += (taken.item,)
                if taken.less and taken.item.artifact is not None:
                    left.artifacts += (taken.item.artifact,)
            if taken.problem:
                left.missing += (Loss(name=f"shown {number}", why=taken.problem),)
        more = self._count - MAX_ITEMS
        if more > 0:
            why = f"{more:,} more, beyond the {MAX_ITEMS} things that a result shows"
            left.missing += (Loss(name="shown", why=why),)
        self._count = MAX_ITEMS

    def discard(self) -> None:
        """Store nothing more; stored originals remain until they expire."""
        self._count = MAX_ITEMS

    def _picture(self, frame: Shown) -> _Taken:
        original, small = frame.data, _decode(frame.small)
        if small is None:
            return _Taken(problem="what was sent as a picture is no base64")
        if original and (frame.mime not in _PICTURES or mime_of(original) != frame.mime):
            return _Taken(problem=f"it is no picture of the type {_plain(frame.mime)!r}")
        note = _plain(self._clear.text(frame.note[:600]))[:300]
        shown = repair_png(small or original)
        keep_only = original and frame.note.startswith(_NOT_SHOWN)
        fits = self._pictures < MAX_PICTURES and base64_size(shown) <= self._room
        found = examine(shown) if fits or not keep_only else None
        if found is None and not keep_only:
            return _Taken(problem="it is a broken picture, or one of too many pixels")
        artifact, problem = self._kept(original, frame.mime)
        if found is None or not fits:
            if not keep_only:
                note = "; ".join(part for part in (_NO_ROOM, note) if part)
            if artifact is None:
                return _Taken(problem=problem or note)
            item = ShownItem(mime_type=frame.mime, note=note, artifact=artifact)
            return _Taken(item=item, less=True)
        less = shown is not original
        if note.startswith(_NOT_SHOWN):
            # The guest had less room, or fewer libraries, than the host.
            note = ""
        item = ShownItem(
            mime_type=found.mime_type,
            data=shown,
            width=found.width,
            height=found.height,
            note=note,
            artifact=artifact,
        )
        return _Taken(item=item, less=less, problem=problem if less else "")

    def _text(self, frame: Shown) -> _Taken:
        if not frame.text:
            return _Taken(problem="it could not be shown")
        whole = valid_text(self._clear.text(frame.text[:MAX_PART]))
        text, note = whole, ""
        mime_type = frame.mime if frame.mime in ("text/plain", "text/markdown") else "text/plain"
        complete = len(frame.text) <= MAX_PART
        if frame.mime == "text/html":
            text, all_of_it = html_text(whole)
            note = "the text of a page" if all_of_it else "the beginning of the text of a page"
            complete = False
            if not text:
                mime_type, note = frame.mime, _DRAWN_BY_BROWSERS
        elif frame.mime == "image/svg+xml":
            text, complete = svg_source(whole), True
            mime_type = frame.mime
            if not text:
                text = svg_text(whole)
                mime_type, note, complete = "text/plain", "the words in a drawing (SVG)", False
        limit = min(MAX_TEXT, self._text_room)
        if len(text) > limit:
            note = f"{limit:,} of {len(text):,} characters" + (f" of {note}" if note else "")
            text, complete = text[:limit], False
        if complete:
            return _Taken(item=ShownItem(mime_type=mime_type, text=text))
        artifact, problem = self._kept(whole.encode(), frame.mime)
        item = ShownItem(mime_type=mime_type, text=text, note=note, artifact=artifact)
        return _Taken(item=item if text or artifact else None, less=True, problem=problem)

    def _kept(self, data: bytes, mime_type: str) -> tuple[Artifact | None, str]:
        """Store an original; return its artifact, or None and the reason."""
        if not data:
            return None, ""
        if self._artifacts is None:
            return None, "the original is not kept: there is no place for it"
        name = f"shown-{self._count}.{_ENDINGS.get(mime_type, 'txt')}"
        known = mime_type if mime_type in _ENDINGS else "text/plain"
        try:
            return self._artifacts.add(name, data, known, kind="shown"), ""
        except ArtifactStoreError as error:
            return None, f"the original is not kept: {error.message}"


def base64_size(data: bytes) -> int:
    return (len(data) + 2) // 3 * 4


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _plain(text: str) -> str:
    return visible(" ".join(valid_text(text[:600]).split()))


OUT, TOP = "out", "../"  # The directory, and the prefix of files next to it.


@dataclass(kw_only=True)
class _Open:
    """An incomplete file; only a text has a redactor."""

    name: str
    writer: ArtifactWriter
    clear: RedactStream | None

    def write(self, data: bytes) -> None:
        self.writer.write(data if self.clear is None else self.clear.feed(data))

    def flush(self) -> None:
        if self.clear is not None:
            self.writer.write(self.clear.finish())


class FilesOut:
    """The files of one run."""

    def __init__(self, limits: Limits, artifacts: RunArtifacts | None, clear: Redact) -> None:
        self._artifacts = artifacts
        self._clear = clear
        self._bytes = limits.out_bytes
        self._files = limits.out_files
        self._names: set[str] = set()
        self._open: _Open | None = None
        self._skipped = ""
        self._kept: list[Artifact] = []
        self._missing: list[Loss] = []
        self._more = 0
        self._over = artifacts is None

    async def add(self, frame: File) -> None:
        if self._over:
            # The reason is reported already.
            return
        file = self._open
        if file is not None and file.name != frame.name:
            file = None
        if frame.problem:
            if file is None:
                self._abandon()
            self._skip(frame.name, frame.problem)
        elif file is not None:
            await self._continue(file, frame)
        elif not frame.name or self._skipped != frame.name:
            self._abandon()
            await self._begin(frame)

    async def finish(self, left: Collected) -> None:
        self._abandon()
        self._over = True
        left.artifacts += tuple(self._kept)
        left.missing += tuple(self._missing)
        if self._more:
            left.missing += (Loss(name=OUT, why=f"{self._more:,} more could not be kept"),)

    def give_up(self) -> None:
        """Stop waiting: the files took too long."""
        if not self._over:
            self._abandon()
            self._miss("", "reading took too long; the rest was left out")
            self._over = True

    def discard(self) -> None:
        self._drop_open()
        self._over = True

    async def _begin(self, frame: File) -> None:
        name = frame.name.removeprefix(TOP)
        if problem := name_problem(name):
            self._skip(frame.name, f"its name {problem}")
        elif name in self._names:
            self._skip(frame.name, "it came twice; the first is kept")
        elif self._files <= 0:
            self._miss("", "there are more files than a run may leave")
            self._over = True
        else:
            self._names.add(name)
            self._files -= 1
            assert self._artifacts is not None
            try:
                writer = self._artifacts.writer(self._clear.text(name))
            except ArtifactStoreError as error:
                self._skip(frame.name, f"{error.message} {error.remedy}".rstrip())
                return
            clear = self._clear.stream() if _is_text(frame.data) else None
            self._skipped = ""
            self._open = _Open(name=frame.name, writer=writer, clear=clear)
            await self._continue(self._open, frame)

    async def _continue(self, file: _Open, frame: File) -> None:
        if len(frame.data) > MAX_PART:
            self._skip(frame.name, "a part of it is too large")
            return
        if frame.more and not frame.data:
            self._skip(frame.name, "a part of it is empty")
            return
        self._bytes -= len(frame.data)
        if self._bytes < 0:
            self._skip(frame.name, "with it there are more bytes than a run may leave")
            return
        try:
            file.write(frame.data)
            if not frame.more:
                file.flush()
                # It waits for the disk and for other bridges.
                kept = await file.writer.keep()
                at_top = frame.name.startswith(TOP)
                self._kept.append(replace(kept, path=("" if at_top else f"{OUT}/") + kept.name))
                self._drop_open()
        except ArtifactStoreError as error:
            self._skip(frame.name, f"{error.message} {error.remedy}".rstrip())

    def _skip(self, name: str, why: str) -> None:
        """Report a file as missing, and ignore its further parts."""
        self._drop_open()
        self._skipped = name
        self._miss(name, why)

    def _abandon(self) -> None:
        if self._open is not None:
            self._miss(self._open.name, "it did not come whole")
            self._drop_open()

    def _drop_open(self) -> None:
        if self._open is not None:
            file, self._open = self._open, None
            file.writer.discard()

    def _miss(self, name: str, why: str) -> None:
        if len(self._missing) >= MAX_ITEMS:
            self._more += 1
            return
        name = quote(name.removeprefix(TOP))[1:-1] if name else OUT
        why = quote(why[:300])[1:-1]
        self._missing.append(Loss(name=self._clear.text(name), why=self._clear.text(why)))


def _is_text(beginning: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning
