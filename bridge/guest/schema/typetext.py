"""Writes JSON Schemas as Python types, and a tool's function as text.

The host writes stubs and the guest `help()` with it, so both agree. Schemas come from servers: any
JSON value is accepted, and work, nesting and text are bounded. A type beyond a bound becomes wider,
never narrower.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections import namedtuple
from collections.abc import Mapping

from bridge.guest.schema.parameters import default_of, read_parameters
from bridge.guest.schema.schemas import as_list, as_mapping, is_number, leaves, pointed_at
from bridge.guest.schema.validation import array_parts, block, fill_defaults, flat, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Tuple

    from bridge.guest.schema.parameters import Parameter

# A server chooses its schemas: how many, how deep and how long they are.
MAX_SCHEMAS = 500  # Schemas written out for one tool's arguments, or for its results.
MAX_LEVELS = 8  # Objects and lists in each other.
MAX_MEMBERS = 16  # Members of a union.
MAX_TYPE_CHARS = 1_200  # Characters of one annotation; a longer one is `Any`.

MAX_INLINE_CHARS = 160
"""Characters of a type with objects where they are used, in search and in errors: two lines."""

BLOB: Mapping[str, Any] = {"title": "Blob"}
"""A type of observed results: binary content, which programs get as a `Blob`."""

_ANNOTATIONS = frozenset(
    """
    title description default examples example deprecated readOnly writeOnly $comment format
    """.split()  # noqa: SIM905 - as words they can be read
)

_KINDS = frozenset((type(None), bool, int, float, str, list, dict))
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


class Names:
    """How a module's text refers to builtins and `typing`, and the class names in use.

    The builtins in `shadowed` need the prefix `builtins`. `inline` limits the characters of a type:
    then objects are inline, as `{'id'?: int}`, without classes.
    """

    def __init__(
        self, *, builtins: str = "", shadowed: Collection[str] = (), inline: Optional[int] = None
    ) -> None:
        self.inline = inline
        self._builtins = builtins
        self._shadowed = shadowed
        self.taken: Set[str] = {"Any", "Blob", "Literal", "MCPError", "NotRequired", "Protocol"}
        self.taken |= {"None", "True", "False", "TypedDict"}

    def builtin(self, name: str) -> str:
        return self._builtins + name if name in self._shadowed else name

    def take(self, wanted: str) -> str:
        """Return and reserve a class name that is not used yet."""
        wanted = wanted[:80]
        name, number = wanted, 2
        while name in self.taken:
            name, number = "%s%d" % (wanted, number), number + 1
        self.taken.add(name)
        return name


Field = namedtuple("Field", "key text required schema")

Object = namedtuple("Object", "name root fields more")
"""A class to define: its text with the schemas of its fields, and the number of omitted fields."""


class TypeWriter:
    """Writes the types of one tool's arguments, or of its results.

    `objects` are the classes that the texts refer to, parts before wholes.
    """

    def __init__(self, root: Any, base: str, names: Names, *, results: bool = False) -> None:
        self.root = root
        self.names = names
        self.objects: List[Object] = []
        self._base = base
        self._results = results
        self._left = MAX_SCHEMAS
        self._detail = MAX_LEVELS
        self._left_in_all = 10 * MAX_SCHEMAS
        # By schema: its text once written; while it is being written, its class if it has one.
        self._done: Dict[int, List[str]] = {}
        self._active: Dict[int, Optional[str]] = {}

    def write(self, schema: Any, path: Tuple[str, ...] = ()) -> str:
        """Return a schema's type. The coarsest inline text, of plain type names, may exceed the
        limit."""
        if self.names.inline is None:
            return self._join_bounded(self._parts(schema, path, 0))
        text = "Any"
        for self._detail in range(4, -1, -1):
            self._left = granted = max(0, min(200, self._left_in_all))
            text = " | ".join(self._parts(schema, path, 0))
            self._left_in_all -= granted - self._left
            if len(text) <= self.names.inline:
                break
        return text

    def _join_bounded(self, parts: Sequence[str]) -> str:
        text = " | ".join(parts)
        return text if len(text) <= MAX_TYPE_CHARS or self.names.inline is not None else "Any"

    def _parts(self, schema: Any, path: Tuple[str, ...], level: int) -> List[str]:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or level > MAX_LEVELS:
            return ["Any"]
        if len(self._active) > 40:  # A server may nest references and unions.
            return ["Any"]
        if self._results and schema == BLOB:
            return ["Blob"]
        key = id(schema)
        if key in self._done:
            return self._done[key]
        if key in self._active:
            return [self._active[key] or "Any"]
        self._active[key] = None
        parts = self._write_schema(schema, path, level, key)
        if schema.get("nullable") is True:
            parts = self._union([parts, ["None"]])
        del self._active[key]
        if self.names.inline is None:
            # Inline, a schema has less detail further inside.
            self._done[key] = parts
        return parts

    def _write_schema(
        self, schema: Mapping[str, Any], path: Tuple[str, ...], level: int, key: int
    ) -> List[str]:
        if "$ref" in schema and _ANNOTATIONS.issuperset(set(schema) - {"$ref", "$defs"}):
            known, target = pointed_at(schema["$ref"], self.root)
            if not known:
                return ["Any"]
            last = str(schema["$ref"]).rpartition("/")[2]
            return self._parts(target, (last,) if last.strip("#") else path, level)
        combined = any(part in schema for part in ("$ref", "allOf")) or (
            "properties" in schema and ("anyOf" in schema or "oneOf" in schema)
        )
        if combined:
            merged: Dict[str, Any] = {}
            self._merge(schema, merged, 0, True)
            schema = merged
        if "const" in schema:
            return self._literals([schema["const"]])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._literals(schema["enum"])
        for key_word in ("anyOf", "oneOf"):
            branches = schema.get(key_word)
            if isinstance(branches, list) and branches and "properties" not in schema:
                if len(branches) > MAX_MEMBERS:
                    return ["Any"]
                members = []
                for number, branch in enumerate(branches, 1):
                    title = as_mapping(branch).get("title") or ("" if number == 1 else str(number))
                    inner = (*path, title) if isinstance(title, str) and title else path
                    members.append(self._parts(branch, inner, level))
                return self._union(members)
        return self._write_typed(schema, path, level, key)

    def _write_typed(
        self, schema: Mapping[str, Any], path: Tuple[str, ...], level: int, key: int
    ) -> List[str]:
        kinds = schema.get("type")
        if kinds is None:
            if "properties" in schema or "additionalProperties" in schema:
                kinds = "object"
            elif "items" in schema or "prefixItems" in schema:
                kinds = "array"
        if not isinstance(kinds, list):
            kinds = [kinds]
        found = []
        for kind in kinds[:MAX_MEMBERS]:
            if kind == "null":
                found.append("None")
            elif kind == "array":
                found.append(self._array(schema, path, level))
            elif kind == "object":
                found.append(self._object(schema, path, level, key))
            elif isinstance(kind, str) and kind in _PLAIN:
                found.append(self.names.builtin(_PLAIN[kind]))
            else:
                return ["Any"]
        return self._union([found])

    def _array(self, schema: Mapping[str, Any], path: Tuple[str, ...], level: int) -> str:
        if level >= self._detail:
            return self._generic("list")
        prefix, items = array_parts(schema)
        if len(prefix) > MAX_MEMBERS:
            prefix, items = [], True
        place = (*path, "item")
        members = [self._parts(part, place, level + 1) for part in prefix]
        if members and self.names.inline is not None:
            return "tuple[%s]" % ", ".join(map(self._join_bounded, members))
        if not members or items is not False:
            # After a few described places come any others, as far as the schema says.
            closed = members and "items" not in schema
            members += [] if closed else [self._parts(items, place, level + 1)]
        return self._generic("list", " | ".join(self._union(members)))

    def _generic(self, kind: str, inside: str = "Any") -> str:
        """Return `list[T]` or `dict[str, T]`; inline without a T of Any."""
        name = self.names.builtin(kind)
        if inside == "Any" and self.names.inline is not None:
            return name
        key = "%s, " % self.names.builtin("str") if kind == "dict" else ""
        return "%s[%s%s]" % (name, key, inside)

    def _object(
        self, schema: Mapping[str, Any], path: Tuple[str, ...], level: int, key: int
    ) -> str:
        properties = as_mapping(schema.get("properties"))
        names = list(properties)
        if level >= self._detail:
            return self._generic("dict")
        if not names or len(self.objects) >= 40:
            others = schema.get("additionalProperties")
            inside = "Any"
            if not names and isinstance(others, Mapping):
                inside = " | ".join(self._parts(others, (*path, "value"), level + 1))
            return self._generic("dict", inside)
        name, most = "", 12
        if self.names.inline is None:
            most = 60
            name = self.names.take(self._base + "".join(map(pascal, path[-4:])))
            self._active[key] = name
        required = schema.get("required")
        wanted = {one for one in as_list(required) if isinstance(one, str)}
        if wanted and not self._results:
            wanted -= fill_defaults(
                {}, {"properties": properties, "required": required}, self.root
            ).keys()
        if len(names) > most:
            names.sort(key=lambda one: one not in wanted)
        fields: List[Field] = []
        for field in names[:most]:
            if len(field) <= 100 and _is_text(field):
                own = properties[field]
                text = self._join_bounded(self._parts(own, (*path, field), level + 1))
                fields.append(Field(field, text, field in wanted, own))
        if self.names.inline is not None:
            parts = ["%r%s: %s" % (f.key, "" if f.required else "?", f.text) for f in fields]
            text = ", ".join(parts + ["..."] * (len(names) > len(fields)))
            return "{%s}" % text if fields else "dict"
        self.objects.append(Object(name, self.root, fields, len(names) - len(fields)))
        return name

    def _literals(self, values: Sequence[Any]) -> List[str]:
        most, chars, more = 40, 80, []
        if self.names.inline is not None:
            most, chars = 12, 40
            more = ["..."] * (len(values) > most)
        texts = [_literal(value, chars) for value in values[:most]]
        if None not in texts and (len(values) <= most or more) and self._detail:
            plain = [text for text in dict.fromkeys(texts) if text and text != "None"]
            inside = ", ".join(plain + more)
            if len(inside) <= MAX_TYPE_CHARS // 2:
                parts = ["Literal[%s]" % inside] if plain else []
                return parts + (["None"] if "None" in texts else [])
        kinds = dict.fromkeys(map(type, values[:MAX_SCHEMAS]))
        if len(values) > MAX_SCHEMAS or not kinds.keys() <= _KINDS:
            return ["Any"]
        return self._union([[self._name_of(kind) for kind in kinds]])

    def _name_of(self, kind: type) -> str:
        name = kind.__name__
        if name in ("dict", "list"):
            return self._generic(name)
        return "None" if kind is type(None) else self.names.builtin(name)

    def _union(self, members: Sequence[Sequence[str]]) -> List[str]:
        parts = dict.fromkeys(part for member in members for part in member)
        if "Any" in parts or len(parts) > MAX_MEMBERS or not parts:
            return ["Any"]
        return [part for part in parts if part != "None"] + (["None"] if "None" in parts else [])

    def _merge(self, schema: Any, into: Dict[str, Any], depth: int, all_of: bool) -> None:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or depth > 2 * MAX_LEVELS:
            return
        for key, value in schema.items():
            if key == "properties" and isinstance(value, Mapping):
                self._left -= len(value) // 64  # Some refer to thousands again and again.
                known = into.setdefault("properties", {})
                for name, own in value.items():
                    known.setdefault(name, own)
            elif key == "required" and isinstance(value, list):
                if all_of:
                    into["required"] = [*into.get("required", []), *value]
            elif key not in ("allOf", "$ref", "properties", "required"):
                into.setdefault(key, value)
        for part in as_list(schema.get("allOf")):
            self._merge(part, into, depth + 1, all_of)
        if "$ref" in schema:
            self._merge(pointed_at(schema["$ref"], self.root)[1], into, depth + 1, all_of)
        if "properties" in into:
            # Alternatives of an object are fields that may be there.
            for key in ("anyOf", "oneOf"):
                for part in as_list(schema.get(key)):
                    self._merge(part, into, depth + 1, False)


def pascal(name: str) -> str:
    """Return a name, or part of one, in the spelling of class names."""
    words = re.findall(r"[A-Za-z0-9]+", name[:80])
    return "".join(word[:1].upper() + word[1:] for word in words)


def class_base(alias: str) -> str:
    base = pascal(alias)
    return base if base[:1].isalpha() else "T" + base


def _literal(value: Any, chars: int) -> Optional[str]:
    plain = isinstance(value, str) and len(value) <= chars and _is_text(value)
    whole = isinstance(value, int) and abs(value) < 2**63
    return repr(value) if value is None or plain or whole else None


def _is_text(value: str) -> bool:
    """Return whether a text can be encoded in a source file, unlike a lone surrogate."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Head:
    """A tool's function as text."""

    def __init__(self, tool: Mapping[str, Any], names: Optional[Names] = None) -> None:
        names = Names() if names is None else names
        root = tool.get("inputSchema")
        base = class_base(str(tool.get("alias") or ""))
        every, open_ended = read_parameters(root)
        # Calls accept the other parameters too.
        self.arguments = [one for one in every[:250] if has_usual_name(one)]
        writer = TypeWriter(root, base, names)
        optional_seen = keyword_only = False
        for argument in self.arguments:
            _describe(argument, root, writer)
            keyword_only = keyword_only or (argument.required and optional_seen)
            argument.keyword_only = keyword_only
            optional_seen = optional_seen or not argument.required
        self.rest = ""  # The name of further arguments; empty if there can be none.
        if open_ended or len(self.arguments) < len(every):
            self.rest = "arguments"
            while any(argument.alias == self.rest for argument in self.arguments):
                self.rest += "_"
        declared = tool.get("outputSchema")
        schema = declared if declared is not None else tool.get("observed")
        result = TypeWriter(schema, base + "Result", names, results=True)
        self.returns = result.write(schema) if schema is not None else "Any"
        # The classes that the types refer to, parts before wholes.
        self.objects: List[Object] = writer.objects + result.objects
        seen = tool.get("observations")
        # The calls in which the result was observed; 0 for a declared or unknown type.
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
            # Servers accept a default of null, even if the type excludes it.
            parameter.text = text + " | None"


