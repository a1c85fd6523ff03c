"""Cleans and shortens texts that servers wrote: valid Unicode of a known length, on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from bridge.text import valid_text

_SCAN_FACTOR = 8
"""Characters of input that are read for each character of a line."""

_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Includes tags and variation selectors, which models read and people do not see."""


def clip(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: max(limit - 1, 0)].rstrip() + "…"


def one_line(text: str, limit: int) -> str:
    flat = re.sub(r"\s+", " ", text[: limit * _SCAN_FACTOR])
    flat = _UNPRINTABLE.sub("", flat).strip()
    return clip(valid_text(flat), limit)


def paragraphs(text: str) -> list[str]:
    """Return the lines of `text`, without characters that some viewers take for line breaks."""
    return [_UNPRINTABLE.sub("", line.replace("\t", " ")) for line in text.splitlines()]


def first_sentence(text: str, limit: int) -> str:
    """Return the first sentence of `text` as one line of at most `limit` characters.

    A paragraph's end also ends a sentence. A full stop must precede a new sentence, so "e.g. this"
    and "v1.2" stay whole.
    """
    paragraph = text.strip()[: limit * _SCAN_FACTOR].split("\n\n", 1)[0]
    flat = one_line(paragraph, limit * _SCAN_FACTOR)
    end = re.search(r"[.!?](?=\s+[^\sa-z])", flat)
    return clip(flat[: end.end()] if end else flat, limit)


def join_names(names: Sequence[str], limit: int, others: str = "") -> str:
    """Return as many names as fit `limit` characters, and the number of the others."""
    text = ", ".join(names)
    if len(text) <= limit:
        return text
    ends = accumulate(len(name) + 2 for name in names)
    room = limit - len(f" and 1,000,000 more{others}")
    fit = sum(end <= room for end in ends)
    rest = f"{len(names) - fit:,} more{others}"
    return f"{', '.join(names[:fit])} and {rest}" if fit else rest
