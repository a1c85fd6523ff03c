"""Reads a tool's input schema as the parameters of a Python function."""

from __future__ import annotations

import keyword
import math
import re

from bridge.guest.schema import schemas
from bridge.guest.schema.validation import fill_defaults, problem

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
    """One argument of a tool. `Head` sets its attributes with defaults."""

    text = ""  # Its type.
    default: Optional[str] = None  # As text; None for one that has to be given.
    has_default = False  # Whether `value` is its default; it is left out of the call otherwise.
    # Whether Python's syntax allows it by keyword only. By position it is accepted all the same, in
    # the order of the schema.
    keyword_only = False
    value: Any = None

    def __init__(self, name: str, alias: str, schema: Any, required: bool) -> None:
        self.name = name
        self.alias = alias  # The Python name it goes by.
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
        for key in ("anyOf", "oneOf"):
            parts += [(part, {}) for part in schemas.as_list(schema.get(key))]
        if "$ref" in schema:
            known, target = schemas.pointed_at(schema["$ref"], self.root)
            parts += [(target, required)] if known else []
        for part, mandatory in parts:
            open_ended = self.gather(part, properties, mandatory, depth + 1) or open_ended
        if not (isinstance(own, dict) or names or parts or more is False):
            # A schema that names nothing says nothing about what is wrong.
            return True
        return open_ended
