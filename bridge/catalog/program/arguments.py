"""Reads the literal arguments of calls, and compares them with the callee's parameters. Pure.

A value is read only if the program writes it as a literal, and converted as the guest would convert
it. Parameters, their order and validation come from the guest's own code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.tables import BY_NAME, Helper
from bridge.guest.schema.names import PARAMETER_NAMES
from bridge.guest.schema.parameters import are_arguments, read_parameters, synonyms
from bridge.guest.schema.validation import argument_problem, convert, filled, problem
from bridge.model import Json
from bridge.text import valid_text

MAX_DEPTH = 8
"""Nesting of dicts and lists of which only parts are literals."""

MAX_LITERAL_NODES = 2000
"""Nodes of one literal argument that are read."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter: its own name, its Python name, and its schema."""

    name: str
    alias: str
    required: bool = False
    schema: Json = True


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of a tool or a helper.

    Attributes:
        all: Positional ones first, in their order.
        positional: Number of parameters that may be passed by position.
        open: Whether other names are parameters, too.
        root: The input schema.
        synonyms: Names that parameters' descriptions give them, too, to their own.
    """

    all: tuple[Parameter, ...]
    positional: int
    open: bool
    root: Json
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Parameter | None:
        """Return the parameter with a name, its own, Python's or a synonym."""
        name = self.synonyms.get(name, name)
        return next((one for one in self.all if name in (one.alias, one.name)), None)


def tool_parameters(schema: Json) -> Parameters:
    """Return a tool's parameters, from its input schema."""
    found, is_open = read_parameters(schema)
    root = schema if isinstance(schema, Mapping) else {}
    listed = tuple(
        Parameter(name=one.name, alias=one.alias, required=one.required, schema=one.schema)
        for one in found
    )
    also = {name: parameter.name for name, parameter in synonyms(found).items()}
    return Parameters(all=listed, positional=len(listed), open=is_open, root=root, synonyms=also)


def helper_parameters(helper: Helper) -> Parameters:
    """Return a helper's parameters."""
    names = (*helper.positional, *helper.keywords)
    listed = tuple(
        Parameter(name=name, alias=name, required=index < helper.required)
        for index, name in enumerate(names)
    )
    also = PARAMETER_NAMES if helper.name in BY_NAME else {}
    return Parameters(
        all=listed, positional=len(helper.positional), open=helper.open, root={}, synonyms=also
    )


def by_name(node: ast.Call, given: Mapping[str, str]) -> dict[str, ast.expr]:
    """Return the server, tool and arguments of a `call_tool`, however the program gives them.

    Args:
        given: What texts that name both a server and a tool mean; see `NameTable.given`.
    """
    bound = dict(zip(("server", "tool", "arguments"), node.args, strict=False))
    for keyword in node.keywords:
        bound[PARAMETER_NAMES.get(str(keyword.arg), str(keyword.arg))] = keyword.value
    if isinstance(bound.get("tool"), ast.Dict) and "arguments" not in bound:
        bound["arguments"] = bound.pop("tool")
    whole = (
        bound.get("server", bound.get("tool"))
        if len(bound.keys() & {"server", "tool"}) < 2
        else None
    )
    path = given.get(str(whole.value), "") if isinstance(whole, ast.Constant) else ""
    if "." in path:
        server, _, tool = path.partition(".")
        bound.update(server=ast.Constant(server), tool=ast.Constant(tool))
    return bound


def as_keywords(
    node: ast.Call, parameters: Parameters, survey: Survey, context: Context
) -> tuple[ast.Call, bool]:
    """Return a call with the items of its only argument, a dict of all arguments, as keywords.

    Returns:
        The call, and whether its only argument may be such a dict, computed by the program.
    """
    if len(node.args) != 1 or node.keywords:
        return node, False
    value: object = node.args[0]
    if isinstance(value, ast.Name):
        owner = survey.owner(value.id, context)
        bound = owner.bound[value.id] if owner is not None else ()
        value = bound[0][0] if len(bound) == 1 else None
    names = {n for one in parameters.all for n in (one.name, one.alias)} | set(parameters.synonyms)
    if not isinstance(value, ast.Dict):
        literal = isinstance(value, ast.Constant | ast.JoinedStr | ast.List | ast.Starred)
        return node, not literal and are_arguments((), names, parameters.all, parameters.root)
    keys = [getattr(key, "value", None) for key in value.keys]
    if not are_arguments(keys, names, parameters.all, parameters.root):
        return node, False
    pairs = zip(keys, value.values, strict=True)
    keywords = [ast.copy_location(ast.keyword(arg=key, value=item), item) for key, item in pairs]
    return ast.copy_location(ast.Call(func=node.func, args=[], keywords=keywords), node), False


