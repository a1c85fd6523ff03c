"""Globs: `*` matches any characters and `?` matches one. Pure.

There are no character classes, because titles and paths contain brackets. A backslash escapes `*`,
`?` or a backslash. Case and Unicode forms must match exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

MAX_GLOB_CHARS = 512  # Servers choose the names of tools, which rules contain.

_ESCAPED = re.compile(r"\\([*?\\])")
_TOKEN = re.compile(rf"{_ESCAPED.pattern}|([*?])|([^*?\\]+)|\\")

Matcher = Callable[[str], bool]


def parse(glob: str) -> list[tuple[str, int]]:
    """Return a regular expression and its width for each part between a glob's stars.

    Raises:
        ValueError: The glob is invalid. The message continues a sentence that begins with the
            glob.
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
                "has a backslash before a character other than *, ? or a backslash; "
                "write a literal backslash twice"
            )
        before, width = parts[-1]
        parts[-1] = (before + ("." if wild else re.escape(text)), width + len(text))
    return parts


def literal(text: str) -> str:
    """Return a glob that matches only this text."""
    return re.sub(r"[*?\\]", r"\\\g<0>", text)


def covers(first: str, second: str) -> bool:
    """Return whether the first glob matches everything that the second matches.

    False may be wrong if a glob has `?` or a backslash.
    """
    if first == second:
        return True
    if "?" in first or "\\" in first or "\\" in second:
        return False
    # Only a `*` of the first can match a wildcard of the second, and it matches any text there.
    return matcher(first)(second)


@lru_cache(maxsize=4096)
def matcher(glob: str) -> Matcher:
    """Return a function that tests whether a glob matches a whole text. Raises `ValueError`.

    Its time is at most proportional to the product of both lengths.
    """
    parts = parse(glob)
    (head, _), *others = parts
    if others:
        # Atomic groups prevent exponential backtracking.
        *middles, (tail, width) = others
        head += "".join(f"(?>.*?{middle})" for middle, _ in middles)
        head += f".{{{width},}}+(?<={tail})"
    whole = re.compile(head, re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def any_matcher(globs: Sequence[str]) -> Matcher:
    found = [matcher(glob) for glob in globs]
    return lambda text: any(matches(text) for matches in found)
