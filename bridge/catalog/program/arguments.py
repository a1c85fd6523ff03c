"""What of a call's arguments is written out in a program, and what is wrong with it. Pure.

Owns the values that reading alone tells, as the guest would convert them. Names, order and what
fits are read from the schema by the guest's own code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.catalog.program.survey import Place, Survey
from bridge.catalog.program.tables import Helper
from bridge.guest.schema.parameters import read_parameters
from bridge.guest.schema.validation import argument_problem, convert, problem
from bridge.model import Json
from bridge.text import valid_text

MAX_DEPTH = 8
"""Nesting of dicts and lists that are written out in part."""

MAX_LITERAL_NODES = 2000
"""Parts of one written-out argument that are looked at."""

_MAX_LITERAL_DEPTH = 64


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument: its own name, the Python name it goes by, and its schema."""

    name: str
    alias: str
    required: bool = False
    schema: Json = True


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a tool or a helper takes.

    Attributes:
        all: In the order in which they may be given by position.
        positional: How many of them may be.
        open: Whether it takes names that are not listed.
    """

    all: tuple[Argument, ...]
    positional: int
    open: bool
    root: Json

    def find(self, name: str) -> Argument | None:
        """Return the argument that goes by a name, its own or Python's."""
        return next((one for one in self.all if name in (one.alias, one.name)), None)


def arguments_of(schema: Json) -> Arguments:
    """Return what an input schema says of a tool's arguments."""
    found, is_open = read_parameters(schema)
    root = schema if isinstance(schema, Mapping) else {}
    listed = tuple(
        Argument(name=one.name, alias=one.alias, required=one.required, schema=one.schema)
        for one in found
    )
    return Arguments(all=listed, positional=len(listed), open=is_open, root=root)


def helper_arguments(helper: Helper) -> Arguments:
    """Return what a helper takes."""
    names = (*helper.positional, *helper.keywords)
    listed = tuple(
        Argument(name=name, alias=name, required=index < helper.required)
        for index, name in enumerate(names)
    )
    return Arguments(all=listed, positional=len(helper.positional), open=helper.open, root={})


def literal_problem(node: ast.expr, argument: Argument, root: Json) -> tuple[ast.expr, str] | None:
    """Return what is wrong with a written-out argument, and where; None if nothing is seen."""
    known, value = written_out(node)
    if not known:
        return _partly(node, argument.schema, root, argument.alias, 0)
    schema = argument.schema
    plain = convert(value, schema, root)
    said = argument_problem(plain, schema, root, argument.alias, argument.required)
    return None if said is None else (node, said)


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
        known, plain = written_out(value)
        if not known:
            found = _partly(value, part, root, place, depth + 1)
            if found is not None:
                return found
            continue
        said = problem(convert(plain, part, root), part, root, place)
        if said is not None:
            return value, said
    return None


def written_out(node: ast.expr) -> tuple[bool, Json]:
    """Return whether an expression writes its whole value out, and that value."""
    reader = _Literals()
    try:
        return True, reader.value(node, 0)
    except ValueError:
        return False, None


class _Literals:
    """Reads what an expression writes out; raises ValueError if something cannot be told."""

    def __init__(self) -> None:
        self._left = MAX_LITERAL_NODES

    def value(self, node: ast.expr, depth: int) -> Json:
        self._left -= 1
        if self._left >= 0 and depth <= _MAX_LITERAL_DEPTH:
            match node:
                case ast.Constant(value=str() | int() | float() | None):
                    return node.value
                case ast.List() | ast.Tuple():
                    return [self.value(item, depth + 1) for item in node.elts]
                case ast.Dict():
                    return {
                        self._key(key): self.value(value, depth + 1)
                        for key, value in zip(node.keys, node.values, strict=True)
                    }
                case ast.UnaryOp(op=ast.USub()):
                    inner = self.value(node.operand, depth + 1)
                    if isinstance(inner, int | float) and not isinstance(inner, bool):
                        return -inner
                case _:
                    pass
        raise ValueError

    def _key(self, key: ast.expr | None) -> str:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return key.value
        raise ValueError


# --- what is known of a call before it is made ---------------------------------------------------


@dataclass(kw_only=True)
class Given:
    """The arguments of one call.

    Attributes:
        unseen: Names of those whose values do not show.
        open: Whether there may be others of any name.
    """

    seen: dict[str, Json] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    open: bool = False


class GivenReader:
    """Reads arguments of one program's calls."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def bound(self, node: ast.Call, accepted: Arguments, place: Place) -> Given:
        """Return the arguments of a tool's call."""
        given = Given(open=any(isinstance(item, ast.Starred) for item in node.args))
        if not given.open:
            for item, argument in zip(node.args, accepted.all, strict=False):
                self.take(given, argument.name, item, accepted, place)
        self.by_keyword(given, node.keywords, accepted, place)
        return given

    def by_keyword(
        self,
        given: Given,
        keywords: Sequence[ast.keyword],
        accepted: Arguments | None,
        place: Place,
    ) -> None:
        """Take those that are given by name."""
        for keyword in keywords:
            if keyword.arg is not None:
                found = accepted.find(keyword.arg) if accepted is not None else None
                name = keyword.arg if found is None else found.name
                self.take(given, name, keyword.value, accepted, place)
            elif isinstance(keyword.value, ast.Dict):
                self.by_dict(given, keyword.value, place)
            else:
                given.open = True

    def by_dict(self, given: Given, node: ast.Dict, place: Place) -> None:
        """Take those that stand in a dict."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.take(given, key.value, value, None, place)
            else:
                given.open = True

    def take(
        self,
        given: Given,
        name: str,
        node: ast.expr,
        accepted: Arguments | None,
        place: Place,
    ) -> None:
        """Put an argument where it belongs, as the guest would convert it."""
        known, value = self.value(node, place)
        name = valid_text(name)
        if not known:
            given.unseen.append(name)
            return
        argument = None if accepted is None else accepted.find(name)
        if argument is not None and accepted is not None:
            value = convert(value, argument.schema, accepted.root)
            wrong = value is None and problem(value, argument.schema, accepted.root, name)
            if wrong and not argument.required:
                # Left out, as the guest leaves it out.
                return
        given.seen[name] = value

    def value(self, node: ast.expr, place: Place) -> tuple[bool, Json]:
        """Return whether an expression's value can be seen, and the value."""
        if not isinstance(node, ast.Name):
            return written_out(node)
        owner = self._survey.owner(node.id, place)
        if owner is None or self._survey.tricky or node.id in self._survey.shared:
            return False, None
        # What a name stands for everywhere, if that is one constant.
        bound = owner.bound[node.id]
        value = bound[0][0] if len(bound) == 1 else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
            return True, value.value
        return False, None
