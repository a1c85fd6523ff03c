"""The signature of a tool's function: parameters with their kinds, types and defaults.

Owns what the host writes into stubs and the guest gives to `inspect.signature`, so that both agree.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Mapping

from bridge.guest.schema.faults import block, flat, is_number, shown
from bridge.guest.schema.parameters import default_of, read_parameters
from bridge.guest.schema.schemas import leaves
from bridge.guest.schema.typetext import Names, TypeWriter, class_base

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, List, Mapping, Optional, Sequence, Set

    from bridge.guest.schema.parameters import Parameter
    from bridge.guest.schema.typetext import Names, Object

MAX_PARAMETERS = 250
"""Written out; the largest tools seen in the wild have some sixty. The rest are taken too."""

MAX_NAME_CHARS = 100  # Of a parameter that is written out.


class Argument:
    """One parameter of the function.

    Attributes:
        default: As text; None for one that has to be given.
        has_default: Whether `value` is its default; it is left out of the call otherwise.
        keyword_only: Whether Python's syntax allows it by keyword only. By position it is accepted
            all the same, in the order of the schema.
    """

    __slots__ = ("alias", "default", "has_default", "keyword_only", "text", "value")

    def __init__(self, alias: str, text: str, default: Optional[str]) -> None:
        self.alias = alias
        self.text = text
        self.default = default
        self.has_default = False
        self.value: Any = None
        self.keyword_only = False


class Head:
    """A tool's function as text.

    Attributes:
        parameters: All that the schema names.
        shown: Those written out, as `arguments`.
        rest: The name of further arguments; empty if there can be none.
        returns: The type of the result; "Any" if nothing is known.
        objects: The classes that the types refer to, parts before wholes.
        observed: In how many calls the result was seen; 0 if it is declared or unknown.
    """

    def __init__(self, tool: Mapping[str, Any], names: Optional[Names] = None) -> None:
        """Read `tool`, data as in `Run.servers`."""
        names = Names() if names is None else names
        root = tool.get("inputSchema")
        base = class_base(str(tool.get("alias") or ""))
        self.parameters, open_ended = read_parameters(root)
        some = self.parameters[:MAX_PARAMETERS]
        self.shown = [parameter for parameter in some if len(parameter.alias) <= MAX_NAME_CHARS]
        writer = TypeWriter(root, base, names)
        self.arguments = [_argument(parameter, root, writer) for parameter in self.shown]
        optional_seen = keyword_only = False
        for argument in self.arguments:
            required = argument.default is None
            argument.keyword_only = keyword_only = keyword_only or (required and optional_seen)
            optional_seen = optional_seen or not required
        self.rest = ""
        if open_ended or len(self.shown) < len(self.parameters):
            self.rest = "arguments"
            while any(argument.alias == self.rest for argument in self.arguments):
                self.rest += "_"
        declared = tool.get("outputSchema")
        schema = declared if declared is not None else tool.get("observed")
        result = TypeWriter(schema, base + "Result", names, results=True)
        self.returns = result.write(schema) if schema is not None else "Any"
        self.objects: List[Object] = writer.objects + result.objects
        seen = tool.get("observations")
        self.observed = seen if declared is None and isinstance(seen, int) else 0


def _argument(parameter: Parameter, root: Any, writer: TypeWriter) -> Argument:
    text = writer.write(parameter.schema, (parameter.name,))
    argument = Argument(parameter.alias, text, None)
    if not parameter.required:
        argument.has_default, argument.value = default_of(parameter, root)
        argument.default = repr(argument.value) if argument.has_default else "..."
        null = argument.has_default and argument.value is None
        if null and text not in ("None", "Any") and not text.endswith(" | None"):
            # A default of null is taken where nothing else is, whatever the type says.
            argument.text = text + " | None"
    return argument


# Descriptions, units, limits and defaults in docstrings.

MAX_PARAMETER_CHARS = 240
MAX_DOCUMENTED = 64  # Parameters with a line of their own.

MAX_PATTERN_CHARS = 60

_RESERVED = frozenset(
    "Any Literal NotRequired TypedDict bool dict float int list str".split()  # noqa: SIM905
)
"""Keys that would hide, within their class, what the types of other keys are written with."""


def docstring(tool: Mapping[str, Any], head: Head) -> str:
    """Return a tool's documentation: what it does, its arguments and its result."""
    root = tool.get("inputSchema")
    parts = [block(tool.get("description"), 2_000)]  # The whole is in the full documentation.
    lines = [_line(parameter, root) for parameter in head.shown[:MAX_DOCUMENTED]]
    lines = [line for line in lines if line]
    if len(head.shown) > MAX_DOCUMENTED:
        lines.append("    ... and more")
    if lines:
        parts.append("Args:\n" + "\n".join(lines))
    result = []
    if head.observed:
        calls = "1 call" if head.observed == 1 else "%d calls" % head.observed
        result.append("Observed in %s; may differ." % calls)
    declared = tool.get("outputSchema")
    if isinstance(declared, Mapping):
        result.append(flat(declared.get("description"), MAX_PARAMETER_CHARS))
    if any(result):
        parts.append("Returns:\n    " + " ".join(part for part in result if part))
    if tool.get("name") != tool.get("alias"):
        parts.append("The server calls this tool %s." % shown(flat(tool.get("name"), 80)))
    text = "\n\n".join(part for part in parts if part)
    # What is indented below the first line would be taken for the indentation of all.
    return text if parts[0] or not text else "\n" + text


