"""Dataclasses with something in every field: what is rendered of one has every field that there is.

A text is the name of the field that it is in.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal


def sample(shape: type) -> Any:
    """Return a dataclass whose fields all hold something."""
    hints = typing.get_type_hints(shape)
    given = {each.name: _filled(hints[each.name], each.name) for each in dataclasses.fields(shape)}
    return shape(**given)


def _filled(hint: Any, name: str) -> Any:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _filled(inside[0], name)
    if origin is Literal:
        return inside[0]
    if origin is tuple:
        one = _filled(inside[0], name)
        return tuple(_variants(one)) if dataclasses.is_dataclass(one) else (one,)
    if origin is not None:
        return {name: 1} if issubclass(origin, Mapping) else origin([name])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return sample(hint)
    simple: Mapping[Any, Any] = {int: 1, float: 1.5, bool: True, bytes: b"x"}
    return simple.get(hint, name)


def _variants(one: Any) -> Iterator[Any]:
    """Yield a dataclass twice, and with each of the words that its fields may hold."""
    yield from (one, one)
    for name, hint in typing.get_type_hints(type(one)).items():
        if typing.get_origin(hint) is Literal:
            yield from (dataclasses.replace(one, **{name: word}) for word in typing.get_args(hint))


def nested(hint: Any) -> type | None:
    """Return the dataclass that a type hint is of or has in it; None for none."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for each in typing.get_args(hint) if (found := nested(each))), None)
