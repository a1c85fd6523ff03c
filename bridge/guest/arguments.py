"""From a call's Python arguments to a tool's JSON arguments.

Owns the reading of an input schema into parameters, the signature that `help()` shows, and the
binding of positional and keyword arguments. A mistake is a `TypeError` before anything is sent.
"""

from __future__ import annotations

import inspect
import keyword
import re
import typing
from typing import Any, Dict, List, Mapping, Optional, Tuple

from bridge.guest.values import listed, nearest, to_argument

MAX_SCHEMA_DEPTH = 8
"""How far references and combinations are followed for the sake of parameter names."""

_SIMPLE: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "array": typing.List[Any],
    "object": typing.Dict[str, Any],
}


class _LeftOut:
    """The default of an optional argument: nothing is sent, the server decides."""

    def __repr__(self) -> str:
        return "..."


LEFT_OUT = _LeftOut()


class Parameter:
    """One argument of a tool: its own name, and the Python name it goes by."""

    def __init__(self, name: str, alias: str, schema: Any, required: bool) -> None:
        self.name = name
        self.alias = alias
        self.schema: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        self.required = required


class Parameters:
    """A tool's arguments, as its input schema describes them."""

    def __init__(self, title: str, schema: Any) -> None:
        self.title = title
        root = schema if isinstance(schema, dict) else {}
        properties: Dict[str, Any] = {}
        required: Dict[str, None] = {}
        open_ended = _gather(root, root, properties, required, 0)
        for name in required:
            properties.setdefault(name, {})
        self.open_ended = open_ended
        self.all: List[Parameter] = []
        taken = set(properties)
        for name, detail in properties.items():
            alias = _python_name(name, taken)
            taken.add(alias)
            self.all.append(Parameter(name, alias, detail, name in required))
        self._by_name = {parameter.alias: parameter for parameter in self.all}
        self._by_name.update((parameter.name, parameter) for parameter in self.all)

    def signature(self) -> inspect.Signature:
        """Return the signature for `help()`: schema order, keyword-only once that is no Python."""
        parameters: List[inspect.Parameter] = []
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        optional_seen = False
        for parameter in self.all:
            if parameter.required and optional_seen:
                # Still accepted by position; only Python's own syntax cannot say so.
                kind = inspect.Parameter.KEYWORD_ONLY
            optional_seen = optional_seen or not parameter.required
            default: Any = inspect.Parameter.empty
            if not parameter.required:
                default = parameter.schema.get("default", LEFT_OUT)
            parameters.append(
                inspect.Parameter(
                    parameter.alias,
                    kind,
                    default=default,
                    annotation=annotation(parameter.schema),
                )
            )
        if self.open_ended:
            rest = _python_name("arguments", {parameter.alias for parameter in self.all})
            parameters.append(inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD))
        return inspect.Signature(parameters)

    def bind(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the JSON arguments for a call.

        Raises:
            TypeError: An argument is unknown, missing, given twice or no JSON.
        """
        bound: Dict[str, Any] = {}
        if len(args) > len(self.all):
            message = "takes at most %d positional arguments; %d were given"
            self._fail(message % (len(self.all), len(args)))
        for index, value in enumerate(args):
            parameter = self.all[index]
            bound[parameter.name] = self._value(parameter.name, value)
        for name, value in kwargs.items():
            found = self._by_name.get(name)
            if found is None and not self.open_ended:
                self._fail("has no parameter %r.%s" % (name, self._near(name)))
            key = name if found is None else found.name
            if key in bound:
                self._fail("got more than one value for %r" % key)
            bound[key] = self._value(name, value)
        missing = [p.alias for p in self.all if p.required and p.name not in bound]
        if missing:
            what = "argument" if len(missing) == 1 else "arguments"
            self._fail("is missing the %s %s" % (what, listed(map(repr, missing))))
        return bound

    def _value(self, name: str, value: Any) -> Any:
        return to_argument(value, "%s: argument %r" % (self.title, name))

    def _near(self, name: str) -> str:
        return nearest(name, [parameter.alias for parameter in self.all])

    def _fail(self, problem: str) -> typing.NoReturn:
        signature = "%s%s" % (self.title, self.signature())
        message = "%s() %s%s Signature: %s" % (
            self.title,
            problem,
            "" if problem.endswith(("?", ".")) else ".",
            signature,
        )
        raise TypeError(message)


def annotation(schema: Any, depth: int = 0) -> Any:
    """Return the Python type that a schema means, as far as one line can say it."""
    if not isinstance(schema, dict) or depth > 2:
        return Any
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices):
        return typing.Literal[tuple(choices[:20])] if len(choices) <= 20 else str
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([annotation({**schema, "type": one}, depth + 1) for one in kind])
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            return _union([annotation(branch, depth + 1) for branch in branches])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return typing.List[annotation(schema["items"], depth + 1)]  # type: ignore[misc]
    return _SIMPLE.get(kind, Any) if isinstance(kind, str) else Any


def _union(members: List[Any]) -> Any:
    return typing.Union[tuple(members)] if members and Any not in members else Any


def _gather(
    schema: Any,
    root: Mapping[str, Any],
    properties: Dict[str, Any],
    required: Dict[str, None],
    depth: int,
) -> bool:
    """Collect the arguments that a schema names; return whether it admits others."""
    if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH:
        return True
    own = schema.get("properties")
    names = schema.get("required")
    if isinstance(own, dict):
        for name, detail in own.items():
            properties.setdefault(name, detail)
    if isinstance(names, list):
        required.update((name, None) for name in names if isinstance(name, str))
    more = schema.get("additionalProperties")
    open_ended = bool(schema.get("patternProperties")) or (more is not None and more is not False)
    combined = False
    for part in _list(schema.get("allOf")):
        combined = True
        open_ended = _gather(part, root, properties, required, depth + 1) or open_ended
    for key in ("anyOf", "oneOf"):
        for part in _list(schema.get(key)):
            combined = True
            # What one branch requires, another may not know.
            open_ended = _gather(part, root, properties, {}, depth + 1) or open_ended
    target = _resolve(schema.get("$ref"), root)
    if target is not None:
        combined = True
        open_ended = _gather(target, root, properties, required, depth + 1) or open_ended
    if not (isinstance(own, dict) or names or combined or more is False):
        # A schema that names nothing says nothing about what is wrong.
        return True
    return open_ended


def _resolve(reference: Any, root: Mapping[str, Any]) -> Optional[Any]:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference[2:].split("/"):
        if not isinstance(target, dict):
            return None
        target = target.get(part.replace("~1", "/").replace("~0", "~"))
    return target


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def _python_name(name: str, taken: Any) -> str:
    """Return `name` if Python can write it as a keyword argument, else the nearest that it can."""
    if name.isidentifier() and not keyword.iskeyword(name):
        return name
    alias = re.sub(r"\W", "_", name) or "_"
    if alias[0].isdigit() or not alias.isidentifier():
        alias = "_" + re.sub(r"[^0-9A-Za-z_]", "_", alias)
    if keyword.iskeyword(alias):
        alias += "_"
    while alias in taken:
        alias += "_"
    return alias