_RESERVED = frozenset(
    "Any Literal NotRequired TypedDict bool dict float int list str".split()  # noqa: SIM905
)
"""Keys that would hide, within their class, what the types of other keys are written with."""


def function_docstring(tool: Mapping[str, Any], head: Head) -> str:
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
    # `inspect.cleandoc` would treat indentation of later lines as that of the whole text.
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


_NUMBERS = (
    ("exclusiveMinimum", "more than "),
    ("exclusiveMaximum", "less than "),
    ("multipleOf", "a multiple of "),
)


def constraints(schema: Any, root: Any) -> List[str]:
    """Return the restrictions on a value that its type does not express."""
    own: dict[str, Any] = {}
    for one in leaves(schema, root):
        for key, value in one.items():
            own.setdefault(key, value)
    for one in leaves(own.get("items"), root):
        for key in one.keys() & {"pattern", "format"}:
            own.setdefault("items " + key, one[key])
    notes = [
        _range_text(own.get("minimum"), own.get("maximum"), ""),
        *(words + shown(own[key]) for key, words in _NUMBERS if is_number(own.get(key))),
        _range_text(own.get("minLength"), own.get("maxLength"), " characters"),
        _range_text(own.get("minItems"), own.get("maxItems"), " items"),
        "each item once" if own.get("uniqueItems") is True else "",
    ]
    for key in ("format", "pattern", "items format", "items pattern"):
        value = own.get(key)
        if isinstance(value, str) and value:
            notes.append("%s: %s" % (key, flat(value, 60)))
    if own.get("deprecated") is True:
        notes.append("deprecated")
    return [note for note in notes if note]


