"""Shows a change of a file as a unified diff. Secrets are masked by their keys. Does no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from os.path import commonprefix

from pygments.lexers import JsonLexer, TOMLLexer, YamlLexer
from pygments.token import Comment, Name

from bridge.gate.redaction_shapes import names_setting
from bridge.text import visible

CONTEXT_LINES = 2

MAX_LINE = 200  # Characters per line.

HIDDEN = "•••"

_LEXERS = {".toml": TOMLLexer, ".yaml": YamlLexer, ".yml": YamlLexer}  # Others: JSON, comments.

_MARKS = re.compile(r"[][{}(),:=|>\s\"'-]*")
_KEY = re.compile(r'\s*"[^"]*"\s*:')  # Matches a line of JSON that begins with a key.
_NAMED = re.compile(r"""(?P<name>[\w-]+)["']?\s*[=:](?!//)\s*["']?(?P<value>[^\s"',;&?]+)""")
"""Matches a setting inside a text: an option, a variable, or a query parameter of a URL."""

_HARMLESS = re.compile(r"true|false|null")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """Return the diff of a file. JSON on one long line is shown indented."""
    old, new = _lines(path, before), _lines(path, after)
    # A file may have a hundred thousand lines, so only the differing middle is compared.
    start = len(commonprefix([old, new]))
    same = len(commonprefix([old[start:][::-1], new[start:][::-1]]))
    first, last = max(0, start - CONTEXT_LINES), max(0, same - CONTEXT_LINES)
    shown_old, shown_new = (_masked_from(path, text, first) for text in (old, new))
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    body: list[str] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        body += [" …"] if body else []
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                body += [f" {line}" for line in shown_new[new_start:new_end]]
                continue
            body += [f"-{line}" for line in shown_old[old_start:old_end]]
            body += [f"+{line}" for line in shown_new[new_start:new_end]]
    names = [path if raw is not None else "(no file)" for raw in (before, after)]
    return visible("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]) + "\n")


def _lines(path: str, raw: bytes | None) -> list[str]:
    text = (raw or b"").decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    if any(len(line) > MAX_LINE for line in lines) and not path.endswith(tuple(_LEXERS)):
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False).split("\n")
    return lines


def _masked_from(path: str, lines: list[str], first: int) -> list[str]:
    """Return the lines from `first` to the end, masked."""
    is_json = not path.endswith(tuple(_LEXERS))
    if is_json and not any("/*" in line for line in lines[:first]):
        # Only a comment spans lines in JSON, so lexing starts at the nearest key above.
        above = (at for at in range(min(first, len(lines) - 1), 0, -1) if _KEY.match(lines[at]))
        begin = next(above, 0)
        lines, first = lines[begin:], first - begin
    masked = "".join(_masked_tokens(path, "\n".join(lines))).split("\n")[first:]
    short = (re.sub(rf"(?:{HIDDEN})+", HIDDEN, line) for line in masked)
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in short]


def _masked_tokens(path: str, text: str) -> Iterator[str]:
    lexer = next((kind for end, kind in _LEXERS.items() if path.endswith(end)), JsonLexer)
    key, option = "", ""
    for kind, value in lexer(stripnl=False, ensurenl=False).get_tokens(text):
        bare = value.strip("\"' \n")
        if kind in {Name, Name.Tag}:
            key, option = bare, ""
            yield value
        elif _MARKS.fullmatch(value) or _HARMLESS.fullmatch(value):
            yield value
        elif kind not in Comment and (names_setting(key) or names_setting(option)):
            option = ""
            yield "\n".join(HIDDEN if line.strip() else line for line in value.split("\n"))
        else:
            option = bare if bare.startswith("-") and "=" not in bare else ""
            for match in reversed(list(_NAMED.finditer(value))):
                if names_setting(match["name"]):
                    value = f"{value[: match.start('value')]}{HIDDEN}{value[match.end() :]}"
            yield _LOGIN.sub(HIDDEN, value)
