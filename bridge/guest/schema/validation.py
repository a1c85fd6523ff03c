"""Checks a value against a JSON Schema, and fills in defaults.

Schemas come from servers: any JSON value is accepted, nothing here raises, and work and depth are
bounded. Undecidable keywords count as satisfied; the server decides. The check is looser than the
specification, as servers are: several branches of a `oneOf` may fit, a value equal to the `default`
fits, and `format`, `multipleOf`, `not` and `uniqueItems` refuse nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

from bridge.guest.protocol.placeholders import PREFIX, WHOLE
from bridge.guest.schema import schemas
from bridge.guest.schema.names import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

MAX_STEPS = 10_000
"""Values and keywords examined for one argument, about 50 ms: a server's schema has any size."""


def problem(value: Any, schema: Any, root: Any, where: str = "") -> Optional[str]:
    """Return the violation as a sentence without a full stop; None if `value` fits.

    `root` is the document that `$ref`s point into, and `where` the name of the value.
    """
    try:
        found = _Check(root).check(value, schema, 0)
    except Exception:
        # An odd subclass of a plain type, or a bug: neither may keep a call from being made.
        return None
    return None if found is None else found.sentence(where)


def convert(value: Any, schema: Any, root: Any) -> Any:
    """Return `value` as the JSON value that it means under `schema`, with its defaults."""
    return fill_defaults(schemas.convert(value, schema, root), schema, root)


def fill_defaults(value: Any, schema: Any, root: Any) -> Any:
    """Return `value` with the defaults of missing required keys, at every depth.

    zod writes a key with a default under `required`, and some servers do not fill it in. A default
    that does not fit its own schema is not sent: its key stays required.
    """
    try:
        return _Filler(root).fill(value, schema, 0)
    except Exception:
        # As in `problem`.
        return value


