"""Python literals as JSON: many servers answer with `str` of a list of dicts.

Owns the translation, token by token, so that it costs what reading JSON costs. `ast.literal_eval`
builds a syntax tree first, which takes a hundred times the text's memory. Pure.
"""

from __future__ import annotations

import re

MAX_MARKS = 2_000_000
"""Quotes and backslashes in a text. What stands for each is kept until all is read: 100 bytes."""

_TOKEN = re.compile(
    r"""'([^'\\\n]*(?:\\.[^'\\\n]*)*)'|"([^"\\\n]*(?:\\.[^"\\\n]*)*)\""""
    r"""|(?<![\w.])([A-Za-z_]\w*)|['"\\]"""
)
"""What differs from JSON: texts and names. A quote by itself is part of nothing."""

_NAMES = {"True": "true", "False": "false", "None": "null"}

_ESCAPE = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|U(000[1-9a-fA-F][0-9a-fA-F]{4}|0010[0-9a-fA-F]{4})|(.))|\""""
)

_SAME = frozenset('\\"nrtbf')
"""What stands for the same behind a backslash in both languages."""


def literal_as_json(text: str) -> str:
    """Return a literal of lists, dicts, texts and numbers as JSON.

    What is no such literal comes out as something that is no JSON, or not at all: names, calls,
    tuples, and keys that are no texts.

    Raises:
        ValueError: It is certainly none, or has more than `MAX_MARKS`.
    """
    if sum(map(text.count, "'\"\\")) > MAX_MARKS:
        message = f"it has more than {MAX_MARKS:,} quotes and backslashes"
        raise ValueError(message)
    return _TOKEN.sub(_token, text)


def _token(match: re.Match[str]) -> str:
    single, double, name = match.groups()
    text = double if single is None else single
    if text is not None:
        return f'"{_ESCAPE.sub(_escape, text)}"' if "\\" in text or '"' in text else f'"{text}"'
    if name is not None and name in _NAMES:
        return _NAMES[name]
    raise ValueError(match[0])


def _escape(match: re.Match[str]) -> str:
    byte, wide, other = match.groups()
    if byte is not None:
        return f"\\u00{byte}"
    if wide is not None:
        # As JSON has it: quotes and control characters are never written so long.
        return chr(int(wide, 16))
    if match[0] == '"':
        return '\\"'
    if other is None or other in _SAME:
        return match[0]
    if other == "'":
        return other
    raise ValueError(match[0])
