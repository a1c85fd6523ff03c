"""JSON Schemas as the text of Python types.

Owns annotations as a type checker reads them, and the classes that nested objects need. Used by the
host for stubs and by the guest for `help()`, so that both say the same. Schemas come from servers:
any JSON value is taken for one, the work, the nesting and the text are bounded, and what is beyond
a bound or cannot be said becomes wider, never narrower.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping

from bridge.guest.schema.schemas import as_list, as_mapping, pointed_at
from bridge.guest.schema.validation import filled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Tuple

# A server chooses its schemas: how many, how deep and how long they are.
MAX_SCHEMAS = 500  # Schemas written out for one tool's arguments, or for its results.
MAX_LEVELS = 8  # Objects and lists in each other.
MAX_MEMBERS = 16  # Members of a union.
MAX_TYPE_CHARS = 1_200  # Characters of one annotation; a longer one is `Any`.

MAX_INLINE_CHARS = 160
"""Characters of a type with objects where they are used, in search and in errors: two lines."""

BLOB: Mapping[str, Any] = {"title": "Blob"}
"""Stands for binary content in what was learnt from results: programs get a `Blob`."""

_ANNOTATIONS = frozenset(
    """
    title description default examples example deprecated readOnly writeOnly $comment format
    """.split()  # noqa: SIM905 - as words they can be read
)

_KINDS = frozenset((type(None), bool, int, float, str, list, dict))
_HOLDERS = ("dict", "list")
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


class Names:
    """How a module's text refers to builtins and `typing`, and which class names are taken."""

    def __init__(
        self, *, builtins: str = "", shadowed: Collection[str] = (), inline: Optional[int] = None
    ) -> None:
        """Set how to refer to them.

        Args:
            builtins: Prefix.
            shadowed: The builtins that need it.
            inline: If given, objects are written where they are used, as `{'id'?: int}`, and have
                no classes; a type has as much detail as fits into so many characters.
        """
        self.inline = inline
        self._builtins = builtins
        self._shadowed = shadowed
        self.taken: Set[str] = {"Any", "Blob", "Literal", "MCPError", "NotRequired", "Protocol"}
        self.taken |= {"None", "True", "False", "TypedDict"}

    def builtin(self, name: str) -> str:
        if name in self._shadowed:
            return self._builtins + name
        return name

    def take(self, wanted: str) -> str:
        """Return a class name that is not used yet, and reserve it."""
        wanted = wanted[:80]
        name, number = wanted, 2
        while name in self.taken:
            name, number = "%s%d" % (wanted, number), number + 1
        self.taken.add(name)
        return name


Field = namedtuple("Field", "key text required schema")

Object = namedtuple("Object", "name root fields more")
"""An object that needs a class: the document with its fields' schemas, how many are left out."""


class TypeWriter:
    """Writes the types of one tool's arguments, or of its results.

    Attributes:
        objects: The classes that the texts refer to, parts before wholes.
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
        """Return a schema's type. The coarsest inline text, of plain type names, may be longer."""
        if self.names.inline is None:
            return self._bounded(self._parts(schema, path, 0))
        text = "Any"
        for self._detail in range(4, -1, -1):
            self._left = granted = max(0, min(200, self._left_in_all))
            text = " | ".join(self._parts(schema, path, 0))
            self._left_in_all -= granted - self._left
            if len(text) <= self.names.inline:
                break
        return text

    def _bounded(self, parts: Sequence[str]) -> str:
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
        parts = self._written(schema, path, level, key)
        if schema.get("nullable") is True:
            parts = self._union([parts, ["None"]])
        del self._active[key]
        if self.names.inline is None:
            # Inline, a schema has less detail further inside.
            self._done[key] = parts
        return parts

    def _written(
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
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and branches and "properties" not in schema:
                if len(branches) > MAX_MEMBERS:
                    return ["Any"]
                members = []
                for number, branch in enumerate(branches, 1):
                    title = as_mapping(branch).get("title") or ("" if number == 1 else str(number))
                    inner = (*path, title) if isinstance(title, str) and title else path
                    members.append(self._parts(branch, inner, level))
                return self._union(members)
        return self._typed(schema, path, level, key)

    def _typed(
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
                found.append(["None"])
            elif kind == "array":
                found.append([self._array(schema, path, level)])
            elif kind == "object":
                found.append([self._object(schema, path, level, key)])
            elif isinstance(kind, str) and kind in _PLAIN:
                found.append([self.names.builtin(_PLAIN[kind])])
            else:
                return ["Any"]
        return self._union(found)

    def _array(self, schema: Mapping[str, Any], path: Tuple[str, ...], level: int) -> str:
        items = schema.get("items", True)
        prefix = schema.get("prefixItems")
        if isinstance(items, list):
            prefix, items = items, schema.get("additionalItems", True)
        if level >= self._detail:
            return self._generic("list")
        place = (*path, "item")
        members = []
        if isinstance(prefix, list) and prefix:
            if len(prefix) > MAX_MEMBERS:
                prefix, items = [], True
            members = [self._parts(part, place, level + 1) for part in prefix]
            if members and self.names.inline is not None:
                return "tuple[%s]" % ", ".join(map(self._bounded, members))
        if not members or items is not False:
            # After a few described places come any others, as far as the schema says.
            closed = members and "items" not in schema
            members += [] if closed else [self._parts(items, place, level + 1)]
        return self._generic("list", " | ".join(self._union(members)))

    def _generic(self, kind: str, inside: str = "Any") -> str:
        """Return `list[T]` or `dict[str, T]`; inline, a T of anything is left out."""
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
            wanted -= filled({}, {"properties": properties, "required": required}, self.root).keys()
        if len(names) > most:
            names.sort(key=lambda one: one not in wanted)
        fields: List[Field] = []
        for field in names[:most]:
            if len(field) <= 100 and _is_text(field):
                own = properties[field]
                text = self._bounded(self._parts(own, (*path, field), level + 1))
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
        names = (kind.__name__ for kind in kinds)
        return self._union(
            [
                [
                    "None"
                    if name == "NoneType"
                    else self._generic(name)
                    if name in _HOLDERS
                    else self.names.builtin(name)
                ]
                for name in names
            ]
        )

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
            for keyword in ("anyOf", "oneOf"):
                for part in as_list(schema.get(keyword)):
                    self._merge(part, into, depth + 1, False)


def pascal(name: str) -> str:
    """Return a name, or part of one, as it stands in a class name."""
    words = re.findall(r"[A-Za-z0-9]+", name[:80])
    return "".join(word[:1].upper() + word[1:] for word in words)


def class_base(alias: str) -> str:
    """Return how the names of a tool's or server's classes begin."""
    base = pascal(alias)
    return base if base[:1].isalpha() else "T" + base


def _literal(value: Any, chars: int) -> Optional[str]:
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return repr(value)
    if isinstance(value, str) and len(value) <= chars and _is_text(value):
        return repr(value)
    return None


def _is_text(value: str) -> bool:
    """Whether a text can stand in a source file; a lone surrogate cannot be encoded."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