class _Check:
    defaults_fit = True

    def __init__(self, root: Any) -> None:
        self.root = root
        self.left = MAX_STEPS

    def check(self, value: Any, schema: Any, depth: int) -> Optional[Found]:
        self.left -= 1
        if schema is False:
            return Found("is not allowed here", KEYS)
        if not isinstance(schema, Mapping) or self.left < 0 or depth > schemas.MAX_DEPTH:
            return None
        if value is None and schema.get("nullable") is True:
            return None
        if _not_known_yet(value):
            return self._type(value, schema.get("type")) if isinstance(value, str) else None
        if self.defaults_fit and "default" in schema and schemas.same(value, schema["default"]):
            return None
        kind = schema.get("type")
        found = None if kind is None else self._type(value, kind)
        if found is None and (len(schema) > 1 or kind is None):
            found = self._choice(value, schema) or self._parts(value, schema, depth)
            return found or self._check_combined(value, schema, depth)
        choice = found and self._choice(value, schema)
        return Found(choice.text, CHOICE, found.types) if found and choice else found

    def _parts(self, value: Any, schema: Mapping[str, Any], depth: int) -> Optional[Found]:
        if isinstance(value, str):
            return size_problem(len(value), schema, "Length", "characters")
        if schemas.is_number(value):
            return number_problem(value, schema)
        if isinstance(value, Mapping):
            return self._object(value, schema, depth)
        return self._array(value, schema, depth) if isinstance(value, (list, tuple)) else None

    def _type(self, value: Any, kind: Any) -> Optional[Found]:
        kinds = kind if isinstance(kind, list) else [kind]
        known = 0 < len(kinds) <= len(NAMES) and all(
            isinstance(one, str) and one in NAMES for one in kinds
        )
        if known and not any(schemas.fits_type(value, one) for one in kinds):
            return type_problem(value, kinds)
        return None

    def _choice(self, value: Any, schema: Mapping[str, Any]) -> Optional[Found]:
        found = choice_problem(value, [schema["const"]]) if "const" in schema else None
        choices = schemas.as_list(schema.get("enum"))
        self.left -= len(choices)
        return choice_problem(value, choices) if choices and self.left >= 0 and not found else found

    def _object(
        self, value: Mapping[Any, Any], schema: Mapping[str, Any], depth: int
    ) -> Optional[Found]:
        properties = schemas.as_mapping(schema.get("properties"))
        others = schema.get("additionalProperties", True)
        if schema.get("patternProperties"):
            # Patterns of key names are left to the server.
            others = True
        wrong: List[Found] = []
        meant = set()
        for key, item in value.items() if properties or others is not True else ():
            part = properties.get(str(key), others)
            if part is False:
                wrong.append(Found("has no key %s%s" % (shown(key), near(key, properties)), KEYS))
                meant.add(near(key, properties, "%s"))
            elif (found := self.check(item, part, depth + 1)) is not None:
                wrong += (found.under(str(key)), *found.more)
                found.more = []
        for name in schemas.as_list(schema.get("required")):
            self.left -= 1
            if isinstance(name, str) and name not in value and shown(name) not in meant:
                # The key may be misspelt.
                strange = [key for key in value if key not in properties]
                hint = near(name, strange, "; it has %s")
                wrong.append(Found("is missing key %s%s" % (shown(name), hint), KEYS))
        if not wrong:
            return size_problem(len(value), schema, "Properties", "keys", KEYS)
        wrong[0].more = wrong[1:]
        return wrong[0]

    def _array(
        self, value: Sequence[Any], schema: Mapping[str, Any], depth: int
    ) -> Optional[Found]:
        found = size_problem(len(value), schema, "Items", "items")
        if found is not None:
            return found
        prefix, items = array_parts(schema)
        if items is False and len(value) > len(prefix):
            return Found("must have at most %d items, not %d" % (len(prefix), len(value)), OTHER)
        checked = len(value) if items is not True else min(len(value), len(prefix))
        for index in range(checked):
            part = prefix[index] if index < len(prefix) else items
            found = self.check(value[index], part, depth + 1)
            if found is not None:
                return found.under(index)
            if self.left < 0:
                break
        return None

    def _check_combined(self, value: Any, schema: Mapping[str, Any], depth: int) -> Optional[Found]:
        known, target = schemas.pointed_at(schema.get("$ref"), self.root)
        for part in [*([target] if known else []), *schemas.as_list(schema.get("allOf"))]:
            found = self.check(value, part, depth + 1)
            if found is not None:
                return found
        for key in ("anyOf", "oneOf"):
            branches = schemas.as_list(schema.get(key))
            found = self._any(value, branches, depth) if branches else None
            if found is not None:
                return found
        return None

    def _any(self, value: Any, branches: Sequence[Any], depth: int) -> Optional[Found]:
        """Return the violation of the most likely branch; None if any branch fits."""
        failures = []
        for branch in branches:
            found = self.check(value, branch, depth + 1)
            if found is None:
                return None
            failures.append(found)
        if (choices := choices_of(branches)) is not None:
            return choice_problem(value, choices)
        if all(found.types and not found.path for found in failures):
            named: List[Any] = []
            kinds: Dict[str, None] = {}
            for found, branch in zip(failures, branches):  # noqa: B905 - not in 3.9
                own = None if list(found.types) == ["null"] else choices_of([branch])
                named += own or ()
                kinds.update(dict.fromkeys(() if own else found.types))
            if named and "string" not in kinds:
                return choice_problem(value, named, kinds)
            every = dict.fromkeys(kind for found in failures for kind in found.types)
            return type_problem(value, list(every))

        def nearness(found: Found) -> Tuple[int, int]:
            rank = OTHER if found.rank == TYPE and found.path else found.rank
            return rank, len(found.path)

        return max(failures, key=nearness)


def _property(name: str, parts: Sequence[Mapping[str, Any]], other: Any = None) -> Any:
    for part in parts:
        properties = schemas.as_mapping(part.get("properties"))
        if name in properties:
            return properties[name]
    return other


