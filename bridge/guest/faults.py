"""What can be wrong with one value by itself: its type, its size, which one it is.

Owns `Found`, which says what is wrong and where, and the checks that look at no other schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bridge.guest.schemas import same
from bridge.guest.wording import MAX_CHOICES, MAX_SHOWN, NAMES, cure, near, shown, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, TypeGuard, Union

# What a failure tells of how near a branch was meant, by rank.
TYPE, CHOICE, KEYS, OTHER = range(4)


class Found:
    """What is wrong, and where: path segments from the inside out."""

    __slots__ = ("path", "rank", "text", "types")

    def __init__(self, text: str, rank: int, types: Sequence[str] = ()) -> None:
        self.text = text
        self.rank = rank
        self.types = types
        self.path: List[Union[str, int]] = []

    def under(self, segment: Union[str, int]) -> Found:
        """Say that the place is within a key or an index; return itself."""
        self.path.append(segment)
        return self

    def sentence(self, where: str) -> str:
        """Return the whole, about a value that is called `where`."""
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


def number_problem(value: Any, schema: Mapping[str, Any]) -> Optional[Found]:
    """Return that a number is out of its limits; None if it is within."""
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    # Draft 4 has a boolean there, about the other limit.
    if above is True:
        above, least = least, None
    if below is True:
        below, most = most, None
    for limit, wrong, text in (
        (least, is_number(least) and value < least, "at least"),
        (most, is_number(most) and value > most, "at most"),
        (above, is_number(above) and value <= above, "more than"),
        (below, is_number(below) and value >= below, "less than"),
    ):
        if wrong:
            return Found("must be %s %s, not %s" % (text, shown(limit), shown(value)), OTHER)
    unit = schema.get("multipleOf")
    if is_number(unit) and unit > 0 and not is_multiple(value, unit):
        return Found("must be a multiple of %s, not %s" % (shown(unit), shown(value)), OTHER)
    return None


def is_multiple(value: Any, unit: Any) -> bool:
    """Whether a number is a multiple of another, but for rounding."""
    if isinstance(value, int) and isinstance(unit, int):
        return value % unit == 0
    try:
        times = float(value / unit)
    except OverflowError:
        return True
    if not math.isfinite(times):
        return True
    return abs(times - round(times)) <= 1e-9 * max(1.0, abs(times))


def fits_type(value: Any, kind: str) -> bool:
    """Whether a value is of one of JSON Schema's types."""
    if kind == "string":
        return isinstance(value, str)
    if kind == "integer":
        if isinstance(value, float):
            return value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "array":
        return isinstance(value, (list, tuple))
    if kind == "object":
        return isinstance(value, Mapping)
    return kind == "null" and value is None


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number in JSON, where True is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def type_problem(value: Any, kinds: Sequence[str]) -> Found:
    """Return that a value is of none of the types."""
    wanted = " or ".join(NAMES[kind] for kind in kinds)
    text = "must be %s, not %s%s" % (wanted, told(value), cure(value, kinds))
    return Found(text, TYPE, kinds)


def choice_problem(value: Any, choices: Sequence[Any]) -> Optional[Found]:
    """Return that a value is none of the choices; None if it is one."""
    for choice in choices:
        if same(value, choice):
            return None
    listed = ", ".join(map(shown, choices[:MAX_CHOICES]))
    if len(choices) > MAX_CHOICES:
        listed += ", ... (%d values)" % len(choices)
    only = "one of " if len(choices) > 1 else ""
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
    """Return that something is too small or too large.

    Args:
        kind: How the keywords end: "Length", "Items", "Properties".
    """
    least, most = schema.get("min" + kind), schema.get("max" + kind)
    if is_number(least) and size < least:
        if not size:
            return Found("must not be empty", rank)
        return Found("must have at least %s %s, not %d" % (shown(least), noun, size), rank)
    if is_number(most) and size > most:
        return Found("must have at most %s %s, not %d" % (shown(most), noun, size), rank)
    return None
