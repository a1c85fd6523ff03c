"""Binds the arguments of a call to a tool's parameters, and names all that is wrong with them.

The guest binds a call's values before it sends them; the host binds those in a program's text.
"""

from __future__ import annotations

from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema.names import NAME_CHARS, PARAMETER_NAMES, alike, nearest
from bridge.guest.schema.parameters import read_parameters, synonyms
from bridge.guest.schema.schemas import ANYTHING, leaves, wanted_types
from bridge.guest.schema.validation import convert, filled, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from bridge.guest.schema.parameters import Parameter

_WHOLE = frozenset({"anyOf", "oneOf", "allOf", "minProperties", "maxProperties", "$ref"})
"""What an input schema can say of the arguments together."""


class Wrong:
    """What is wrong with a call: a rule's name, the argument, and the end of a sentence."""

    __slots__ = ("name", "rule", "text")

    def __init__(self, rule: str, name: str, text: str) -> None:
        self.rule = rule
        self.name = name
        self.text = text


class Parameters:
    """The parameters that an input schema describes."""

    def __init__(self, schema: Any, positional: Optional[int] = None) -> None:
        self.root = schema if isinstance(schema, dict) else {}
        self.all, self.open = read_parameters(schema)
        self.positional = len(self.all) if positional is None else positional
        own = {name: one for one in self.all for name in (one.alias, one.name)}
        self.synonyms = synonyms(self.all)
        self.by_name: Dict[str, Parameter] = {**self.synonyms, **own}
        self._whole = not _WHOLE.isdisjoint(self.root)
        self._fills = self._whole or bool(filled({}, self.root, self.root))

    def plain(self, value: Any, schema: Any, name: str) -> Any:
        return convert(value, schema, self.root)

    def whole(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the only value of a call, if a dict there has all arguments; else None."""
        if len(args) == 1 and not kwargs and self.all:
            first = wanted_types(leaves(self.all[0].schema, self.root))
            return args[0] if first.isdisjoint((ANYTHING, "object")) else None
        if len(kwargs) == 1 and not args and not self.open:
            ((name, value),) = kwargs.items()
            meant = PARAMETER_NAMES.get(name, name) == "arguments" and name not in self.by_name
            return value if meant else None
        return None

    def bind_all(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tuple[Dict[str, Any], List[Wrong]]:
        """Return the JSON arguments of a call, and what is wrong with them.

        None for an optional argument is left out, unless the tool takes null there. A required one
        that has a default is sent with that if it is left out. A dict of all arguments counts as
        keywords.
        """
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
            self._take(bound, parameter, value, wrong)
        for name, value in kwargs.items():
            found = self.by_name.get(name)
            if found is None and not self.open:
                # `perPage` for `per_page`.
                found = self.by_name.get(alike(name, [one.alias for one in self.all]))
            key, own = (name, name) if found is None else (found.name, found.alias)
            if key in given:
                wrong.append(Wrong("repeated-argument", name, "is given `%s` twice" % own))
            elif found is not None:
                self._take(bound, found, value, wrong)
            elif self.open:
                self._put(bound, key, value, True, wrong)
            else:
                unknown.append(name)
                continue
            given[key] = None
        self._names(given, unknown, wrong)
        if self._fills:
            bound = filled(bound, self.root, self.root)
        if self._whole and not wrong:
            said = problem(bound, self.root, self.root)
            if said is not None:
                said = "is given arguments that do not fit: %s" % said
                wrong.append(Wrong("wrong-value", "", said))
        return bound, wrong

    def _take(
        self, bound: Dict[str, Any], parameter: Parameter, value: Any, wrong: List[Wrong]
    ) -> None:
        name, schema = parameter.name, parameter.schema
        if not self._put(bound, name, value, schema, wrong):
            return
        text = problem(bound[name], schema, self.root, parameter.alias)
        if text is None:
            return
        if value is None and not parameter.required:
            del bound[name]
            return
        text = "is given a value that does not fit: %s%s" % (text, self.describe_value(value))
        text += self._describe_objects(parameter)
        wrong.append(Wrong("wrong-value", parameter.alias, text))

    def _put(
        self, bound: Dict[str, Any], name: str, value: Any, schema: Any, wrong: List[Wrong]
    ) -> bool:
        try:
            bound[name] = self.plain(value, schema, name)
        except TypeError as error:
            text = "is given a value that is not JSON: %s" % error
            wrong.append(Wrong("wrong-value", name, text))
            return False
        return True

    def describe_value(self, value: Any) -> str:
        return ""

    def _describe_objects(self, parameter: Parameter) -> str:
        from bridge.guest.schema.typetext import Names, TypeWriter

        writer = TypeWriter(self.root, "", Names(inline=600))
        text = writer.write(parameter.schema, (parameter.name,))
        return "; `%s` is %s" % (parameter.alias, text) if "{" in text else ""

    def _names(self, given: Mapping[str, Any], unknown: Sequence[str], wrong: List[Wrong]) -> None:
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