class _Filler(_Check):
    defaults_fit = False

    def fill(self, value: Any, schema: Any, depth: int) -> Any:
        """Return a dict or list with its defaults; the same object if there are none."""
        self.left -= 1
        if not isinstance(value, (dict, list)) or _not_known_yet(value):
            return value
        if not isinstance(schema, Mapping) or self.left < 0 or depth > schemas.MAX_DEPTH:
            return value
        parts = self._together(schema, depth)
        for part in parts:
            if self.left < 0:
                break
            if isinstance(value, list):
                prefix, items = array_parts(part)
                inside = (*prefix[: len(value)], *[items] * (len(value) - len(prefix)))
                pairs = zip(value, inside)  # noqa: B905 - not in 3.9
                value = [self.fill(item, own, depth + 1) for item, own in pairs]
            else:
                value = dict(value)
                for name in schemas.as_list(part.get("required")):
                    self.left -= 1
                    if isinstance(name, str) and name not in value and self.left > 0:
                        own = _property(name, parts)
                        value.update((name, one) for one in self._default(own, depth))
                others = part.get("additionalProperties")
                for name, item in value.items():
                    if isinstance(item, (dict, list)) and self.left > 0:
                        own = _property(name, parts, others)
                        value[name] = self.fill(item, own, depth + 1)
            for key in ("anyOf", "oneOf"):
                value = self._branch(value, schemas.as_list(part.get(key)), depth)
        return value

    def _together(self, schema: Mapping[str, Any], depth: int) -> List[Mapping[str, Any]]:
        self.left -= 1
        known, target = schemas.pointed_at(schema.get("$ref"), self.root)
        parts = [schema]
        for part in [*([target] if known else []), *schemas.as_list(schema.get("allOf"))]:
            if isinstance(part, Mapping) and self.left > 0 and depth < schemas.MAX_DEPTH:
                parts += self._together(part, depth + 1)
        return parts

    def _branch(self, value: Any, branches: Sequence[Any], depth: int) -> Any:
        if not any(self.check(value, branch, 0) is None for branch in branches):
            for branch in branches:
                whole = self.fill(value, branch, depth + 1)
                if self.check(whole, branch, 0) is None:
                    return whole
        return value

    def _default(self, schema: Any, depth: int) -> Sequence[Any]:
        for leaf in schemas.leaves(schema, self.root):
            if "default" in leaf:
                value = schemas.convert(leaf["default"], leaf, self.root)
                value = self.fill(value, schema, depth + 1)
                return [value] if self.check(value, schema, 0) is None else []
        return []


def array_parts(schema: Mapping[str, Any]) -> Tuple[Sequence[Any], Any]:
    items = schema.get("items", True)
    if isinstance(items, list):
        # Older drafts write `prefixItems` so.
        return items, schema.get("additionalItems", True)
    return schemas.as_list(schema.get("prefixItems")), items


def _not_known_yet(value: Any) -> bool:
    if isinstance(value, str):
        return PREFIX in value
    return isinstance(value, dict) and WHOLE in value


# Rank of a branch by the keyword that failed.
TYPE, CHOICE, KEYS, OTHER = range(4)


class Found:
    """A violation, its place (path segments from the inside out), and `more` of the same object."""

    def __init__(self, text: str, rank: int, types: Sequence[str] = ()) -> None:
        self.text = text
        self.rank = rank
        self.types = types
        self.path: List[Union[str, int]] = []
        self.more: List[Found] = []

    def under(self, segment: Union[str, int]) -> Found:
        for found in (self, *self.more):
            found.path.append(segment)
        return self

    def sentence(self, where: str) -> str:
        return "; ".join(found._sentence(where) for found in (self, *self.more)[:12])

    def _sentence(self, where: str) -> str:
        place = where
        for segment in reversed(self.path):
            if isinstance(segment, int):
                place += "[%d]" % segment
            elif segment.isidentifier() and len(segment) <= MAX_SHOWN:
                place += "." + segment if place else segment
            else:
                place += "[%s]" % shown(segment)
        return "%s %s" % (place, self.text) if place else re.sub("^(is|has) ", "", self.text)


_LIMITS = (
    ("minimum", operator.lt, "at least"),
    ("maximum", operator.gt, "at most"),
    ("exclusiveMinimum", operator.le, "more than"),
    ("exclusiveMaximum", operator.ge, "less than"),
)


def number_problem(value: Any, schema: Mapping[str, Any]) -> Optional[Found]:
    for key, breaks, text in _LIMITS:
        limit = schema.get(key)
        if limit is True:
            # In draft 4 a boolean makes the other limit exclusive.
            limit = schema.get("m" + key[len("exclusiveM") :])
        if schemas.is_number(limit) and breaks(value, limit):
            return Found("must be %s %s, not %s" % (text, shown(limit), shown(value)), OTHER)
    return None


def type_problem(value: Any, kinds: Sequence[str]) -> Found:
    wanted = " or ".join(NAMES[kind] for kind in kinds)
    return Found("must be %s, not %s%s" % (wanted, told(value), cure(value, kinds)), TYPE, kinds)


