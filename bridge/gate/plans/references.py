"""Placeholders in the arguments of a call. Pure.

Owns where one may stand, and the check that it is one of the plan's own and as it was made. How it
is written is `bridge.guest.placeholders`'.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import HeldResultError, InvalidRequestError
from bridge.guest import placeholders
from bridge.guest.placeholders import WHOLE
from bridge.model import Json

MAX_DEPTH = 100
"""Nesting of arguments in a plan, which are walked recursively later. Frames allow more; no tool's
schema does."""

_CHANGED = (
    "An argument holds a part of a placeholder, or one that was changed. The result of a held call "
    "is not known yet: pass it, a field of it or a text made with it on as it is."
)


def stands_whole(value: Mapping[str, Json]) -> bool:
    """Tell whether an object stands for a result, or a part of one, with its own type."""
    return WHOLE in value


def referred(arguments: Json, plan: str, held: int) -> frozenset[int]:
    """Return the numbers of the calls whose results arguments are made with.

    Args:
        plan: The run's own 16 digits.
        held: How many calls it holds back by now.

    Raises:
        HeldResultError: A placeholder was changed, is of another run or stands where none can.
        InvalidRequestError: The arguments are nested too deep.
    """
    found: set[int] = set()
    stack: list[tuple[Json, int]] = [(arguments, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_DEPTH:
            message = f"The arguments of a held call may be nested {MAX_DEPTH} levels deep."
            raise InvalidRequestError(message)
        if isinstance(value, str):
            found.update(_in_text(value, plan, held))
        elif isinstance(value, Mapping) and stands_whole(value):
            found.update(_in_text(_token(value), plan, held))
        elif isinstance(value, Mapping):
            _check_keys(value)
            stack.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple):
            stack.extend((item, depth + 1) for item in value)
    return frozenset(found)


def mentions(arguments: Json) -> bool:
    """Tell whether anything in arguments looks like a placeholder, however deep."""
    stack: list[Json] = [arguments]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if _looks_like_one(value):
                return True
        elif isinstance(value, Mapping):
            stack.extend(value.keys())
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return False


def _looks_like_one(text: str) -> bool:
    try:
        return any(True for _ in placeholders.find(text))
    except ValueError:
        return True


def _in_text(text: str, plan: str, held: int) -> set[int]:
    numbers = set()
    try:
        for found in placeholders.find(text):
            if found.plan != plan:
                message = "An argument holds the placeholder of another run, which is no use here."
                raise HeldResultError(message)
            if not 1 <= found.number <= held:
                message = f"There is no held call #{found.number} yet: this plan holds {held}."
                raise HeldResultError(message)
            numbers.add(found.number)
    except ValueError:
        raise HeldResultError(_CHANGED) from None
    return numbers


def _token(value: Mapping[str, Json]) -> str:
    """Return the token in an object that stands for something, which holds nothing else."""
    token = value[WHOLE]
    if len(value) == 1 and isinstance(token, str):
        try:
            spans = [(found.start, found.end) for found in placeholders.find(token)]
        except ValueError:
            spans = []
        if spans == [(0, len(token))]:
            return token
    raise HeldResultError(_CHANGED)


def _check_keys(value: Mapping[str, Json]) -> None:
    for key in value:
        if _looks_like_one(key):
            message = (
                "A result that is held back cannot be a key of a dict, for it is not known yet. "
                "Use it as a value; or use what a read has returned as the key."
            )
            raise HeldResultError(message)
