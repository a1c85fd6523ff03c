"""Placeholders replaced by what the calls have returned. Pure.

Owns the way from a result to a part of it, and how a value is put into a text: as Python's `str`
writes it, which is what the program would have made of it. What stands alone keeps its type.
Nothing is quoted: a program that quoted a placeholder, for a shell or an address, has quoted the
placeholder and not what it stands for. Policies therefore see the arguments as they are after this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.errors import InvalidRequestError
from bridge.gate.plans.references import stands_whole
from bridge.guest import placeholders
from bridge.guest.placeholders import WHOLE
from bridge.model import Json

MAX_CHARACTERS = 16 * 1024 * 1024
"""Put into the arguments of one call in all, as long as a frame from a program may be. One result
can stand in a text many times over."""

MAX_KEYS = 20
MAX_KEY = 60
"""Keys in an error, and characters of each."""

Step = str | int

Shape = Mapping[str, Json]
"""What stands for a result, as `bridge.rpc.values.wire_value` gives it."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a call has returned.

    Attributes:
        call: Its number and name, as errors have it ("#3 github.create_issue").
    """

    call: str
    shape: Shape


def resolve(arguments: Mapping[str, Json], results: Mapping[int, Known]) -> dict[str, Json]:
    """Return arguments with the results in place of what stands for them.

    Raises:
        InvalidRequestError: A part does not exist, is no JSON, is not known, or all is too much.
    """
    resolver = _Resolver(results)
    return {key: resolver.value(item) for key, item in arguments.items()}


def shown_path(path: Sequence[Step]) -> str:
    """Return the way to a part as Python would have it."""
    steps = []
    for step in path:
        if isinstance(step, str) and step.isidentifier() and len(step) <= MAX_KEY:
            steps.append(f".{step}")
        elif isinstance(step, str):
            steps.append(f"[{json.dumps(_cut(step))}]")
        else:
            steps.append(f"[{step}]")
    return "".join(steps)


def as_text(value: Json) -> str:
    """Return how a value stands in a text: as in the program's own f-string, where it is known."""
    return str(value)


class _Resolver:
    def __init__(self, results: Mapping[int, Known]) -> None:
        self._results = results
        self._left = MAX_CHARACTERS

    def value(self, value: Json) -> Json:
        # As deep as `references.MAX_DEPTH` at most: what is deeper was never held.
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            if stands_whole(value):
                return self._whole(str(value[WHOLE]))
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _whole(self, token: str) -> Json:
        (found,) = placeholders.find(token)
        value = self._part(found)
        self._take(len(as_text(value)))
        return value

    def _text(self, text: str) -> str:
        pieces, position = [], 0
        for found in placeholders.find(text):
            piece = as_text(self._part(found))
            self._take(len(piece))
            pieces += [text[position : found.start], piece]
            position = found.end
        return "".join([*pieces, text[position:]]) if pieces else text

    def _part(self, found: placeholders.Placeholder) -> Json:
        known = self._results.get(found.number)
        if known is None:
            message = f"The result of #{found.number} is not known."
            raise InvalidRequestError(message)
        return part(known, found.path)

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            message = (
                "With the results of earlier calls put in, the arguments are longer than "
                f"{MAX_CHARACTERS:,} characters."
            )
            raise InvalidRequestError(message)


def part(known: Known, path: Sequence[Step]) -> Json:
    """Return a part of a result.

    Raises:
        InvalidRequestError: There is none; names the call, the way and what there is instead.
    """
    shape, rest = known.shape, list(path)
    blocks = shape.get("blocks")
    if isinstance(blocks, list):
        if not rest:
            return [_plain(known, block) for block in blocks]
        index = rest.pop(0)
        if type(index) is not int or not -len(blocks) <= index < len(blocks):
            raise _missing(known, path, 0, f"is a list of {len(blocks)} items")
        block = blocks[index]
        shape = block if isinstance(block, Mapping) else {}
    value = _plain(known, shape)
    for place, step in enumerate(rest, len(path) - len(rest)):
        if isinstance(value, Mapping):
            if type(step) is not str or step not in value:
                raise _missing(known, path, place, _keys(value))
            value = value[step]
        elif isinstance(value, list):
            if type(step) is not int or not -len(value) <= step < len(value):
                raise _missing(known, path, place, f"is a list of {len(value)} items")
            value = value[step]
        else:
            kind = "null" if value is None else f"a {_NAMES[type(value)]}"
            raise _missing(known, path, place, f"is {kind}")
    return value


_NAMES = {str: "text", bool: "boolean", int: "number", float: "number"}


def _plain(known: Known, shape: Json) -> Json:
    if isinstance(shape, Mapping) and "json" in shape:
        return shape["json"]
    message = f"The result of {known.call} is binary, which cannot be passed on in a plan."
    raise InvalidRequestError(message)


def _missing(known: Known, path: Sequence[Step], place: int, instead: str) -> InvalidRequestError:
    what = f"its {shown_path(path[:place])}" if place else "it"
    missed = shown_path(path[: place + 1])
    message = f"The result of {known.call} has no {missed}: {what} {instead}."
    return InvalidRequestError(message)


def _keys(value: Mapping[str, Json]) -> str:
    if not value:
        return "has no keys"
    shown = ", ".join(_cut(str(key)) for key in list(value)[:MAX_KEYS])
    more = f" and {len(value) - MAX_KEYS:,} more" if len(value) > MAX_KEYS else ""
    return f"has the keys {shown}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_KEY else f"{text[:MAX_KEY]}…"
