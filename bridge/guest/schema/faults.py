"""What can be wrong with a single value: its type, its size, its choice.

Owns `Found`, which says what is wrong and where, and the checks that look at no other schema.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

from bridge.guest.schema.names import nearest
from bridge.guest.schema.schemas import is_number, same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, List, Optional, Sequence, Union


# How near a branch came, by what failed.
TYPE, CHOICE, KEYS, OTHER = range(4)


class Found:
    """What is wrong, and where: path segments from the inside out.

    Attributes:
        more: What else is wrong with the same object.
    """

    def __init__(self, text: str, rank: int, types: Sequence[str] = ()) -> None:
        self.text = text
        self.rank = rank
        self.types = types
        self.path: List[Union[str, int]] = []
        self.more: List[Found] = []

    def under(self, segment: Union[str, int]) -> Found:
        for found in (self, *self.more):
            found.path.append(segment)
        return self

    def sentence(self, where: str) -> str:
        return "; ".join(found._sentence(where) for found in (self, *self.more)[:12])

    def _sentence(self, where: str) -> str:
        place = where
        for segment in reversed(self.path):
            if isinstance(segment, int):
                place += "[%d]" % segment
            elif segment.isidentifier() and len(segment) <= MAX_SHOWN:
                place += "." + segment if place else segment
            else:
                place += "[%s]" % shown(segment)
        if place:
            return "%s %s" % (place, self.text)
        for verb in ("is ", "has "):
            if self.text.startswith(verb):
                return self.text[len(verb) :]
        return self.text


_LIMITS = (
    ("minimum", operator.lt, "at least"),
    ("maximum", operator.gt, "at most"),
    ("exclusiveMinimum", operator.le, "more than"),
    ("exclusiveMaximum", operator.ge, "less than"),
)


def number_problem(value: Any, schema: Mapping[str, Any]) -> Optional[Found]:
    for key, breaks, text in _LIMITS:
        limit = schema.get(key)
        if limit is True:
            # In draft 4 it says that the other limit is exclusive.
            limit = schema.get("m" + key[len("exclusiveM") :])
        if is_number(limit) and breaks(value, limit):
            return Found("must be %s %s, not %s" % (text, shown(limit), shown(value)), OTHER)
    return None


def type_problem(value: Any, kinds: Sequence[str]) -> Found:
    wanted = " or ".join(NAMES[kind] for kind in kinds)
    return Found("must be %s, not %s%s" % (wanted, told(value), cure(value, kinds)), TYPE, kinds)


def choice_problem(
    value: Any, choices: Sequence[Any], kinds: Iterable[str] = ()
) -> Optional[Found]:
    """Return that a value is none of the choices, nor of the types; None if it is a choice."""
    for choice in choices:
        if same(value, choice):
            return None
    listed = ", ".join(map(shown, choices[:12]))
    if len(choices) > 12:
        listed += ", ... (%d values)" % len(choices)
    only = "one of " if len(choices) > 1 else ""
    listed += "".join(" or " + NAMES[kind] for kind in kinds)
    text = "must be %s%s, not %s%s" % (only, listed, told(value), near(value, choices))
    return Found(text, CHOICE)


def choices_of(branches: Sequence[Any]) -> Optional[List[Any]]:
    """Return the values of a union whose members are all written out; None for other unions."""
    choices: List[Any] = []
    for branch in branches:
        if not isinstance(branch, Mapping):
            return None
        own = branch.get("enum", [branch["const"]] if "const" in branch else None)
        if branch.get("type") == "null":
            own = [None]
        if not isinstance(own, list):
            return None
        choices += own
    return choices


def size_problem(
    size: int, schema: Mapping[str, Any], kind: str, noun: str, rank: int = OTHER
) -> Optional[Found]:
    """Return that something is too small or too large; `kind` ends its keywords: "Length"."""
    least, most = schema.get("min" + kind), schema.get("max" + kind)
    if is_number(least) and size < least:
        if not size:
            return Found("must not be empty", rank)
        return Found("must have at least %s %s, not %d" % (shown(least), noun, size), rank)
    if is_number(most) and size > most:
        return Found("must have at most %s %s, not %d" % (shown(most), noun, size), rank)
    return None


MAX_SHOWN = 60  # Characters of a value in a message; a program passes any.

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

NAMES = {
    "string": "a string", "integer": "an integer", "number": "a number",
    "boolean": "True or False", "array": "a list", "object": "a dict", "null": "None",
}  # fmt: skip


def cure(value: Any, kinds: Sequence[str]) -> str:
    if isinstance(value, str) and "," in value[:MAX_SHOWN] and tuple(kinds) == ("array",):
        parts = [shown(part.strip()) for part in value[:MAX_SHOWN].split(",")]
        return "; write [%s]" % ", ".join(parts if len(value) <= MAX_SHOWN else [parts[0], "..."])
    if isinstance(value, (str, int, float, Mapping)) and tuple(kinds) == ("array",):
        return "; write [%s]" % (shown(value) if not isinstance(value, Mapping) else "{...}")
    if "string" in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return "; write %s in quotes, or str(x)" % shown(value)
    if "string" in kinds and isinstance(value, (Mapping, list, tuple)):
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
    texts = [other[:MAX_SHOWN] for other in names if isinstance(other, str)]
    found = nearest(name, texts) if isinstance(name, str) else ""
    return form % shown(found) if found else ""
