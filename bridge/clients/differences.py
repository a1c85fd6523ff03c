"""Shows a change of a file as a unified diff without the values that others keep there: pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from os.path import commonprefix

from pygments.lexers import JsonLexer, TOMLLexer, YamlLexer
from pygments.token import Keyword, Name, Operator, Punctuation, Text

from bridge.gate.redaction_shapes import looks_random
from bridge.text import visible

CONTEXT_LINES = 2

MAX_LINE = 200  # Letters shown of a line: a file without line breaks is one.

HIDDEN = "•••"

_LEXERS = {".toml": TOMLLexer, ".yaml": YamlLexer, ".yml": YamlLexer}  # JSON with comments else

_KEYS, _MARKS = (Name, Name.Tag), (Punctuation, Operator, Keyword, Text)
_HARMLESS = re.compile(r"true|false|null|\d{1,3}")


def unified(path: str, before: bytes | None, after: bytes | None, ours: Collection[str]) -> str:
    """Return the diff of a file; only the added lines among `ours` are shown with their values."""
    old, new = _lines(before), _lines(after)
    # Compared is only what differs: a file may have a hundred thousand lines.
    start = len(commonprefix([old, new]))
    same = len(commonprefix([old[start:][::-1], new[start:][::-1]]))
    first, last = max(0, start - CONTEXT_LINES), max(0, same - CONTEXT_LINES)
    shown_old, shown_new = (_masked_from(path, text, first) for text in (old, new))
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    shown = {_bare(line) for line in ours}
    body: list[str] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        body += [" …"] if body else []
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                body += [f" {line}" for line in shown_new[new_start:new_end]]
                continue
            body += [f"-{line}" for line in shown_old[old_start:old_end]]
            added = zip(new[new_start:new_end], shown_new[new_start:new_end], strict=True)
            body += [f"+{line if _bare(line) in shown else masked}" for line, masked in added]
    names = [path if raw is not None else "(no file)" for raw in (before, after)]
    return visible("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]) + "\n")


def _lines(raw: bytes | None) -> list[str]:
    text = (raw or b"").decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def _bare(line: str) -> str:
    return line.strip().removesuffix(",")


def _masked_from(path: str, lines: list[str], first: int) -> list[str]:
    """Return the lines from `first` on, masked. In JSON only comments extend over several lines."""
    is_json = not path.endswith(tuple(_LEXERS))
    if is_json and not any("/*" in line for line in lines[:first]):
        lines, first = lines[first:], 0
    masked = "".join(_masked_tokens(path, "\n".join(lines))).split("\n")[first:]
    shown = (re.sub(rf"\w*(?:{HIDDEN}\w*)+", HIDDEN, line) for line in masked)
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in shown]


def _masked_tokens(path: str, text: str) -> Iterator[str]:
    """Yield the parts of a document: its keys and marks, and `HIDDEN` for the rest of each line."""
    lexer = next((kind for end, kind in _LEXERS.items() if path.endswith(end)), JsonLexer)
    for kind, value in lexer(stripnl=False, ensurenl=False).get_tokens(text):
        is_mark = any(kind in group for group in _MARKS) and (kind not in Text or value.isspace())
        is_key = kind in _KEYS and not looks_random(value.strip("\"'"), least=16)
        if is_key or is_mark or _HARMLESS.fullmatch(value):
            yield value
        else:
            yield "\n".join(HIDDEN if line.strip() else line for line in value.split("\n"))
