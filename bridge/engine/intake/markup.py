"""The text of HTML, and which SVG may be read as it is. Pure.

Owns what of a page is for reading. Makes no document of it and obeys nothing in it: the text goes
to a model, and clients may show it to people. Takes time in proportion to the length of what it is
given, however that is made.
"""

from __future__ import annotations

import html
import re

MAX_TEXT = 4_000
"""Characters of what is made of a page; the page itself is kept."""

MAX_STEPS = 50_000
"""Tags and texts of one page that are looked at: a tenth of a second. Others follow no text."""

MAX_SVG = 4_000
"""Characters of an SVG that is handed on as it is: an icon or a diagram, not a plot."""

# Possessive: a name of a million letters that no ">" follows would be tried in a million ways, by a
# machine that lets no other thread run meanwhile.
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:]*+)[^<>]*+>")
_PLAIN = re.compile(r"[^<]+")

_UNREAD = frozenset(
    "script style head template iframe object noscript svg math select canvas".split()  # noqa: SIM905 - as above
)
"""Elements of which nothing is for reading."""

_LINES = frozenset(
    """
    p div br tr table thead tbody tfoot ul ol dl dt dd section article header footer main
    blockquote pre figure figcaption caption hr form h1 h2 h3 h4 h5 h6 li
    """.split()  # noqa: SIM905 - as words they can be read
)
_CELLS = frozenset({"td", "th"})

_DRAWN = frozenset(
    """
    svg g path rect circle ellipse line polyline polygon text tspan title desc defs stop
    lineargradient radialgradient clippath marker
    """.split()  # noqa: SIM905 - as words they can be read
)
_ACTIVE = re.compile(r"\son[a-z]+\s*=|href|javascript:|data:|url\s*\(\s*[^#\s]|@import|&#", re.I)
_DECLARATION = re.compile(r"\A\s*<\?xml[^<>]*\?>\s*")


def html_text(page: str, limit: int = MAX_TEXT) -> tuple[str, bool]:
    """Return what is to be read of a page, and whether that is all of it.

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
    whole = _tidied("".join(parts))
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
    return tag.end(), " | " if name in _CELLS and not tag[1] else ""


def _tidied(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line.removeprefix("| ") for line in lines if line not in ("", "|", "-"))


def svg_source(text: str) -> str:
    """Return an SVG that is short and only draws, without its declaration; empty for others."""
    source = _DECLARATION.sub("", text[: MAX_SVG + 200], count=1).strip()
    if len(source) > MAX_SVG or len(text) > MAX_SVG + 200 or not source.startswith("<svg"):
        return ""
    if "<!" in source or "<?" in source or _ACTIVE.search(source):
        return ""
    names = {found[2].lower() for found in _TAG.finditer(source)}
    return source if names <= _DRAWN and source.count("<") == len(_TAG.findall(source)) else ""


def svg_text(text: str, limit: int = MAX_TEXT) -> tuple[str, bool]:
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
