"""Globs: texts in which `*` stands for any characters, none included, and `?` for one. Pure.

Owns their syntax, the matching, and how an exact text is written as one. There are no character
classes, so that brackets in titles and paths mean themselves. A backslash takes the meaning from
the `*`, `?` or backslash after it, and may stand before nothing else. Texts are compared character
by character: neither case nor the ways in which Unicode can write a letter are evened out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

MAX_GLOB_CHARS = 512
"""Longer than any name; of a path or an address a part will do."""

_SPECIAL = re.compile(r"[*?\\]")

_ESCAPED = ("*", "?", "\\")

Matcher = Callable[[str], bool]


class Wild(Enum):
    """The two wildcards; everything else in a parsed glob is a text."""

    MANY = "*"
    ONE = "?"


Part = str | Wild


def parse(glob: str) -> list[Part]:
    """Return a glob's parts.

    Raises:
        ValueError: It is none; the rest of a sentence that begins with what it is.
    """
    if not glob:
        raise ValueError("is empty, which matches nothing")
    if len(glob) > MAX_GLOB_CHARS:
        raise ValueError(f"has more than {MAX_GLOB_CHARS} characters")
    parts: list[Part] = []
    for part in _parts(glob):
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part is not Wild.MANY or not parts or parts[-1] is not Wild.MANY:
            parts.append(part)
    return parts


def _parts(glob: str) -> Iterator[Part]:
    characters = iter(glob)
    for character in characters:
        if character == "*":
            yield Wild.MANY
        elif character == "?":
            yield Wild.ONE
        elif character == "\\":
            escaped = next(characters, "")
            if escaped not in _ESCAPED:
                message = (
                    "has a backslash before something else than *, ? or a backslash; "
                    "one that means itself is written twice"
                )
                raise ValueError(message)
            yield escaped
        else:
            yield character


def literal(text: str) -> str:
    """Return the glob that matches this text alone."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def covers(first: str, second: str) -> bool:
    """Tell whether all that the second glob matches is matched by the first.

    True is certain; of globs with `?` or a backslash it may be False where it need not be.
    """
    if first == second:
        return True
    if "?" in first or "\\" in first or "\\" in second:
        return False
    # A wildcard of the second can only be taken for a character by a `*` of the first, and what
    # a `*` takes it takes whatever stands there.
    return matcher(first)(second)


@lru_cache(maxsize=4096)
def matcher(glob: str) -> Matcher:
    """Return what tells whether a text matches the whole of a glob.

    It takes time in proportion to the text times the glob at most.

    Raises:
        ValueError: It is no glob.
    """
    parts = parse(glob)
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str)).__eq__
    if parts == [Wild.MANY]:
        return _anything
    return _searching(parts)


def any_matcher(globs: Sequence[str]) -> Matcher:
    """Return what tells whether a text matches one of several globs."""
    if len(globs) == 1:
        return matcher(globs[0])
    found = [matcher(glob) for glob in globs]
    return lambda text: any(matches(text) for matches in found)


def _anything(text: str) -> bool:
    return True


def _searching(parts: Sequence[Part]) -> Matcher:
    """Match by an expression whose every `*` is decided on once, so that it never backtracks."""
    pieces = [""]
    for part in parts:
        if part is Wild.MANY:
            pieces.append("")
        else:
            pieces[-1] += re.escape(part) if isinstance(part, str) else "."
    if len(pieces) == 1:
        whole = re.compile(pieces[0], re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    head, *middles, tail = pieces
    searched = "".join(f"(?>.*?{middle})" for middle in middles)
    begin, end = re.compile(head + searched, re.DOTALL), re.compile(tail, re.DOTALL)
    last = len(parts) - 1 - list(reversed(parts)).index(Wild.MANY)
    width = sum(len(part) if isinstance(part, str) else 1 for part in parts[last + 1 :])

    def matches(text: str) -> bool:
        found, at = begin.match(text), len(text) - width
        return found is not None and found.end() <= at and end.fullmatch(text, at) is not None

    return matches
