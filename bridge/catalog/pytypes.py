"""Python-like text of values and of unions of types.

Owns how a literal and a union are written. Knows nothing of JSON Schema.
"""

from __future__ import annotations

import math

from bridge.model import Json

MAX_LITERAL_CHARS = 40
"""Longest default, enum or const value that is written out."""

MAX_MEMBERS = 12
"""Values of a literal, or members of a union, that are written out."""

_MAX_VALUES = 400
"""Values looked at to tell of what kinds they are."""

_EXACT_INTEGER = 2**63


def literal_text(value: Json) -> str:
    """Return a scalar or an empty container as Python text; empty if it is anything longer."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        # Larger ones may be past the interpreter's limit on digits, and tell a reader nothing.
        return repr(value) if -_EXACT_INTEGER < value < _EXACT_INTEGER else ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        text = repr(value) if len(value) <= MAX_LITERAL_CHARS else ""
        return text if len(text) <= MAX_LITERAL_CHARS + 2 else ""
    if isinstance(value, (list, dict)) and not value:
        return repr(value)
    return ""


def literal_type(values: list[Json], detail: int) -> str:
    """Return the type of a value that is one of `values`; without detail, only of what kind."""
    texts = list(dict.fromkeys(map(literal_text, values[:MAX_MEMBERS])))
    if detail == 0 or not all(texts) or any(isinstance(v, (float, list, dict)) for v in values):
        return union([_kind_of(value) for value in values[:_MAX_VALUES]])
    if texts == ["None"]:
        return "None"
    more = ", ..." if len(values) > MAX_MEMBERS else ""
    return f"Literal[{', '.join(texts)}{more}]"


def _kind_of(value: Json) -> str:
    if value is None:
        return "None"
    for kind in (bool, int, float, str, list, dict):
        if isinstance(value, kind):
            return kind.__name__
    return "Any"


def union(texts: list[str]) -> str:
    """Return the union of types, each once, None last."""
    parts: dict[str, None] = {}
    for text in texts:
        parts.update(dict.fromkeys(split_union(text)))
    parts.pop("Never", None)
    if "Any" in parts:
        return "Any"
    none = parts.pop("None", 0) is None
    return " | ".join([*parts, "None"] if none else list(parts)) or "Never"


def split_union(text: str) -> list[str]:
    """Return a union's parts; a bar in quotes or brackets belongs to its part."""
    if " | " not in text:
        return [text]
    parts, depth, start, quote, index = [], 0, 0, "", 0
    while index < len(text):
        char = text[index]
        if quote:
            index += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif not depth and text.startswith(" | ", index):
            parts.append(text[start:index])
            index += 2
            start = index + 1
        index += 1
    return [*parts, text[start:]]