def _line(parameter: Parameter, root: Any) -> str:
    notes = ["sent as %s" % shown(parameter.name)] if parameter.alias != parameter.name else []
    notes += constraints(parameter.schema, root)
    known = parameter.required or default_of(parameter, root)[0]
    # One that the signature shows as `...`.
    notes += [] if known else _default(parameter.schema, root)
    text = description(parameter.schema, root, MAX_PARAMETER_CHARS)
    if not text and not notes:
        return ""
    return "    %s: %s" % (parameter.alias, _with_notes(text, notes))


def _default(schema: Any, root: Any) -> List[str]:
    """Return a note on a schema's default; none if there is none."""
    found = [one["default"] for one in leaves(schema, root) if "default" in one]
    return ["default %s" % _sample(found[0])] if found else []


def description(schema: Any, root: Any, limit: int) -> str:
    for one in leaves(schema, root):
        text = flat(one.get("description"), limit)
        if text:
            return text
    return ""


def constraints(schema: Any, root: Any) -> List[str]:
    """Return what a value has to keep to, apart from its type."""
    own: dict[str, Any] = {}
    for one in leaves(schema, root):
        for key, value in one.items():
            own.setdefault(key, value)
    items = own.get("items")
    if isinstance(items, Mapping):
        for one in leaves(items, root):
            for key in ("pattern", "format"):
                if key in one:
                    own.setdefault("items " + key, one[key])
    notes = [
        _between(own.get("minimum"), own.get("maximum"), ""),
        _limit("more than %s", own.get("exclusiveMinimum")),
        _limit("less than %s", own.get("exclusiveMaximum")),
        _limit("a multiple of %s", own.get("multipleOf")),
        _between(own.get("minLength"), own.get("maxLength"), " characters"),
        _between(own.get("minItems"), own.get("maxItems"), " items"),
        "each item once" if own.get("uniqueItems") is True else "",
    ]
    for key in ("format", "pattern", "items format", "items pattern"):
        value = own.get(key)
        if isinstance(value, str) and value:
            notes.append("%s: %s" % (key, flat(value, MAX_PATTERN_CHARS)))
    if own.get("deprecated") is True:
        notes.append("deprecated")
    return [note for note in notes if note]


def _between(least: Any, most: Any, unit: str) -> str:
    low, high = is_number(least) and not (unit and least <= 0), is_number(most)
    if low and high:
        if least == most:
            return "%s%s" % (shown(least), unit)
        return "%s%s%s%s" % (shown(least), "-" if least >= 0 else " to ", shown(most), unit)
    if low:
        return "at least %s%s" % (shown(least), unit)
    return "at most %s%s" % (shown(most), unit) if high else ""


def _limit(text: str, value: Any) -> str:
    return text % shown(value) if is_number(value) else ""


def _sample(value: Any) -> str:
    if isinstance(value, (list, dict)) and value:
        # A short one is worth showing; repr of a long one would be costly to make.
        text = repr(value) if len(value) <= 8 and _is_flat(value) else shown(value)
        return text if len(text) <= MAX_PATTERN_CHARS else shown(value)
    return shown(value)


def _is_flat(value: Any) -> bool:
    parts: Iterable[Any] = [*value, *value.values()] if isinstance(value, dict) else value
    return all(
        not isinstance(part, (list, dict)) and len(shown(part)) < MAX_PATTERN_CHARS
        for part in parts
    )


def _with_notes(text: str, notes: Sequence[str]) -> str:
    if notes and text:
        return "%s (%s)" % (text, "; ".join(notes))
    return text or "; ".join(notes)


def typed_dicts(objects: Sequence[Object]) -> List[str]:
    defined = {"None", "Blob", "_builtins", *_RESERVED}
    texts = []
    for made in objects:
        texts.append(_typed_dict(made, defined))
        defined.add(made.name)
    return texts


def _typed_dict(made: Object, defined: Set[str]) -> str:
    """Return one definition; what is not `defined` yet has to stand in quotes."""
    if all(_is_field_name(field.key) for field in made.fields):
        lines = ["class %s(TypedDict):" % made.name]
        for field in made.fields:
            text = field.text if field.required else "NotRequired[%s]" % field.text
            notes = constraints(field.schema, made.root)
            notes += [] if field.required else _default(field.schema, made.root)
            note = _with_notes(description(field.schema, made.root, 120), notes)
            lines.append("    %s: %s%s" % (field.key, text, "  # " + note if note else ""))
        if made.more or not made.fields:
            lines.append("    # ... and %d more" % made.more if made.more else "    pass")
        if made.more and not made.fields:
            lines.append("    pass")
        return "\n".join(lines)
    lines = ['%s = TypedDict("%s", {' % (made.name, made.name)]
    for field in made.fields:
        text = _forward(field.text, defined)
        lines.append(
            "    %s: %s," % (repr(field.key), text if field.required else "NotRequired[%s]" % text)
        )
    return "\n".join([*lines, "})"])


def _forward(text: str, defined: Set[str]) -> str:
    """Return a type as it can be evaluated before all of its classes are there."""
    import re

    words = set(re.findall(r"\w+", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)))
    if defined.issuperset(word for word in words if word[:1].isupper()):
        return text
    # Quotes in quotes are more than some checkers read.
    return "Any" if "'" in text or '"' in text else '"%s"' % text


def _is_field_name(key: str) -> bool:
    return (
        key.isidentifier()
        and not keyword.iskeyword(key)
        and not key.startswith("__")
        and key not in _RESERVED
        and unicodedata.normalize("NFKC", key) == key
    )