def choice_problem(
    value: Any, choices: Sequence[Any], kinds: Iterable[str] = ()
) -> Optional[Found]:
    """Return a message if a value is neither a choice nor of the types, else None."""
    for choice in choices:
        if schemas.same(value, choice):
            return None
    listed = ", ".join(map(shown, choices[:12]))
    if len(choices) > 12:
        listed += ", ... (%d values)" % len(choices)
    only = "one of " if len(choices) > 1 else ""
    listed += "".join(" or " + NAMES[kind] for kind in kinds)
    text = "must be %s%s, not %s%s" % (only, listed, told(value), near(value, choices))
    return Found(text, CHOICE)


def choices_of(branches: Sequence[Any]) -> Optional[List[Any]]:
    """Return the values of a union that lists all values of its members; None for other unions."""
    choices: List[Any] = []
    for branch in branches:
        if not isinstance(branch, Mapping):
            return None
        own = branch.get("enum", [branch["const"]] if "const" in branch else None)
        if branch.get("type") == "null":
            own = [None]
        if not isinstance(own, list):
            return None
        choices += own
    return choices


def size_problem(
    size: int, schema: Mapping[str, Any], kind: str, noun: str, rank: int = OTHER
) -> Optional[Found]:
    """Return that something is too small or too large; `kind` ends its keywords: "Length"."""
    for key, breaks, words in (("min", operator.lt, "at least"), ("max", operator.gt, "at most")):
        limit = schema.get(key + kind)
        if schemas.is_number(limit) and breaks(size, limit):
            text = "must have %s %s %s, not %d" % (words, shown(limit), noun, size)
            return Found(text if size else "must not be empty", rank)
    return None


MAX_SHOWN = 60  # Characters of a value in a message; a program passes any.

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

NAMES = {
    "string": "a string", "integer": "an integer", "number": "a number",
    "boolean": "True or False", "array": "a list", "object": "a dict", "null": "None",
}  # fmt: skip


def cure(value: Any, kinds: Sequence[str]) -> str:
    if isinstance(value, str) and "," in value[:MAX_SHOWN] and tuple(kinds) == ("array",):
        parts = [shown(part.strip()) for part in value[:MAX_SHOWN].split(",")]
        return "; write [%s]" % ", ".join(parts if len(value) <= MAX_SHOWN else [parts[0], "..."])
    if isinstance(value, (str, int, float, Mapping)) and tuple(kinds) == ("array",):
        return "; write [%s]" % (shown(value) if not isinstance(value, Mapping) else "{...}")
    if "string" in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return "; write %s in quotes, or str(x)" % shown(value)
    if "string" in kinds and isinstance(value, (Mapping, list, tuple)):
        return "; json.dumps(x) if its JSON text is meant"
    return ""


def told(value: Any) -> str:
    """Return a value's description for a message: its type, and the value if that is short."""
    if value is None or isinstance(value, (bool, str)):
        return shown(value)
    kind = type(value).__name__
    if isinstance(value, (list, tuple)):
        return "%s of %d" % (kind, len(value))
    return "%s %s" % (kind, shown(value)) if isinstance(value, (Mapping, int, float)) else kind


def flat(text: Any, limit: int) -> str:
    """Return the beginning of a foreign text as one line that fits into a comment."""
    if not isinstance(text, str):
        return ""
    line = " ".join(_UNPRINTABLE.sub(" ", text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def block(text: Any, limit: int) -> str:
    """Return the beginning of a foreign text, lines kept, that fits into a docstring."""
    if not isinstance(text, str):
        return ""
    lines = text[:limit].replace("\r\n", "\n").replace("\t", "    ").split("\n")
    clean = [_UNPRINTABLE.sub(" ", line).rstrip() for line in lines]
    found = "\n".join(clean).strip()
    return found + " ..." if len(text) > limit else found


def shown(value: Any, limit: int = MAX_SHOWN) -> str:
    if isinstance(value, str):
        text = repr(str.__str__(value[:limit]))
        return text if len(value) <= limit else text[:-1] + "..." + text[-1]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**limit:
        return "a number of more than %d digits" % limit
    if isinstance(value, Mapping):
        return "{...}" if value else "{}"
    if isinstance(value, (list, tuple)) and value:
        return "[...]"
    return repr(value)[:limit]


def near(name: Any, names: Iterable[Any], form: str = "; did you mean %s?") -> str:
    texts = [other[:MAX_SHOWN] for other in names if isinstance(other, str)]
    found = nearest(name, texts) if isinstance(name, str) else ""
    return form % shown(found) if found else ""
