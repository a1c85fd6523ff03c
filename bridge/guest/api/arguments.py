"""From a call's Python arguments to a tool's JSON arguments.

Owns the binding of positional and keyword arguments, their conversion and their check against the
schema, and the signature that `help()` shows. A mistake is an `ArgumentsError` before anything is
sent: a `TypeError`, and an `MCPError` as whatever else is wrong with a call.
"""

from __future__ import annotations

from bridge.guest.api.results import with_source_texts
from bridge.guest.api.values import ArgumentsError, Result, listed, nearest, to_argument
from bridge.guest.schema.parameters import read_parameters, synonyms
from bridge.guest.schema.validation import certain_types, convert, filled, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

    from bridge.guest.schema.parameters import Parameter
    from bridge.guest.schema.typetext import Names

MAX_SIGNATURE_CHARS = 1_500  # Of a signature in a message.
MAX_KEYS_CHARS = 200  # Of a result's keys in a message.

_WHOLE = frozenset({"anyOf", "oneOf", "allOf", "minProperties", "maxProperties", "$ref"})
"""What an input schema can say of the arguments together."""


_BUILTIN = frozenset({str, int, float, bool, type(None)})


class _LeftOut:
    """The default of an optional argument: nothing is sent, the server decides."""

    def __repr__(self) -> str:
        return "..."


LEFT_OUT = _LeftOut()


class _Text(str):
    """An annotation as text, which `help()` shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class Parameters:
    """A tool's arguments, as its input schema describes them."""

    def __init__(self, title: str, schema: Any, server: str = "", tool: str = "") -> None:
        self.title = title
        self._server, self._tool = server, tool
        self.root = schema if isinstance(schema, dict) else {}
        self.all, self.open_ended = read_parameters(schema)
        self._by_name = synonyms(self.all)
        self._by_name.update((parameter.alias, parameter) for parameter in self.all)
        self._by_name.update((parameter.name, parameter) for parameter in self.all)
        # By argument, what needs no check: most calls have plain strings where those are wanted.
        self._certain: Dict[str, Any] = {}
        self._whole = not _WHOLE.isdisjoint(self.root)
        self._fills = self._whole or bool(filled({}, self.root, self.root))

    def signature(
        self, tool: Optional[Mapping[str, Any]] = None, names: Optional[Names] = None
    ) -> inspect.Signature:
        """Return the signature for `help()`; with the type of the result if `tool` is given."""
        # Not above: all this is for who looks, and most programs only call.
        import inspect

        from bridge.guest.schema.signatures import Head

        head = Head({"inputSchema": self.root} if tool is None else tool, names)
        parameters: List[inspect.Parameter] = []
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        for argument in head.arguments:
            default: Any = inspect.Parameter.empty
            if argument.default is not None:
                default = argument.value if argument.has_default else LEFT_OUT
            parameters.append(
                inspect.Parameter(
                    argument.alias,
                    kinds[argument.keyword_only],
                    default=default,
                    annotation=_Text(argument.text),
                )
            )
        if head.rest:
            kind = inspect.Parameter.VAR_KEYWORD
            parameters.append(inspect.Parameter(head.rest, kind, annotation=_Text("Any")))
        returns: Any = inspect.Signature.empty
        if tool is not None:
            returns = _Text(head.typed.returns)
        return inspect.Signature(parameters, return_annotation=returns)

    def bind(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the JSON arguments for a call.

        None for an optional argument is left out, unless the tool takes null there. A required one
        that has a default is sent with that if it is left out.

        Raises:
            ArgumentsError: An argument is unknown, missing, given twice, no JSON or not what the
                tool takes.
        """
        given: Dict[str, Any] = {}
        bound: Dict[str, Any] = {}
        if len(args) > len(self.all):
            message = "takes at most %d positional arguments; %d were given"
            self._fail(message % (len(self.all), len(args)))
        for index, value in enumerate(args):
            given[self.all[index].name] = None
            self._take(bound, self.all[index], value)
        for name, value in kwargs.items():
            found = self._by_name.get(name)
            if found is None and not self.open_ended:
                near = nearest(name, [parameter.alias for parameter in self.all])
                self._fail("has no parameter %r.%s" % (name, near))
            key = name if found is None else found.name
            if key in given:
                self._fail("got more than one value for %r" % key)
            given[key] = None
            if found is None:
                bound[key] = to_argument(convert(value, True, self.root), self._place(key))
            else:
                self._take(bound, found, value)
        missing = [p.alias for p in self.all if p.required and p.name not in given]
        if missing:
            what = "argument" if len(missing) == 1 else "arguments"
            self._fail("is missing the %s %s" % (what, listed(map(repr, missing))))
        if self._fills:
            bound = filled(bound, self.root, self.root)
        if self._whole:
            wrong = problem(bound, self.root, self.root)
            if wrong is not None:
                self._fail("was given arguments that do not fit: %s" % wrong)
        return bound

    def _take(self, bound: Dict[str, Any], parameter: Parameter, value: Any) -> None:
        """Put an argument's JSON value in place."""
        name, schema = parameter.name, parameter.schema
        certain = self._certain.get(name)
        if certain is None:
            certain = self._certain[name] = certain_types(schema)
        if type(value) not in _BUILTIN:
            value = with_source_texts(value, schema, self.root)
        if type(value) in certain:
            bound[name] = to_argument(value, self._place(name)) if type(value) is int else value
            return
        plain = to_argument(convert(value, schema, self.root), self._place(name))
        wrong = problem(plain, schema, self.root, parameter.alias)
        if wrong is None:
            bound[name] = plain
        elif value is not None or parameter.required:
            keys = listed(map(repr, value))[:MAX_KEYS_CHARS] if isinstance(value, Result) else ""
            wrong += "; this result has the keys: %s" % keys if keys else ""
            self._fail("got a wrong argument: %s" % wrong)

    def _place(self, name: str) -> str:
        return "%s: argument %r" % (self.title, name)

    def _fail(self, problem: str) -> NoReturn:
        signature = str(self.signature())
        if len(signature) > MAX_SIGNATURE_CHARS:
            signature = signature[:MAX_SIGNATURE_CHARS] + "..."
        end = "" if problem.endswith(("?", ".")) else "."
        message = "%s() %s%s Signature: %s%s"
        said = message % (self.title, problem, end, self.title, signature)
        raise ArgumentsError(said, server=self._server, tool=self._tool, kind="arguments")
