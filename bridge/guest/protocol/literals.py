"""Reads Python literals, which many servers send: `str` of a list of dicts. Pure.

A literal is translated to JSON token by token, at the cost of parsing JSON. `ast.literal_eval`
would build a syntax tree, which takes a hundred times the text's memory. Imported when needed.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match

_TOKEN = re.compile(
    r"""'([^'\\\n]*(?:\\.[^'\\\n]*)*)'|"([^"\\\n]*(?:\\.[^"\\\n]*)*)\""""
    r"""|(?<![\w.])([A-Za-z_]\w*)|['"\\]"""
)
"""The tokens that differ from JSON: strings and names. A lone quote is invalid."""

_NAMES = {"True": "true", "False": "false", "None": "null"}

_ESCAPE = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|U(000[1-9a-fA-F][0-9a-fA-F]{4}|0010[0-9a-fA-F]{4})|(.))|\""""
)

_SAME = frozenset('\\"nrtbf')  # Escapes with the same meaning in both languages.


def literal_as_json(text: str) -> str:
    """Return a Python literal of lists, dicts, strings and numbers as JSON.

    Any other text becomes invalid JSON or raises: names, calls, tuples, keys that are not strings.

    Raises:
        ValueError: It is certainly not such a literal.
    """
    return _TOKEN.sub(_token, text)


def _token(match: Match[str]) -> str:
    single, double, name = match.groups()
    text = double if single is None else single
    if text is not None:
        return f'"{_ESCAPE.sub(_escape, text)}"' if "\\" in text or '"' in text else f'"{text}"'
    if name is not None and name in _NAMES:
        return _NAMES[name]
    raise ValueError(match[0])


def _escape(match: Match[str]) -> str:
    byte, wide, other = match.groups()
    if byte is not None:
        return f"\\u00{byte}"
    if wide is not None:
        # Unescaped: characters that JSON must escape are never beyond the first plane.
        return chr(int(wide, 16))
    if match[0] == '"':
        return '\\"'
    if other is None or other in _SAME:
        return match[0]
    if other == "'":
        return other
    raise ValueError(match[0])
