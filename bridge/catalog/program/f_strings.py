"""Rewrites f-strings that only Python 3.12 reads for older Pythons. Pure.

In the braces of an f-string, Python 3.12 accepts the enclosing quotes, and backslashes. An older
Python accepts neither. The outer quotes are replaced, and a text with a backslash uses `chr(...)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_START = re.compile(r"(\b[a-zA-Z]{1,2}|)(\"\"\"|'''|\"|')|#[^\n]*")
_QUOTES = ('"', "'", '"""', "'''")


def rewrite_f_strings(code: str) -> str:
    """Return a program whose f-strings older Pythons read; itself if no change is needed."""
    try:
        return _Rewriter(code).program()
    except (IndexError, RecursionError, SyntaxError, ValueError):
        # Not an f-string that Python 3.12 reads.
        return code


class _Rewriter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def program(self) -> str:
        return "".join(self._pieces(""))

    def _pieces(self, ends: str) -> Iterator[str]:
        """Yield the code up to one of the characters that end a field, outside all brackets."""
        depth = 0
        while self._at < len(self._text):
            char = self._text[self._at]
            if not depth and char in ends and not self._text.startswith("!=", self._at):
                return
            match = _START.match(self._text, self._at)
            if match:
                yield self._literal(match, inside=bool(ends))
                continue
            depth += (char in "([{") - (char in ")]}")
            self._at += 1
            yield char

    def _literal(self, match: re.Match[str], *, inside: bool) -> str:
        """Return a string or a comment; inside a field, write it without backslashes."""
        self._at = match.end()
        prefix, quote = match[1], match[2]
        if quote is None:
            return match[0]
        pieces, fields = [], ""
        is_f = "f" in prefix.lower()
        while not self._text.startswith(quote, self._at):
            pair = self._text[self._at : self._at + 2]
            if pair[0] == "\n" and len(quote) == 1:
                raise ValueError
            if is_f and pair[0] == "{" and pair != "{{":
                piece = self._field()
                fields += piece
            else:
                piece = pair if pair[0] == "\\" or pair == "{{" else pair[0]
                self._at += len(piece)
            pieces.append(piece)
        self._at += len(quote)
        body = "".join(pieces)
        whole = f"{prefix}{quote}{body}{quote}"
        if inside and "\\" in body and not is_f:
            return _spell_text(ast.literal_eval(whole))
        if quote in fields or ("\n" in fields and len(quote) == 1):
            quote = next((one for one in _QUOTES if _fits(one, body, fields)), quote)
        return f"{prefix}{quote}{body}{quote}"

    def _field(self) -> str:
        self._at += 1
        field = "{" + "".join(self._pieces("}:!"))
        while self._text[self._at] != "}":
            # `!r`, and a format, in which there may be fields.
            nested = self._text[self._at] == "{"
            field += self._field() if nested else self._text[self._at]
            self._at += not nested
        self._at += 1
        return field + "}"


def _fits(quote: str, body: str, fields: str) -> bool:
    if len(quote) == 1:
        return quote not in body and "\n" not in fields
    return quote not in body and body[-1:] != quote[0]


def _spell_text(text: str) -> str:
    pieces = (piece for piece in re.split(r"([^ -~]|[\\'\"])", text) if piece)
    parts = [f"chr({ord(p)})" if re.match(r"[^ -~]|[\\'\"]", p) else repr(p) for p in pieces]
    return f"({'+'.join(parts)})"
