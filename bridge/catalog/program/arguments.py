"""Reads the calls in a program's text: what is called, and with which arguments. Pure.

What the program computes is `COMPUTED`, which fits every schema. The guest's own code binds the
values to parameters, converts and checks them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import Symbol, SymbolResolver
from bridge.catalog.program.tables import BY_NAME, Helper
from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema.binding import Parameters
from bridge.guest.schema.names import split_target
from bridge.model import Json

COMPUTED: Json = {WHOLE: ""}
"""Stands for a value that the text does not show."""


def helper_parameters(helper: Helper) -> Parameters:
    names = (*helper.positional, *helper.keywords)
    schema = {
        "properties": {name: {} for name in names},
        "required": list(names[: helper.required]),
        "additionalProperties": helper.open,
    }
    return Parameters(schema, len(helper.positional))


@dataclass(frozen=True, kw_only=True)
class CallText:
    """What the text of a call shows.

    Attributes:
        args, kwargs: Values by position and by name; `args` is empty if some are unpacked.
        starred, unpacked: Whether lists and dicts are unpacked that the text does not show.
        scalar: Whether the first argument is certainly no dict.
    """

    args: Sequence[Json] = ()
    kwargs: Mapping[str, Json]
    starred: bool = False
    unpacked: bool = False
    scalar: bool = False

    def may_be_all(self, parameters: Parameters) -> bool:
        """Whether there are arguments that the text does not show: unpacked, or in one dict."""
        whole = parameters.whole(self.args, self.kwargs) == COMPUTED and not self.scalar
        return self.starred or self.unpacked or whole


@dataclass(frozen=True, kw_only=True)
class HelperCall:
    """A call of a helper for a server.

    Attributes:
        values: The arguments by the helper's own names.
        server: The server; None if it is computed, or there is none of that name.
        tool: The tool's name, if the helper takes one and the text shows it.
        entry: The tool of that name.
        given: The tool's arguments; None if the text does not show a dict.
    """

    values: Mapping[str, Json]
    server: ServerEntry | None = None
    tool: str | None = None
    entry: ToolEntry | None = None
    given: CallText | None = None


class CallReader:
    """Reads the calls of one program."""

    def __init__(self, survey: Survey, symbols: SymbolResolver) -> None:
        self._survey = survey
        self._symbols = symbols
        self._parameters: dict[int, Parameters] = {}

    def parameters(self, entry: ToolEntry) -> Parameters:
        if id(entry) not in self._parameters:
            self._parameters[id(entry)] = Parameters(entry.tool.input_schema)
        return self._parameters[id(entry)]

    def text(self, node: ast.Call, context: Context) -> CallText:
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
        values: list[object] = [*node.args[:1]]
        if node.args and isinstance(first := node.args[0], ast.Name):
            values = [value for value, _ in self._survey.bound(first.id, context)] or values
        scalar = bool(values) and all(isinstance(v, ast.Constant | ast.JoinedStr) for v in values)
        return CallText(args=args, kwargs=kwargs, starred=starred, unpacked=unpacked, scalar=scalar)

    def helper(self, node: ast.Call, context: Context, symbol: Symbol) -> HelperCall | None:
        """Return a call of a helper; None if its arguments are unpacked."""
        helper, text = symbol.helper, self.text(node, context)
        assert helper is not None
        if text.starred or text.unpacked:
            return None
        values = dict(zip(helper.positional, text.args, strict=False))
        by_name = helper.name in BY_NAME
        if by_name:
            values = self._target(dict.fromkeys(helper.positional) | values, text.kwargs)
        else:
            values.update(text.kwargs)
        if by_name and symbol.server is None and len(values.keys() & {"server", "tool"}) == 1:
            # One text may name both; see `NameTable.resolve`.
            whole = values.get("server", values.get("tool"))
            path = self._survey.given.get(whole, "") if isinstance(whole, str) else ""
            if "." in path:
                values["server"], _, values["tool"] = path.partition(".")
        server, name, tool = symbol.server, values.get("server"), values.get("tool")
        if server is None and isinstance(name, str):
            server = self._symbols.named_server(name)
        if not by_name or server is None or not isinstance(tool, str):
            return HelperCall(values=values, server=server)
        given = values.get("arguments") or {}
        shown = isinstance(given, dict) and given != COMPUTED
        return HelperCall(
            values=values,
            server=server,
            tool=tool,
            entry=server.named(tool),
            given=CallText(kwargs=given) if shown else None,
        )

    def _target(self, target: dict[str, Json], named: Mapping[str, Json]) -> dict[str, Json]:
        own = split_target(target, named)
        if isinstance(tool := target["tool"], dict) and tool != COMPUTED:
            target["tool"], target["arguments"] = None, tool
        if own and target["arguments"] is None:
            target["arguments"] = own
        return {name: value for name, value in target.items() if value is not None}

    def value(self, node: ast.expr, context: Context) -> Json:
        """Return the value of an expression; `COMPUTED` for what the text does not show of it.

        A name counts that is bound once, to a constant.
        """
        if isinstance(node, ast.Name):
            bound = self._survey.bound(node.id, context)
            value = bound[0][0] if len(bound) == 1 else None
            fixed = not self._survey.tricky and node.id not in self._survey.shared
            if not fixed or not isinstance(value, ast.Constant):
                return COMPUTED
            node = value
        return _literal(node)


def _literal(node: ast.expr) -> Json:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.List() | ast.Tuple():
            starred = any(isinstance(item, ast.Starred) for item in node.elts)
            return COMPUTED if starred else [_literal(item) for item in node.elts]
        case ast.Dict():
            keys = [getattr(key, "value", None) for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return dict(zip(keys, map(_literal, node.values), strict=True))
        case ast.UnaryOp(op=ast.USub()):
            inner = _literal(node.operand)
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                return -inner
        case _:
            pass
    return COMPUTED


def is_computed(value: Json) -> bool:
    """Return whether the text does not show a value, or a part of it."""
    if isinstance(value, dict):
        return WHOLE in value or any(map(is_computed, value.values()))
    return isinstance(value, list) and any(map(is_computed, value))
