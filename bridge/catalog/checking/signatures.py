"""How a tool's arguments are bound, as the guest binds them. Pure.

Owns what is wrong with values that a program writes out. Names and order are read from the schema
by the guest's own code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.guest.parameters import read_parameters
from bridge.guest.validation import argument_problem, convert, problem
from bridge.model import Json

MAX_DEPTH = 8
"""Nesting of dicts and lists that are written out in part."""

MAX_LITERAL_NODES = 2000
"""Parts of one written-out argument that are looked at."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument: its own name, the Python name it goes by, and its schema."""

    name: str
    alias: str
    required: bool
    schema: Json


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a tool takes.

    Attributes:
        all: In the order in which they may be given by position.
        open: Whether it takes names that are not listed.
    """

    all: tuple[Argument, ...]
    open: bool
    root: Json

    def find(self, name: str) -> Argument | None:
        """Return the argument that goes by a name, its own or Python's."""
        for argument in self.all:
            if name in (argument.alias, argument.name):
                return argument
        return None

    def names(self) -> list[str]:
        """Return the names as programs write them."""
        return [argument.alias for argument in self.all]


def arguments_of(schema: Json) -> Arguments:
    """Return what an input schema says of a tool's arguments."""
    found, is_open = read_parameters(schema)
    root = schema if isinstance(schema, Mapping) else {}
    listed = tuple(
        Argument(name=one.name, alias=one.alias, required=one.required, schema=one.schema)
        for one in found
    )
    return Arguments(all=listed, open=is_open, root=root)


def literal_problem(node: ast.expr, argument: Argument, root: Json) -> tuple[ast.expr, str] | None:
    """Return what is wrong with a written-out argument, and where; None if nothing is seen."""
    reader = _Literals()
    value = reader.value(node)
    if not reader.unknown:
        said = argument_problem(
            convert(value, argument.schema, root),
            argument.schema,
            root,
            argument.alias,
            argument.required,
        )
        return None if said is None else (node, said)
    return _partly(node, argument.schema, root, argument.alias, 0)


def written_out(node: ast.expr) -> tuple[bool, Json]:
    """Return whether an expression writes its whole value out, and that value."""
    reader = _Literals()
    value = reader.value(node)
    return not reader.unknown, None if reader.unknown else value


def _partly(
    node: ast.expr, schema: Json, root: Json, where: str, depth: int
) -> tuple[ast.expr, str] | None:
    """Look at those parts of a dict or a list that are written out."""
    if depth > MAX_DEPTH or not isinstance(schema, Mapping):
        return None
    parts: list[tuple[ast.expr, Json, str]] = []
    properties = schema.get("properties")
    if isinstance(node, ast.Dict) and isinstance(properties, Mapping):
        for key, value in zip(node.keys, node.values, strict=True):
            name = key.value if isinstance(key, ast.Constant) else None
            if isinstance(name, str) and name in properties:
                parts.append((value, properties[name], f"{where}[{name!r:.80}]"))
    elif isinstance(node, ast.List) and isinstance(schema.get("items"), Mapping):
        parts = [(v, schema["items"], f"{where}[{i}]") for i, v in enumerate(node.elts)]
    for value, part, place in parts[:MAX_LITERAL_NODES]:
        reader = _Literals()
        plain = reader.value(value)
        if reader.unknown:
            found = _partly(value, part, root, place, depth + 1)
            if found is not None:
                return found
        else:
            said = problem(convert(plain, part, root), part, root, place)
            if said is not None:
                return value, said
    return None


class _Literals:
    """Reads what an expression writes out, and notes whether something cannot be told."""

    def __init__(self) -> None:
        self.unknown = False
        self._left = MAX_LITERAL_NODES

    def value(self, node: ast.expr, depth: int = 0) -> Json:
        """Return the value; of what cannot be told, nothing that means anything."""
        self._left -= 1
        if self._left < 0 or depth > 64:
            self.unknown = True
            return None
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str | int | float | None):
                return node.value
        elif isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, depth + 1) for item in node.elts]
        elif isinstance(node, ast.Dict):
            return self._dict(node, depth)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, depth + 1)
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                return -inner
        self.unknown = True
        return None

    def _dict(self, node: ast.Dict, depth: int) -> Json:
        found: dict[str, Json] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                found[key.value] = self.value(value, depth + 1)
            else:
                self.unknown = True
        return found
