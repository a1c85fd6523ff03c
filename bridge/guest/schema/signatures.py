"""The signature of a tool's function: parameters with their kinds, types and defaults.

Owns what the host writes into stubs and the guest gives to `inspect.signature`, so that both agree.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Mapping

from bridge.guest.schema.faults import block, flat, shown
from bridge.guest.schema.parameters import default_of, read_parameters
from bridge.guest.schema.schemas import is_number, leaves
from bridge.guest.schema.typetext import Names, TypeWriter, class_base

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Set

    from bridge.guest.schema.parameters import Parameter
    from bridge.guest.schema.typetext import Object


class Head:
    """A tool's function as text.

    Attributes:
        arguments: The parameters that are written out.
        rest: The name of further arguments; empty if there can be none.
        returns: The type of the result; "Any" if nothing is known.
        objects: The classes that the types refer to, parts before wholes.
        observed: In how many calls the result was seen; 0 if it is declared or unknown.
    """

    def __init__(self, tool: Mapping[str, Any], names: Optional[Names] = None) -> None:
        names = Names() if names is None else names
        root = tool.get("inputSchema")
        base = class_base(str(tool.get("alias") or ""))
        every, open_ended = read_parameters(root)
        # Calls take the others too.
        self.arguments = [one for one in every[:250] if has_usual_name(one)]
        writer = TypeWriter(root, base, names)
        optional_seen = keyword_only = False
        for argument in self.arguments:
            _describe(argument, root, writer)
            argument.keyword_only = keyword_only = keyword_only or (
                argument.required and optional_seen
            )
            optional_seen = optional_seen or not argument.required
        self.rest = ""
        if open_ended or len(self.arguments) < len(every):
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


def has_usual_name(parameter: Parameter) -> bool:
    return len(parameter.alias) <= 100


def _describe(parameter: Parameter, root: Any, writer: TypeWriter) -> None:
    text = parameter.text = writer.write(parameter.schema, (parameter.name,))
    if not parameter.required:
        parameter.has_default, parameter.value = default_of(parameter, root)
        parameter.default = repr(parameter.value) if parameter.has_default else "..."
        null = parameter.has_default and parameter.value is None
        if null and text not in ("None", "Any") and not text.endswith(" | None"):
            # A default of null is taken where nothing else is, whatever the type says.
            parameter.text = text + " | None"


_RESERVED = frozenset(
    "Any Literal NotRequired TypedDict bool dict float int list str".split()  # noqa: SIM905
)
"""Keys that would hide, within their class, what the types of other keys are written with."""


def docstring(tool: Mapping[str, Any], head: Head) -> str:
    """Return a tool's documentation: what it does, its arguments and its result."""
    root = tool.get("inputSchema")
    parts = [block(tool.get("description"), 2_000)]  # The whole is in the full documentation.
    lines = [line for line in (_line(one, root) for one in head.arguments[:64]) if line]
    if len(head.arguments) > 64:
        lines.append("    ... and more")
    if lines:
        parts.append("Args:\n" + "\n".join(lines))
    result = []
    if head.observed:
        calls = "1 call" if head.observed == 1 else "%d calls" % head.observed
        result.append("Observed in %s; may differ." % calls)
    declared = tool.get("outputSchema")
    if isinstance(declared, Mapping):
        result.append(flat(declared.get("description"), 240))
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
    # One that the signature shows as `...`.
    notes += _default(parameter.schema, root) if parameter.default == "..." else []
    text = _with_notes(description(parameter.schema, root, 240), notes)
    return "    %s: %s" % (parameter.alias, text) if text else ""


def _default(schema: Any, root: Any) -> List[str]:
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
    for one in leaves(own.get("items"), root):
        for key in one.keys() & {"pattern", "format"}:
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
            notes.append("%s: %s" % (key, flat(value, 60)))
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
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, (list, dict)) and 0 < len(value) <= 8:
        text = "" if any(isinstance(part, (list, dict)) for part in parts) else repr(value)
        if 0 < len(text) <= 60:
            return text
    return shown(value)


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
    if all(_is_field_name(field.key) for field in made.fields):
        lines = ["class %s(TypedDict):" % made.name]
        for field in made.fields:
            text = field.text if field.required else "NotRequired[%s]" % field.text
            notes = constraints(field.schema, made.root)
            notes += [] if field.required else _default(field.schema, made.root)
            note = _with_notes(description(field.schema, made.root, 120), notes)
            lines.append("    %s: %s%s" % (field.key, text, "  # " + note if note else ""))
        lines += ["    # ... and %d more" % made.more] if made.more else []
        lines += [] if made.fields else ["    pass"]
        return "\n".join(lines)
    lines = ['%s = TypedDict("%s", {' % (made.name, made.name)]
    for field in made.fields:
        text = _forward(field.text, defined)
        text = text if field.required else "NotRequired[%s]" % text
        lines.append("    %r: %s," % (field.key, text))
    return "\n".join([*lines, "})"])


def _forward(text: str, defined: Set[str]) -> str:
    """Return a type as it can be evaluated before all of its classes are `defined`."""
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
