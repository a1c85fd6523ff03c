"""Globs: patterns in which `*` matches any number of characters and `?` matches one. Pure.

There are no character classes, so that brackets in titles and paths mean themselves. A backslash
takes the meaning from the `*`, `?` or backslash after it. Texts are compared character by
character: case and Unicode forms count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

MAX_GLOB_CHARS = 512  # A server may give a tool any name, and a rule names it.

_ESCAPED = re.compile(r"\\([*?\\])")
_TOKEN = re.compile(rf"{_ESCAPED.pattern}|([*?])|([^*?\\]+)|\\")

Matcher = Callable[[str], bool]


def parse(glob: str) -> list[tuple[str, int]]:
    """Return an expression for each part between a glob's stars, and the width of what it matches.

    Raises:
        ValueError: The rest of a sentence that begins with the glob.
    """
    if not glob:
        raise ValueError("is empty, which matches nothing")
    if len(glob) > MAX_GLOB_CHARS:
        raise ValueError(f"has more than {MAX_GLOB_CHARS} characters")
    parts = [("", 0)]
    for token in _TOKEN.finditer(glob):
        escaped, wild, plain = token.groups()
        if wild == "*":
            parts.append(("", 0))
            continue
        text = escaped or plain or wild
        if not text:
            raise ValueError(
                "has a backslash before something else than *, ? or a backslash; "
                "one that means itself is written twice"
            )
        before, width = parts[-1]
        parts[-1] = (before + ("." if wild else re.escape(text)), width + len(text))
    return parts


def literal(text: str) -> str:
    """Return the glob that matches this text alone."""
    return re.sub(r"[*?\\]", r"\\\g<0>", text)


def covers(first: str, second: str) -> bool:
    """Return whether the first glob matches all that the second does.

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
    """Return a function that says whether a whole text matches a glob; raises `ValueError`.

    It takes time in proportion to the text times the glob at most.
    """
    parts = parse(glob)
    (head, _), *others = parts
    if others:
        # Every star is decided on once, so that nothing is gone back to.
        *middles, (tail, width) = others
        head += "".join(f"(?>.*?{middle})" for middle, _ in middles)
        head += f".{{{width},}}+(?<={tail})"
    whole = re.compile(head, re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def any_matcher(globs: Sequence[str]) -> Matcher:
    found = [matcher(glob) for glob in globs]
    return lambda text: any(matches(text) for matches in found)
