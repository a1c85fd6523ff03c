"""Reads the arguments of a program's calls, as far as its text shows them. Pure.

What the program computes is `COMPUTED`, which fits every schema. The guest's own code binds the
values to parameters, converts and checks them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.tables import BY_NAME, Helper
from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema.binding import Parameters
from bridge.guest.schema.names import PARAMETER_NAMES
from bridge.guest.schema.parameters import are_arguments
from bridge.model import Json
from bridge.text import valid_text

MAX_LITERAL_NODES = 2000
"""Nodes of one literal argument that are read."""

COMPUTED: Json = {WHOLE: ""}
"""Stands for a value that the text does not show."""


def helper_parameters(helper: Helper) -> Parameters:
    """Return a helper's parameters."""
    names = (*helper.positional, *helper.keywords)
    schema = {
        "properties": {name: {} for name in names},
        "required": list(names[: helper.required]),
        "additionalProperties": helper.open,
    }
    also = PARAMETER_NAMES if helper.name in BY_NAME else {}
    return Parameters(schema, len(helper.positional), also)


def read_call_tool(node: ast.Call, given: Mapping[str, str]) -> dict[str, ast.expr]:
    """Return the server, tool and arguments of a `call_tool`, however the program gives them.

    Args:
        given: What texts that name both a server and a tool mean; see `NameTable.resolve`.
    """
    bound = dict(zip(("server", "tool", "arguments"), node.args, strict=False))
    for keyword in node.keywords:
        bound[PARAMETER_NAMES.get(str(keyword.arg), str(keyword.arg))] = keyword.value
    if isinstance(bound.get("tool"), ast.Dict) and "arguments" not in bound:
        bound["arguments"] = bound.pop("tool")
    if len(bound.keys() & {"server", "tool"}) == 1:
        whole = bound.get("server", bound.get("tool"))
        path = given.get(str(getattr(whole, "value", "")), "")
        if "." in path:
            server, _, tool = path.partition(".")
            bound.update(server=ast.Constant(server), tool=ast.Constant(tool))
    return bound


@dataclass(kw_only=True)
class CallArguments:
    """The arguments of one call.

    Attributes:
        seen: Names and values of the literal ones.
        unseen: Names of those whose values are computed.
        open: Whether there may be others of any name.
    """

    seen: dict[str, Json] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    open: bool = False

    def take(self, name: str, value: Json) -> None:
        """Add one argument."""
        name = valid_text(name)
        if _is_computed(value):
            self.unseen.append(name)
        else:
            self.seen[name] = value


@dataclass(frozen=True, kw_only=True)
class CallText:
    """What the text of a call shows.

    Attributes:
        args, kwargs: Values by position and by name; `args` is empty if some are unpacked.
        starred, unpacked: Whether lists and dicts are unpacked that the text does not show.
        scalar: Whether the first argument is certainly no dict.
    """

    args: Sequence[Json]
    kwargs: Mapping[str, Json]
    starred: bool
    unpacked: bool
    scalar: bool

    def may_be_all(self, parameters: Parameters) -> bool:
        """Whether there are arguments that the text does not show: unpacked, or in one dict."""
        alone = len(self.args) == 1 and not self.kwargs and self.args[0] == COMPUTED
        alone = alone and not self.scalar
        names = parameters.by_name
        if alone and are_arguments(names, names, parameters.all, parameters.root):
            return True
        return self.starred or self.unpacked


class ArgumentReader:
    """Reads the arguments of one program's calls."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._left = 0

    def read(self, node: ast.Call, context: Context) -> CallText:
        """Return what the text shows of a call's arguments."""
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        kwargs: dict[str, Json] = {}
        unpacked = False
        for keyword in node.keywords:
            value = self.value(keyword.value, context)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif value == COMPUTED or not isinstance(value, dict):
                unpacked = True
            else:
                kwargs.update(value)
        args = [] if starred else [self.value(item, context) for item in node.args]
        first = node.args[0] if node.args else None
        owner = self._survey.owner(first.id, context) if isinstance(first, ast.Name) else None
        bound = owner.bound[first.id] if owner and isinstance(first, ast.Name) else ()
        values = [first, *(value for value, _ in bound)]
        scalar = isinstance(values[-1], ast.Constant | ast.JoinedStr) and all(
            isinstance(value, ast.Constant | ast.JoinedStr) for value in values[1:]
        )
        return CallText(args=args, kwargs=kwargs, starred=starred, unpacked=unpacked, scalar=scalar)

    def bind(
        self, node: ast.Call, parameters: Parameters | None, context: Context
    ) -> CallArguments:
        """Return the arguments of a call of a tool; without its parameters, those by name."""
        given = self.read(node, context)
        if parameters is None:
            found = CallArguments(open=bool(node.args) or given.unpacked)
            bound: Mapping[str, Json] = given.kwargs
        else:
            found = CallArguments(open=given.may_be_all(parameters))
            bound, _ = parameters.bind_all(given.args, given.kwargs)
            if given.starred:
                # Defaults are sent only for what is left out.
                own = {one.name for name in given.kwargs if (one := parameters.by_name.get(name))}
                bound = {name: value for name, value in bound.items() if name in own}
        for name, value in bound.items():
            found.take(name, value)
        return found

    def value(self, node: ast.expr, context: Context) -> Json:
        """Return the value of an expression; `COMPUTED` for what the text does not show of it.

        A name counts that is bound once, to a constant.
        """
        if isinstance(node, ast.Name):
            owner = self._survey.owner(node.id, context)
            bound = owner.bound[node.id] if owner is not None else ()
            value = bound[0][0] if len(bound) == 1 else None
            fixed = not self._survey.tricky and node.id not in self._survey.shared
            if not fixed or not isinstance(value, ast.Constant):
                return COMPUTED
            node = value
        self._left = MAX_LITERAL_NODES
        return self._literal(node, 0)

    def _literal(self, node: ast.expr, depth: int) -> Json:
        self._left -= 1
        if self._left >= 0 and depth <= 64:
            match node:
                case ast.Constant(value=str() | int() | float() | None):
                    return node.value
                case ast.List() | ast.Tuple():
                    items = [self._literal(item, depth + 1) for item in node.elts]
                    starred = any(isinstance(item, ast.Starred) for item in node.elts)
                    return COMPUTED if starred else items
                case ast.Dict():
                    keys = [getattr(key, "value", None) for key in node.keys]
                    if all(isinstance(key, str) for key in keys):
                        values = (self._literal(value, depth + 1) for value in node.values)
                        return dict(zip(keys, values, strict=True))
                case ast.UnaryOp(op=ast.USub()):
                    inner = self._literal(node.operand, depth + 1)
                    if isinstance(inner, int | float) and not isinstance(inner, bool):
                        return -inner
                case _:
                    pass
        return COMPUTED


def _is_computed(value: Json) -> bool:
    if isinstance(value, dict):
        return WHOLE in value or any(map(_is_computed, value.values()))
    return isinstance(value, list) and any(map(_is_computed, value))
