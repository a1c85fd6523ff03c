"""How values, types and near misses stand in messages to a program's author.

Owns bounded text for any JSON value. Knows nothing of what was checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Sequence

MAX_SHOWN = 60
"""Characters of a value in a message."""

MAX_CHOICES = 12
"""Values of an enum in a message."""

_MAX_COMPARED = 1_000
"""Names among which the nearest is sought."""

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "True or False",
    "array": "a list",
    "object": "a dict",
    "null": "None",
}


def cure(value: Any, kinds: Sequence[str]) -> str:
    """Return what to write instead, where that is plain."""
    if isinstance(value, (str, int, float, Mapping)) and tuple(kinds) == ("array",):
        return "; write [%s]" % (shown(value) if not isinstance(value, Mapping) else "{...}")
    if isinstance(value, str):
        text = value.strip()
        if "boolean" in kinds and text.lower() in ("true", "false"):
            return "; write %s" % text.capitalize()
        if "null" in kinds and text.lower() in ("null", "none"):
            return "; write None"
        digits = text[1:] if text[:1] == "-" else text
        whole = digits.isascii() and digits.isdigit()
        fraction = "number" in kinds and re.match(r"\d+\.\d+\Z", digits) is not None
        if (whole and ("integer" in kinds or "number" in kinds)) or fraction:
            return "; write %s without quotes" % text[:MAX_SHOWN]
    elif "string" in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return "; write %s in quotes, or str(x)" % shown(value)
    elif "string" in kinds and isinstance(value, (Mapping, list, tuple)):
        return "; json.dumps(x) if its JSON text is meant"
    return ""


def told(value: Any) -> str:
    """Return a value as it stands in a message: its type, and itself if that is short."""
    if value is None or isinstance(value, bool):
        return repr(value)
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return "%s %s" % (kind, "{...}" if value else "{}")
    if isinstance(value, (list, tuple)):
        return "%s of %d" % (kind, len(value))
    if isinstance(value, (str, int, float)):
        text = shown(value)
        return text if isinstance(value, str) else "%s %s" % (kind, text)
    return kind


def flat(text: Any, limit: int) -> str:
    """Return the beginning of a foreign text as one line that can stand in a comment."""
    if not isinstance(text, str):
        return ""
    line = " ".join(_UNPRINTABLE.sub(" ", text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def block(text: Any, limit: int) -> str:
    """Return the beginning of a foreign text, lines kept, as it can stand in a docstring."""
    if not isinstance(text, str):
        return ""
    lines = text[:limit].replace("\r\n", "\n").replace("\t", "    ").split("\n")
    clean = [_UNPRINTABLE.sub(" ", line).rstrip() for line in lines]
    found = "\n".join(clean).strip()
    return found + " ..." if len(text) > limit else found


def shown(value: Any, limit: int = MAX_SHOWN) -> str:
    """Return the repr of a value, in bounded length."""
    if isinstance(value, str):
        text = repr(str.__str__(value[:limit]))
        return text if len(value) <= limit else text[:-1] + "..." + text[-1]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**limit:
        return "a number of more than %d digits" % limit
    if isinstance(value, Mapping):
        return "{...}" if value else "{}"
    if isinstance(value, (list, tuple)) and value:
        return "[...]"
    return repr(value)[:limit]


def near(name: Any, names: Iterable[Any], form: str = "; did you mean %s?") -> str:
    """Return a hint at the one of `names` that is nearest, or nothing."""
    if not isinstance(name, str):
        return ""
    by_lower: Dict[str, str] = {}
    for other in names:
        if isinstance(other, str) and len(by_lower) < _MAX_COMPARED:
            by_lower.setdefault(other[:MAX_SHOWN].lower(), other)
    # Imported by those who make mistakes; it takes milliseconds.
    import difflib

    found = difflib.get_close_matches(name.lower()[:MAX_SHOWN], by_lower, n=1, cutoff=0.6)
    return form % shown(by_lower[found[0]]) if found else ""
