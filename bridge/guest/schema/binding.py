"""A tool's input schema as the parameters of a Python function, and the binding of calls to them.

Owns order, Python names and defaults of parameters. The guest binds a call's values before it sends
them; the host binds those in a program's text, and writes stubs from the same reading.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import namedtuple

from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema import schemas
from bridge.guest.schema.names import NAME_CHARS, PARAMETER_NAMES, alike, nearest
from bridge.guest.schema.validation import convert, fill_defaults, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

_NAME = r"[`'\"]?[A-Za-z_]\w*[`'\"]?"
_SYNONYMS = re.compile(
    r"\b(?:alias(?:es)?:\s*|accepts?\s+(?:the\s+)?alias(?:es)?\s+|alias(?:es)?\s+(?=[`'\"]))"
    r"(%s(?:(?:,\s*(?:and|or)\s+|,\s*|\s+(?:and|or)\s+|\s*/\s*)%s)*)\s*(?:[.;)\n]|$)"
    % (_NAME, _NAME),
    re.IGNORECASE,
)
"""How a description names what else its argument may be called, as in "Aliases: dir and path."."""


class Parameter:
    """One argument of a tool.

    Attributes:
        name, alias: Its own name, and the Python name it goes by.
        text: Its type; `Head` sets it and what follows.
        default: As text; None for one that has to be given.
        has_default: Whether `value` is its default; it is left out of the call otherwise.
        keyword_only: Whether Python's syntax allows it by keyword only. By position it is accepted
            all the same, in the order of the schema.
    """

    text = ""
    default: Optional[str] = None
    has_default = keyword_only = False
    value: Any = None

    def __init__(self, name: str, alias: str, schema: Any, required: bool) -> None:
        self.name = name
        self.alias = alias
        self.schema = schemas.as_mapping(schema)
        self.required = required


def synonyms(parameters: Sequence[Parameter]) -> Dict[str, Parameter]:
    """Return the other names that arguments have by the words of their own descriptions.

    A name that is an argument's own, or several arguments', is none.
    """
    found: Dict[str, Parameter] = {}
    taken = {name for parameter in parameters for name in (parameter.alias, parameter.name)}
    for parameter in parameters:
        text = parameter.schema.get("description")
        if isinstance(text, str) and "alias" in text.casefold():
            listed = " ".join(match[1] for match in _SYNONYMS.finditer(text))
            for name in {*re.findall(r"\w+", listed)} - {"and", "or"} - taken:
                taken.add(name) if name in found else found.setdefault(name, parameter)
    return {name: parameter for name, parameter in found.items() if name not in taken}


_DEFAULTS = frozenset({"default", "$ref", "allOf", "anyOf", "oneOf"})


def read_parameters(schema: Any) -> Tuple[List[Parameter], bool]:
    """Return a tool's arguments in the schema's order, and whether it takes others too."""
    properties: Dict[str, Any] = {}
    required: Dict[str, None] = {}
    reader = _Reader(schema if isinstance(schema, dict) else {})
    open_ended = reader.gather(reader.root, properties, required, 0) or reader.left < 0
    for name in required:
        properties.setdefault(name, {})
    details = (schemas.as_mapping(properties.get(name)) for name in required)
    some = not all(_DEFAULTS.isdisjoint(detail) for detail in details)
    defaults = fill_defaults({}, reader.root, reader.root) if some else {}
    found: List[Parameter] = []
    taken = set(properties)
    for name, detail in properties.items():
        alias = python_name(name, taken)
        taken.add(alias)
        found.append(Parameter(name, alias, detail, name in required and name not in defaults))
    return found, open_ended


def default_of(parameter: Parameter, root: Any) -> Tuple[bool, Any]:
    """Return whether an optional argument has a default worth showing, and which.

    It is a short scalar that fits the argument's own schema, or None.
    """
    found = schemas.leaves(parameter.schema, root)
    for schema in found:
        if "default" in schema:
            own = {key: part for key, part in schema.items() if key != "default"}
            value = schemas.convert(schema["default"], own, root)
            if value is None:
                return True, None
            short = isinstance(value, str) and len(value) <= 40 and len(repr(value)) <= 42
            short |= isinstance(value, float) and math.isfinite(value)
            short |= isinstance(value, int) and abs(value) < 2**63
            # What only looks like an object, having properties, may be given anything.
            wanted = schemas.wanted_types(found) - {schemas.ANYTHING}
            fits = not wanted or any(schemas.fits_type(value, one) for one in wanted)
            shown = short and fits and problem(value, own, root) is None
            return shown, value if shown else None
    return False, None


def python_name(name: str, taken: Collection[str]) -> str:
    """Return `name` if Python can write it as a keyword argument, else the nearest that it can."""
    plain = name
    if not name.isascii():
        import unicodedata

        # Python reads names so.
        plain = unicodedata.normalize("NFKC", name)
    if plain == name and name.isidentifier() and not keyword.iskeyword(name):
        return name
    alias = re.sub(r"\W", "_", plain) or "_"
    if alias[0].isdigit() or not alias.isidentifier():
        alias = "_" + re.sub(r"[^0-9A-Za-z_]", "_", alias)
    if keyword.iskeyword(alias):
        alias += "_"
    for _ in range(8):
        if alias not in taken:
            return alias
        alias += "_"
    # A server may send thousands of names with one alias: doubling keeps the steps few.
    number = len(taken) + 1
    while "%s%d" % (alias, number) in taken:
        number *= 2
    return "%s%d" % (alias, number)


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.left = 1_000  # A server may send any number of schemas.

    def gather(
        self, schema: Any, properties: Dict[str, Any], required: Dict[str, None], depth: int
    ) -> bool:
        """Collect what a schema names; return whether it admits other arguments."""
        self.left -= 1
        if not isinstance(schema, dict) or depth > 8 or self.left < 0:
            return True
        own = schema.get("properties")
        names = schema.get("required")
        if isinstance(own, dict):
            properties.update((name, own[name]) for name in own if name not in properties)
        if isinstance(names, list):
            required.update((name, None) for name in names if isinstance(name, str))
        more = schema.get("additionalProperties")
        open_ended = bool(schema.get("patternProperties")) or more not in (None, False)
        parts = [(part, required) for part in schemas.as_list(schema.get("allOf"))]
        # What one branch requires, another may not know.
        parts += [
            (part, {}) for key in ("anyOf", "oneOf") for part in schemas.as_list(schema.get(key))
        ]
        if "$ref" in schema:
            known, target = schemas.pointed_at(schema["$ref"], self.root)
            parts += [(target, required)] if known else []
        for part, mandatory in parts:
            open_ended = self.gather(part, properties, mandatory, depth + 1) or open_ended
        if not (isinstance(own, dict) or names or parts or more is False):
            # A schema that names nothing says nothing about what is wrong.
            return True
        return open_ended


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
            wrong.append(
                Wrong("wrong-value", name, "is given a value that is not JSON: %s" % error)
            )
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
