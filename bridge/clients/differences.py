"""Shows a change of a file as a unified diff without the values that others keep there: pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from os.path import commonprefix

from bridge.text import visible

CONTEXT_LINES = 2

MAX_LINE = 200  # Letters shown of a line: a file without line breaks is one.

HIDDEN = "•••"

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*"|'[^']*')|(?P<mark>[{}\[\],:=])"""
    r"""|(?P<comment>//.*|\#.*|/\*.*)|(?P<word>[^\s{}\[\],:="']+|.)"""
)
_KEY = re.compile(r"""\s*(:(?=[\s"']|$)|=(?=[\s"']))""")
_QUOTED_KEY = re.compile(r"\s*[:=]")
_HARMLESS = re.compile(r"true|false|null|\d{1,3}|-|[|>][+-]?")


def unified(path: str, before: bytes | None, after: bytes | None, ours: Collection[str]) -> str:
    """Return the diff of a file; only the added lines among `ours` are shown with their values."""
    old, new = _lines(before), _lines(after)
    # Compared is only what differs: a file may have a hundred thousand lines.
    start = len(commonprefix([old, new]))
    same = len(commonprefix([old[start:][::-1], new[start:][::-1]]))
    first, last = max(0, start - CONTEXT_LINES), max(0, same - CONTEXT_LINES)
    hunk = difflib.unified_diff(
        old[first : len(old) - last], new[first : len(new) - last], n=CONTEXT_LINES, lineterm=""
    )
    head = [f"--- {path if before is not None else '(no file)'}", f"+++ {path}"]
    head[1] = f"+++ {path if after is not None else '(no file)'}"
    shown = {_bare(line) for line in ours}
    body = [_shown(line, shown) for line in list(hunk)[3:]]
    return visible("\n".join([*head, *body]) + "\n")


def _lines(raw: bytes | None) -> list[str]:
    return (raw or b"").decode("utf-8-sig", "replace").splitlines()


def _bare(line: str) -> str:
    return line.strip().removesuffix(",")


def _shown(line: str, ours: Collection[str]) -> str:
    if line.startswith("@@"):
        return " …"
    mark, text = line[:1], line[1:]
    if mark == "+" and _bare(text) in ours:
        return line
    return mark + masked(text)


def masked(line: str) -> str:
    """Return a line of JSON, TOML or YAML with its keys and without its values."""
    if re.fullmatch(r"\[\[?[\w.-]+\]\]?", line):
        return line
    shown, key_next, depth = "", True, 0
    for token in _TOKEN.finditer(line):
        text, kind = token.group(), token.lastgroup
        if kind in ("string", "word"):
            ends = (_QUOTED_KEY if kind == "string" else _KEY).match(line, token.end())
            is_key = key_next and ends is not None
            if not (is_key or _HARMLESS.fullmatch(text)) and not shown.endswith(HIDDEN):
                shown += HIDDEN
            elif is_key or _HARMLESS.fullmatch(text):
                shown += text
            key_next = key_next and text == "-"
            continue
        shown += HIDDEN if kind == "comment" else text
        # Outside of braces, a comma may be part of a value.
        depth += (text == "{") - (text == "}")
        key_next = text == "{" or (text == "," and depth > 0) or (key_next and kind == "space")
    return shown if len(shown) <= MAX_LINE else f"{shown[:MAX_LINE]}…"