def literal_problem(
    node: ast.expr, parameter: Parameter, root: Json
) -> tuple[ast.expr, str] | None:
    """Return the wrong node of a literal argument and the problem; None if none is found."""
    known, value = written_out(node)
    if not known:
        return _partly(node, parameter.schema, root, parameter.alias, 0)
    schema = parameter.schema
    plain = convert(value, schema, root)
    found = argument_problem(plain, schema, root, parameter.alias, parameter.required)
    return None if found is None else (node, found)


def _partly(
    node: ast.expr, schema: Json, root: Json, where: str, depth: int
) -> tuple[ast.expr, str] | None:
    """Check the literal parts of a dict or a list that is no literal as a whole."""
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
    for value, part, path in parts[:MAX_LITERAL_NODES]:
        known, plain = written_out(value)
        if not known:
            found = _partly(value, part, root, path, depth + 1)
            if found is not None:
                return found
            continue
        wrong = problem(convert(plain, part, root), part, root, path)
        if wrong is not None:
            return value, wrong
    return None


def written_out(node: ast.expr) -> tuple[bool, Json]:
    """Return whether an expression is a literal, and its value."""
    reader = _Literals()
    try:
        return True, reader.value(node, 0)
    except ValueError:
        return False, None


class _Literals:
    """Evaluates a literal; raises ValueError for anything else."""

    def __init__(self) -> None:
        self._left = MAX_LITERAL_NODES

    def value(self, node: ast.expr, depth: int) -> Json:
        self._left -= 1
        if self._left >= 0 and depth <= 64:
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


# --- the arguments of one call -------------------------------------------------------------------


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


class ArgumentReader:
    """Reads the arguments of one program's calls."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def bound(self, node: ast.Call, parameters: Parameters, context: Context) -> CallArguments:
        """Return the arguments of a call of a tool."""
        node, may_be_all = as_keywords(node, parameters, self._survey, context)
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        given = CallArguments(open=starred or may_be_all)
        if not given.open:
            for item, parameter in zip(node.args, parameters.all, strict=False):
                self.take(given, parameter.name, item, parameters, context)
        self.by_keyword(given, node.keywords, parameters, context)
        if not given.open:
            # The guest sends the defaults of those that are left out.
            computed = dict.fromkeys(given.unseen)
            whole = filled({**computed, **given.seen}, parameters.root, parameters.root)
            given.seen = {name: value for name, value in whole.items() if name not in computed}
        return given

    def by_keyword(
        self,
        given: CallArguments,
        keywords: Sequence[ast.keyword],
        parameters: Parameters | None,
        context: Context,
    ) -> None:
        """Add the keyword arguments."""
        for keyword in keywords:
            if keyword.arg is not None:
                found = parameters.find(keyword.arg) if parameters is not None else None
                name = keyword.arg if found is None else found.name
                self.take(given, name, keyword.value, parameters, context)
            elif isinstance(keyword.value, ast.Dict):
                self.by_dict(given, keyword.value, context)
            else:
                given.open = True

    def by_dict(self, given: CallArguments, node: ast.Dict, context: Context) -> None:
        """Add the items of a dict as arguments."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.take(given, key.value, value, None, context)
            else:
                given.open = True

    def take(
        self,
        given: CallArguments,
        name: str,
        node: ast.expr,
        parameters: Parameters | None,
        context: Context,
    ) -> None:
        """Add one argument, converted as the guest would convert it."""
        known, value = self.value(node, context)
        name = valid_text(name)
        if not known:
            given.unseen.append(name)
            return
        parameter = None if parameters is None else parameters.find(name)
        if parameter is not None and parameters is not None:
            value = convert(value, parameter.schema, parameters.root)
            wrong = value is None and problem(value, parameter.schema, parameters.root, name)
            if wrong and not parameter.required:
                # The guest drops a None that an optional parameter does not accept.
                return
        given.seen[name] = value

    def value(self, node: ast.expr, context: Context) -> tuple[bool, Json]:
        """Return whether an expression is a literal or a constant's name, and its value."""
        if not isinstance(node, ast.Name):
            return written_out(node)
        owner = self._survey.owner(node.id, context)
        if owner is None or self._survey.tricky or node.id in self._survey.shared:
            return False, None
        # A name that is bound once, to a constant.
        bound = owner.bound[node.id]
        value = bound[0][0] if len(bound) == 1 else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
            return True, value.value
        return False, None
