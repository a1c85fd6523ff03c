"""JSON with comments and commas before closing brackets, made into JSON: pure.

Owns the rewriting only. What it takes out becomes blanks, so that a later complaint about line and
column is about the reader's own text. Linear in the text: each pattern takes as much as it can and
never gives back.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # a string, perhaps without its end
    r"|//[^\r\n]*+"
    r"|/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
    r"|[,\]}]"
    r'|[^\s"/,\]}]++|/',
    re.DOTALL,
)
_NOT_A_LINE_END = re.compile(r"[^\r\n]")


class OpenCommentError(ValueError):
    """A comment that never ends; the argument is where it starts."""


def strip_comments(text: str, *, trailing_commas: bool) -> str:
    """The same JSON without comments.

    Args:
        trailing_commas: Whether a comma before a closing bracket goes too.

    Raises:
        OpenCommentError: A comment has no end.
    """
    kept: list[str] = []
    done = 0
    comma = -1
    for match in _TOKEN.finditer(text):
        token, at = match[0], match.start()
        if token.startswith(("//", "/*")):
            if token[1] == "*" and (len(token) < 4 or not token.endswith("*/")):
                raise OpenCommentError(at)
            kept += (text[done:at], _NOT_A_LINE_END.sub(" ", token))
            done = match.end()
        elif token == ",":
            # Written out for now as a piece of its own, to be blanked when a bracket follows.
            kept += (text[done:at], ",")
            done = match.end()
            comma = len(kept) - 1
        else:
            if token in ("]", "}") and comma >= 0 and trailing_commas:
                kept[comma] = " "
            comma = -1
    kept.append(text[done:])
    return "".join(kept)