def _range_text(least: Any, most: Any, unit: str) -> str:
    low, high = is_number(least) and not (unit and least <= 0), is_number(most)
    if low and high:
        if least == most:
            return "%s%s" % (shown(least), unit)
        return "%s%s%s%s" % (shown(least), "-" if least >= 0 else " to ", shown(most), unit)
    if low:
        return "at least %s%s" % (shown(least), unit)
    return "at most %s%s" % (shown(most), unit) if high else ""


def _sample(value: Any) -> str:
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, (list, dict)) and 0 < len(value) <= 8:
        text = "" if any(isinstance(part, (list, dict)) for part in parts) else repr(value)
        if 0 < len(text) <= 60:
            return text
    return shown(value)


def _with_notes(text: str, notes: Sequence[str]) -> str:
    noted = "; ".join(notes)
    return "%s (%s)" % (text, noted) if noted and text else text or noted


def typed_dicts(objects: Sequence[Object]) -> List[str]:
    defined = {"None", "Blob", "_builtins", *_RESERVED}
    texts = []
    for made in objects:
        texts.append(_typed_dict(made, defined))
        defined.add(made.name)
    return texts


def _typed_dict(made: Object, defined: Set[str]) -> str:
    if not all(_is_field_name(field.key) for field in made.fields):
        lines = ['%s = TypedDict("%s", {' % (made.name, made.name)]
        for field in made.fields:
            text = _forward(field.text, defined)
            text = text if field.required else "NotRequired[%s]" % text
            lines.append("    %r: %s," % (field.key, text))
        return "\n".join([*lines, "})"])
    lines = ["class %s(TypedDict):" % made.name]
    for field in made.fields:
        text = field.text if field.required else "NotRequired[%s]" % field.text
        notes = constraints(field.schema, made.root)
        notes += [] if field.required else _default(field.schema, made.root)
        note = _with_notes(description(field.schema, made.root, 120), notes)
        lines.append("    %s: %s%s" % (field.key, text, "  # " + note if note else ""))
    lines += ["    # ... and %d more" % made.more] if made.more else []
    return "\n".join(lines if made.fields else [*lines, "    pass"])


def _forward(text: str, defined: Set[str]) -> str:
    """Return a type that can be evaluated before all of its classes are `defined`."""
    words = set(re.findall(r"\w+", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)))
    if defined.issuperset(word for word in words if word[:1].isupper()):
        return text
    # Some type checkers reject nested quotes.
    return "Any" if "'" in text or '"' in text else '"%s"' % text


def _is_field_name(key: str) -> bool:
    return (
        key.isidentifier()
        and not keyword.iskeyword(key)
        and not key.startswith("__")
        and key not in _RESERVED
        and unicodedata.normalize("NFKC", key) == key
    )
