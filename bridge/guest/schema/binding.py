"""Binds calls to a tool's parameters.

The guest binds a call's values before it sends them; the host binds the calls in a program's text.
"""

from __future__ import annotations

from collections import namedtuple

from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema import schemas
from bridge.guest.schema.names import NAME_CHARS, PARAMETER_NAMES, alike, nearest
from bridge.guest.schema.parameters import Parameter, read_parameters, synonyms
from bridge.guest.schema.validation import convert, fill_defaults, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

_WHOLE = frozenset({"anyOf", "oneOf", "allOf", "minProperties", "maxProperties", "$ref"})
"""What an input schema can say of the arguments together."""


Wrong = namedtuple("Wrong", "rule name text")
"""What is wrong with a call: a rule's name, the argument, and the end of a sentence."""


class Parameters:
    def __init__(self, schema: Any, positional: Optional[int] = None) -> None:
        self.root = schema if isinstance(schema, dict) else {}
        self.all, self.open = read_parameters(schema)
        self.positional = len(self.all) if positional is None else positional
        own = {name: one for one in self.all for name in (one.alias, one.name)}
        self.synonyms = synonyms(self.all)
        self.by_name: Dict[str, Parameter] = {**self.synonyms, **own}
        self._whole = not _WHOLE.isdisjoint(self.root)
        self._fills = self._whole or bool(fill_defaults({}, self.root, self.root))

    def plain(self, value: Any, schema: Any, name: str) -> Any:
        return convert(value, schema, self.root)

    def whole(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the only value of a call, if a dict there has all arguments; else None."""
        if len(args) == 1 and not kwargs and self.all:
            first = schemas.wanted_types(schemas.leaves(self.all[0].schema, self.root))
            return args[0] if first.isdisjoint((schemas.ANYTHING, "object")) else None
        if len(kwargs) == 1 and not args and not self.open:
            ((name, value),) = kwargs.items()
            meant = PARAMETER_NAMES.get(name, name) == "arguments" and name not in self.by_name
            return value if meant else None
        return None

    def bind_all(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tuple[Dict[str, Any], List[Wrong]]:
        """Return the JSON arguments of a call, and what is wrong with them."""
        whole = self.whole(args, kwargs)
        if isinstance(whole, dict) and (whole or not args):
            if self.by_name.keys() >= whole.keys():
                args, kwargs = (), whole
            elif WHOLE in whole and not args:
                kwargs = {}
        bound: Dict[str, Any] = {}
        wrong: List[Wrong] = []
        given: Dict[str, None] = {}
        unknown: List[str] = []
        if len(args) > self.positional:
            text = "takes at most %d positional arguments; %d are given"
            return {}, [Wrong("too-many-arguments", "", text % (self.positional, len(args)))]
        for parameter, value in zip(self.all[: self.positional], args):  # noqa: B905 - not in 3.9
            given[parameter.name] = None
            self._bind(bound, parameter, value, wrong)
        for name, value in kwargs.items():
            found = self.by_name.get(name)
            if found is None and not self.open:
                # `perPage` for `per_page`.
                found = self.by_name.get(alike(name, [one.alias for one in self.all]))
            key, own = (name, name) if found is None else (found.name, found.alias)
            if key in given:
                wrong.append(Wrong("repeated-argument", name, "is given `%s` twice" % own))
            elif found is not None or self.open:
                self._bind(bound, found or Parameter(name, name, {}, False), value, wrong)
            else:
                unknown.append(name)
                continue
            given[key] = None
        self._check_names(given, unknown, wrong)
        if self._fills:
            bound = fill_defaults(bound, self.root, self.root)
        if self._whole and not wrong:
            said = problem(bound, self.root, self.root)
            if said is not None:
                said = "is given arguments that do not fit: %s" % said
                wrong.append(Wrong("wrong-value", "", said))
        return bound, wrong

    def _bind(
        self, bound: Dict[str, Any], parameter: Parameter, value: Any, wrong: List[Wrong]
    ) -> None:
        name, schema = parameter.name, parameter.schema
        try:
            bound[name] = self.plain(value, schema, name)
        except TypeError as error:
            said = "is given a value that is not JSON: %s" % error
            wrong.append(Wrong("wrong-value", name, said))
            return
        text = problem(bound[name], schema, self.root, parameter.alias)
        if text is None:
            return
        if value is None and not parameter.required:
            del bound[name]
            return
        from bridge.guest.schema.typetext import Names, TypeWriter

        text = "is given a value that does not fit: %s%s" % (text, self.describe_value(value))
        kind = TypeWriter(self.root, "", Names(inline=600)).write(schema, (name,))
        text += "; `%s` is %s" % (parameter.alias, kind) if "{" in kind else ""
        wrong.append(Wrong("wrong-value", parameter.alias, text))

    def describe_value(self, value: Any) -> str:
        return ""

    def _check_names(
        self, given: Mapping[str, Any], unknown: Sequence[str], wrong: List[Wrong]
    ) -> None:
        missing = [one.alias for one in self.all if one.required and one.name not in given]
        free = [one.alias for one in self.all if one.name not in given]
        for name in unknown:
            near = nearest(name, free) or (missing[0] if len(missing) == 1 else "")
            hint = "; did you mean `%s`?" % near if near else ""
            text = "has no parameter `%s`%s" % (name[:NAME_CHARS], hint)
            wrong.append(Wrong("unknown-argument", name, text))
            missing = [one for one in missing if one != near]
        if missing:
            what = "argument" if len(missing) == 1 else "arguments"
            listed = ", ".join("`%s`" % name for name in missing[:12])
            text = "is missing the required %s %s" % (what, listed)
            wrong.append(Wrong("missing-argument", "", text))
