"""Converts Python arguments of a call to JSON, and makes the signature for `help()`.

A wrong argument raises `ArgumentsError` before anything is sent. It is a `TypeError`, and an
`MCPError` like every failed call.
"""

from __future__ import annotations

from bridge.guest.api.results import with_source_texts
from bridge.guest.api.values import ArgumentsError, Result, list_names, to_json
from bridge.guest.schema import binding
from bridge.guest.schema.validation import convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    from bridge.guest.schema.typetext import Head, Names


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


LEFT_OUT = _Text("...")  # The default of an optional argument: unsent, so the server decides.


def make_signature(head: Head, with_result: bool = True) -> inspect.Signature:
    # Imported here because most programs call tools without `help()`.
    import inspect

    parameters: List[inspect.Parameter] = []
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    for argument in head.arguments:
        default: Any = inspect.Parameter.empty
        if argument.default is not None:
            default = argument.value if argument.has_default else LEFT_OUT
        kind, text = kinds[argument.keyword_only], _Text(argument.text)
        parameters.append(inspect.Parameter(argument.alias, kind, default=default, annotation=text))
    if head.rest:
        rest = inspect.Parameter.VAR_KEYWORD
        parameters.append(inspect.Parameter(head.rest, rest, annotation=_Text("Any")))
    returns: Any = _Text(head.returns) if with_result else inspect.Signature.empty
    return inspect.Signature(parameters, return_annotation=returns)


class BoundParameters(binding.Parameters):
    def __init__(self, title: str, schema: Any, server: str = "", tool: str = "") -> None:
        super().__init__(schema)
        self.title = title
        self._server, self._tool = server, tool

    def signature(self, names: Optional[Names] = None) -> inspect.Signature:
        from bridge.guest.schema.typetext import Head

        return make_signature(Head({"inputSchema": self.root}, names), with_result=False)

    def bind(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the JSON arguments for a call, or raise `ArgumentsError`; see `bind_all`."""
        bound, wrong = self.bind_all(args, kwargs)
        if not wrong:
            return bound
        from bridge.guest.schema.typetext import MAX_INLINE_CHARS, Names

        signature = str(self.signature(names=Names(inline=MAX_INLINE_CHARS)))
        if len(signature) > 1_500:
            signature = signature[:1_500] + "..."
        ends = (one.text + ("" if one.text.endswith("?") else ".") for one in wrong)
        message = "%s() %s Signature: %s%s"
        said = message % (self.title, " It ".join(ends), self.title, signature)
        raise ArgumentsError(said, server=self._server, tool=self._tool, kind="arguments")

    def plain(self, value: Any, schema: Any, name: str) -> Any:
        """Return an argument as JSON data; raise `ArgumentsError` if JSON cannot hold it."""
        value = convert(with_source_texts(value, schema, self.root), schema, self.root)
        return to_json(value, name)

    def describe_value(self, value: Any) -> str:
        keys = list_names(map(repr, value))[:200] if isinstance(value, Result) else ""
        return "; this result has the keys: %s" % keys if keys else ""
