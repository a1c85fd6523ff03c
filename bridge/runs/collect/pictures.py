"""What a program showed: pictures and texts, within a budget.

Owns what is believed of `Shown` frames, which is nothing: whether something is a picture, of which
kind and how large, is read from its bytes; pages and drawings become text; and how much of it all
there may be is counted here, whatever the guest has counted. What is too much, or is not handed on
as it was, is kept as an artifact. Of a page no document is made and nothing in it is obeyed: the
text goes to a model, and clients may show it to people. Reading one takes time in proportion to its
length, however it is made.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from dataclasses import dataclass

import anyio.to_thread

from bridge.artifacts import RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.guest.protocol.wire import Shown
from bridge.model import Artifact, Limits, Loss
from bridge.model import ShownContent as ShownItem
from bridge.rpc.channel import Redact
from bridge.runs.collect.picture_formats import Picture, examine, mime_of, repair_png
from bridge.runs.collect.streams import Collected
from bridge.text import valid_text, visible

MAX_PAGE_TEXT = 4_000  # Characters of what is made of a guest's page or drawing.

MAX_STEPS = 50_000
"""Tags and texts of a guest's page that are looked at: a tenth of a second."""

# Possessive: a name of a million letters that no ">" follows would be tried in a million ways, by a
# machine that lets no other thread run meanwhile.
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
    """Return a page's text, and whether that is all of it.

    A row of a table becomes a line with its cells between bars.
    """
    parts: list[str] = []
    size, at, lower = 0, 0, page.lower()
    for _ in range(MAX_STEPS):
        if at >= len(page) or size > 4 * limit:
            break
        plain = _PLAIN.match(page, at)
        if plain is not None:
            # Blanks at either end part words from those beyond the tag.
            parts.append(" ".join(f"<{html.unescape(plain[0])}>".split())[1:-1])
            size += len(parts[-1])
            at = plain.end()
            continue
        at, piece = _after_tag(page, lower, at)
        parts.append(piece)
    whole = _tidy("".join(parts))
    return whole[:limit], at >= len(page) and len(whole) <= limit


def _after_tag(page: str, lower: str, at: int) -> tuple[int, str]:
    """Return where what begins with "<" ends, and what stands for it in the text."""
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


def _tidy(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line.removeprefix("| ") for line in lines if line not in ("", "|", "-"))


def svg_source(text: str) -> str:
    """Return an SVG that is short and only draws, without its declaration; empty for others."""
    source = re.sub(r"\A\s*<\?xml[^<>]*\?>\s*", "", text[: MAX_PAGE_TEXT + 200], count=1).strip()
    if max(len(source), len(text) - 200) > MAX_PAGE_TEXT or not source.startswith("<svg"):
        return ""
    if "<!" in source or "<?" in source or _ACTIVE.search(source):
        return ""
    names = {found[2].lower() for found in _TAG.finditer(source)}
    return source if names <= _DRAWN and source.count("<") == len(_TAG.findall(source)) else ""


def svg_text(text: str, limit: int = MAX_PAGE_TEXT) -> tuple[str, bool]:
    """Return the words in an SVG, each on a line of its own, and whether that is all of them."""
    found: list[str] = []
    size, at, lower = 0, 0, text.lower()
    for _ in range(MAX_STEPS):
        start = text.find("<", at) if size <= limit else -1
        if start < 0:
            at = len(text)
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
    whole = "\n".join(found)
    return whole[:limit], at >= len(text) and len(whole) <= limit and size <= limit


# What a guest may put into one result, whatever it sends.
MAX_ITEMS = 20  # What is shown after them is counted only.
MAX_PICTURES = 10  # As pictures: clients and models take few. Others are kept only.
MAX_TEXT = 8_000  # Characters of one text.
MAX_TEXTS = 32_000  # Characters of all texts together: about what a run's output may be by default.
MAX_SOURCE = 1024 * 1024  # Characters of a text that are looked at and kept.

_NOT_SHOWN = "not shown"  # How a guest's note begins on a picture that is only to be kept.

_NO_ROOM = f"{_NOT_SHOWN}: there is no room for it in this result"

_DRAWN_BY_BROWSERS = "a page for a browser, with nothing to read; for a picture use matplotlib"

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_ENDINGS = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp",
    "image/svg+xml": "svg", "text/html": "html", "text/markdown": "md",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What became of one frame.

    Attributes:
        less: Whether the reader gets less than the original.
        problem: Why there is nothing, or nothing kept.
    """

    item: ShownItem | None = None
    less: bool = False
    problem: str = ""


class ShownItems:
    """Takes those of one run."""

    def __init__(
        self, limits: Limits, *, artifacts: RunArtifacts | None = None, clear: Redact | None = None
    ) -> None:
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
        # To look through it, and to write it to the disk, takes up to a second.
        read = self._picture if frame.data or frame.small else self._text
        taken = await anyio.to_thread.run_sync(read, frame)
        item = taken.item
        if item is not None and item.data:
            self._pictures += 1
            self._room -= base64_size(item.data)
        elif item is not None:
            self._text_room -= len(item.text)
        self._taken.append(taken)

    async def finish(self) -> Collected:
        missing = [
            Loss(name=f"shown {number}", why=taken.problem)
            for number, taken in enumerate(self._taken, start=1)
            if taken.problem
        ]
        more = self._count - MAX_ITEMS
        if more > 0:
            why = f"{more:,} more, beyond the {MAX_ITEMS} things that a result shows"
            missing.append(Loss(name="shown", why=why))
        items = [(taken.item, taken.less) for taken in self._taken if taken.item is not None]
        kept = [item.artifact for item, less in items if less and item.artifact is not None]
        self._count = MAX_ITEMS
        return Collected(
            shown=tuple(item for item, _ in items), artifacts=tuple(kept), missing=tuple(missing)
        )

    def discard(self) -> None:
        """Keep nothing more; what was kept goes when it expires."""
        self._count = MAX_ITEMS

    def _picture(self, frame: Shown) -> _Taken:
        original, small = frame.data, _decode(frame.small)
        if small is None:
            return _Taken(problem="what was sent as a picture is no base64")
        if original and (frame.mime not in _PICTURES or mime_of(original) != frame.mime):
            return _Taken(problem=f"it is no picture of the type {_plain(frame.mime)!r}")
        note = _plain(self._clear_text(frame.note[:600]))[:300]
        shown, found = self._choose(original, small)
        if found is None and not (original and frame.note.startswith(_NOT_SHOWN)):
            if (broken := self._unfit(small or original)) is not None:
                return _Taken(problem=broken)
            note = "; ".join(part for part in (_NO_ROOM, note) if part)
        artifact, problem = self._kept(original, frame.mime)
        if found is None:
            item = ShownItem(mime_type=frame.mime, note=note, artifact=artifact)
            if artifact is None:
                return _Taken(problem=problem or note or _NO_ROOM)
            return _Taken(item=item, less=True)
        less = shown is not original
        if note.startswith(_NOT_SHOWN):
            # There was less room, or less that could be done, in there.
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

    def _choose(self, original: bytes, small: bytes) -> tuple[bytes, Picture | None]:
        """Return what is handed on, and what it is; None for that if there is nothing."""
        shown = repair_png(small or original)
        if not shown or self._pictures >= MAX_PICTURES or base64_size(shown) > self._room:
            return b"", None
        return shown, examine(shown)

    def _unfit(self, data: bytes) -> str | None:
        if data and examine(repair_png(data)) is not None:
            return None
        return "it is a broken picture, or one of too many pixels"

    def _text(self, frame: Shown) -> _Taken:
        if not frame.text:
            return _Taken(problem="it could not be shown")
        whole = valid_text(self._clear_text(frame.text[:MAX_SOURCE]))
        text, note = whole, ""
        mime_type = frame.mime if frame.mime in ("text/plain", "text/markdown") else "text/plain"
        complete = len(frame.text) <= MAX_SOURCE
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
                text, _ = svg_text(whole)
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
        """Keep an original; return where, and why it is not kept."""
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

    def _clear_text(self, text: str) -> str:
        return text if self._clear is None else self._clear.text(text)


def base64_size(data: bytes) -> int:
    """Return how long data is as base64."""
    return (len(data) + 2) // 3 * 4


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _plain(text: str) -> str:
    return visible(" ".join(valid_text(text[:600]).split()))
