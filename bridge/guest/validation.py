"""Whether a value fits a JSON Schema, and what harmless conversion would make it fit.

Owns both questions for arguments, in the guest before a call leaves and on the host for what a
program has written out. Schemas come from servers: any JSON value is taken for one, nothing here
raises, and work and depth are bounded. What cannot be told counts as fine: unknown keywords,
references that lead nowhere, patterns that are no Python, whatever lies beyond a bound. The server
has the last word on all of these.

Looser than the specification on purpose, since servers are: several branches of a `oneOf` may fit,
a value equal to the `default` always fits, `nullable` admits null, a `multipleOf` of fractions
allows for rounding, `format` is never a reason to refuse.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

from bridge.guest.conversion import convert
from bridge.guest.faults import (
    KEYS,
    OTHER,
    TYPE,
    Found,
    choice_problem,
    choices_of,
    fits_type,
    is_number,
    number_problem,
    size_problem,
    type_problem,
)
from bridge.guest.placeholders import PREFIX, WHOLE
from bridge.guest.schemas import as_list, as_mapping, pointed_at, same
from bridge.guest.wording import NAMES, near, shown, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, FrozenSet, List, Optional, Sequence, Set, Tuple

__all__ = ["argument_problem", "certain_types", "convert", "problem"]

MAX_STEPS = 10_000
"""Values and keywords looked at for one argument: some 50 ms; the rest is left to the server."""

MAX_DEPTH = 48
"""Nesting of schemas followed, references included."""

MAX_PATTERN_CHARS = 300
MAX_SUBJECT_CHARS = 1_000
"""Of a pattern, and of a text that one is tried on. Python's patterns can take exponential time."""

_MAX_BRANCHES = 64
"""Branches of one `anyOf` that are tried."""

_MAX_PAIRS = 64
"""Containers in one list that are compared with each other for `uniqueItems`."""

_UNCHECKED = frozenset(
    """
    contains dependencies dependentRequired dependentSchemas if minContains propertyNames
    unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Keywords that could refuse a value and are not looked at: what holds them is never sure."""


_ANNOTATIONS = frozenset({"type", "title", "description", "default", "examples", "format"})
_CERTAIN = {"string": str, "boolean": bool, "integer": int, "null": type(None)}


def problem(
    value: Any, schema: Any, root: Any, where: str = "", *, patterns: bool = False
) -> Optional[str]:
    """Return what is wrong with `value`, in a sentence without a full stop; None if it fits.

    Args:
        root: The document that `$ref`s point into.
        where: What the value is called, such as a parameter's name.
        patterns: Whether to try the schema's patterns. Only inside a sandbox: a hostile one can
            take for ever.
    """
    try:
        found = _Check(root, patterns).check(value, schema, 0)
    except Exception:
        # An odd subclass of a plain type, or a bug: neither may keep a call from being made.
        return None
    return None if found is None else found.sentence(where)


def argument_problem(
    value: Any, schema: Any, root: Any, where: str, required: bool, *, patterns: bool = False
) -> Optional[str]:
    """Return what is wrong with `value` as an argument; None if it is fine.

    None for an optional argument is fine whatever the schema says: it is left out.
    """
    if value is None and not required:
        return None
    return problem(value, schema, root, where, patterns=patterns)


def certain_types(schema: Any, inner: bool = False) -> FrozenSet[type]:
    """Return the Python types of which every value fits; floats are never sure."""
    if not isinstance(schema, Mapping):
        return frozenset()
    if _ANNOTATIONS.issuperset(schema):
        kind = schema.get("type")
        kinds = kind[: len(NAMES)] if isinstance(kind, list) else [kind]
        return frozenset(_CERTAIN[one] for one in kinds if isinstance(one, str) and one in _CERTAIN)
    # How many servers write "or null".
    branches = schema.get("anyOf")
    plain = not inner and isinstance(branches, list) and len(branches) <= len(NAMES)
    if not plain or "type" in schema or not _ANNOTATIONS.issuperset(set(schema) - {"anyOf"}):
        return frozenset()
    return frozenset().union(*(certain_types(branch, True) for branch in as_list(branches)))


class _Check:
    """One value against one schema, counting the work."""

    def __init__(self, root: Any, patterns: bool) -> None:
        self.root = root
        self.patterns = patterns
        self.left = MAX_STEPS
        # How often something could not be told; what rests on a value's fitting has to know.
        self.unsure = 0

    def check(self, value: Any, schema: Any, depth: int) -> Optional[Found]:
        """Return what is wrong with a value; None if it fits, as far as can be told."""
        self.left -= 1
        if schema is False:
            return Found("is not allowed here", KEYS)
        if not isinstance(schema, Mapping):
            self.unsure += schema is not True
            return None
        if self.left < 0 or depth > MAX_DEPTH:
            self.unsure += 1
            return None
        if value is None and schema.get("nullable") is True:
            return None
        if _not_known_yet(value):
            self.unsure += 1
            return self._type(value, schema.get("type")) if isinstance(value, str) else None
        if "default" in schema and same(value, schema["default"]):
            self.unsure += 1
            return None
        kind = schema.get("type")
        if kind is not None:
            found = self._type(value, kind)
            if found is not None:
                return found
        if len(schema) > 1 or kind is None:
            return self._rest(value, schema, depth)
        return None

    def _rest(self, value: Any, schema: Mapping[str, Any], depth: int) -> Optional[Found]:
        if not _UNCHECKED.isdisjoint(schema):
            self.unsure += 1
        found = self._choice(value, schema)
        if found is None:
            if isinstance(value, str):
                found = self._string(value, schema)
            elif is_number(value):
                found = number_problem(value, schema)
            elif isinstance(value, Mapping):
                found = self._object(value, schema, depth)
            elif isinstance(value, (list, tuple)):
                found = self._array(value, schema, depth)
        return found if found is not None else self._combined(value, schema, depth)

    def _type(self, value: Any, kind: Any) -> Optional[Found]:
        kinds = kind if isinstance(kind, list) else [kind]
        known = 0 < len(kinds) <= len(NAMES) and all(
            isinstance(one, str) and one in NAMES for one in kinds
        )
        if not known:
            self.unsure += 1
        elif not any(fits_type(value, one) for one in kinds):
            return type_problem(value, kinds)
        return None

    def _choice(self, value: Any, schema: Mapping[str, Any]) -> Optional[Found]:
        found = choice_problem(value, [schema["const"]]) if "const" in schema else None
        choices = schema.get("enum")
        if found is None and isinstance(choices, list) and choices:
            self.left -= len(choices)
            if self.left < 0:
                self.unsure += 1
                return None
            found = choice_problem(value, choices)
        return found

    def _string(self, value: str, schema: Mapping[str, Any]) -> Optional[Found]:
        found = size_problem(len(value), schema, "Length", "characters")
        pattern = schema.get("pattern")
        if found is None and isinstance(pattern, str) and self._matches(pattern, value) is False:
            text = "must match the pattern %s, unlike %s"
            found = Found(text % (shown(pattern, MAX_PATTERN_CHARS), shown(value)), OTHER)
        return found

    def _matches(self, pattern: str, text: str) -> Optional[bool]:
        """Return whether a pattern matches; None if that cannot be told."""
        self.left -= 10
        bounded = len(pattern) <= MAX_PATTERN_CHARS and len(text) <= MAX_SUBJECT_CHARS
        if self.patterns and bounded and self.left > 0:
            try:
                with warnings.catch_warnings():
                    # Of patterns that other languages read otherwise.
                    warnings.simplefilter("error")
                    return re.search(pattern, text) is not None
            except (re.error, Warning, RecursionError, OverflowError, MemoryError):
                pass
        self.unsure += 1
        return None

    def _object(
        self, value: Mapping[Any, Any], schema: Mapping[str, Any], depth: int
    ) -> Optional[Found]:
        properties = as_mapping(schema.get("properties"))
        others = schema.get("additionalProperties", True)
        by_pattern = as_mapping(schema.get("patternProperties"))
        if properties or by_pattern or others is not True:
            for key, item in value.items():
                for part in self._of_key(str(key), properties, by_pattern, others):
                    if part is False:
                        hint = near(key, properties)
                        return Found("has no key %s%s" % (shown(key), hint), KEYS)
                    found = self.check(item, part, depth + 1)
                    if found is not None:
                        return found.under(str(key))
        return self._keys(value, schema, properties)

    def _of_key(
        self,
        key: str,
        properties: Mapping[str, Any],
        by_pattern: Mapping[str, Any],
        others: Any,
    ) -> List[Any]:
        """Return the schemas that a key's value has to fit."""
        own = [properties[key]] if key in properties else []
        told_all = True
        for pattern, part in by_pattern.items():
            if self.left < 0:
                self.unsure += 1
                return own
            matched = self._matches(str(pattern), key)
            if matched:
                own.append(part)
            told_all = told_all and matched is not None
        return own if own or not told_all else [others]

    def _keys(
        self, value: Mapping[Any, Any], schema: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> Optional[Found]:
        required = schema.get("required")
        for name in as_list(required):
            self.left -= 1
            if isinstance(name, str) and name not in value:
                # Perhaps it is there under another name.
                strange = [key for key in value if key not in properties]
                hint = near(name, strange, "; it has %s")
                return Found("is missing key %s%s" % (shown(name), hint), KEYS)
        return size_problem(len(value), schema, "Properties", "keys", KEYS)

    def _array(
        self, value: Sequence[Any], schema: Mapping[str, Any], depth: int
    ) -> Optional[Found]:
        found = size_problem(len(value), schema, "Items", "items")
        if found is not None:
            return found
        items = schema.get("items", True)
        prefix = as_list(schema.get("prefixItems"))
        if isinstance(items, list):
            # How older drafts write what is `prefixItems` now.
            prefix, items = items, schema.get("additionalItems", True)
        if items is False and len(value) > len(prefix):
            text = "must have at most %d items, not %d"
            return Found(text % (len(prefix), len(value)), OTHER)
        checked = len(value) if items is not True else min(len(value), len(prefix))
        for index in range(checked):
            part = prefix[index] if index < len(prefix) else items
            found = self.check(value[index], part, depth + 1)
            if found is not None:
                return found.under(index)
            if self.left < 0:
                break
        return self._unique(value) if schema.get("uniqueItems") is True else None

    def _unique(self, value: Sequence[Any]) -> Optional[Found]:
        seen: Set[Any] = set()
        containers: List[Any] = []
        self.left -= len(value)
        for item in value:
            if not isinstance(item, (list, tuple, Mapping)):
                # Python takes True for 1, JSON does not.
                key = (isinstance(item, bool), item)
                again = key in seen
                seen.add(key)
            elif len(containers) < _MAX_PAIRS:
                again = any(same(item, other) for other in containers)
                containers.append(item)
            else:
                self.unsure += 1
                break
            if again:
                return Found("must have each item once; %s is there twice" % shown(item), OTHER)
        return None

    def _combined(self, value: Any, schema: Mapping[str, Any], depth: int) -> Optional[Found]:
        parts: List[Any] = []
        if "$ref" in schema:
            known, target = pointed_at(schema["$ref"], self.root)
            self.unsure += not known
            parts += [target] if known else []
        parts += as_list(schema.get("allOf"))
        for part in parts:
            found = self.check(value, part, depth + 1)
            if found is not None:
                return found
        for key in ("anyOf", "oneOf"):
            branches = as_list(schema.get(key))
            if branches:
                found = self._any(value, branches, depth)
                if found is not None:
                    return found
                # A second branch of a `oneOf` that fits would be a fault by the letter.
                self.unsure += key == "oneOf"
        if "not" in schema:
            before = self.unsure
            if self.check(value, schema["not"], depth + 1) is None and self.unsure == before:
                return Found("must not be %s" % told(value), OTHER)
        return None

    def _any(self, value: Any, branches: Sequence[Any], depth: int) -> Optional[Found]:
        """Return what is wrong with the branch that was most likely meant; None if any fits."""
        if len(branches) > _MAX_BRANCHES:
            self.unsure += 1
            return None
        failures = []
        for branch in branches:
            found = self.check(value, branch, depth + 1)
            if found is None:
                return None
            failures.append(found)
        if all(found.types and not found.path for found in failures):
            kinds = dict.fromkeys(kind for found in failures for kind in found.types)
            return type_problem(value, list(kinds))
        choices = choices_of(branches)
        if choices is not None:
            return choice_problem(value, choices)
        return max(failures, key=_nearness)


def _not_known_yet(value: Any) -> bool:
    """Whether what a held call is going to return stands for a value, or in a text."""
    if isinstance(value, str):
        return PREFIX in value
    return isinstance(value, dict) and WHOLE in value


def _nearness(found: Found) -> Tuple[int, int]:
    """Return how near a branch came: who got its `kind` wrong meant another, whatever else fits."""
    rank = OTHER if found.rank == TYPE and found.path else found.rank
    return rank, len(found.path)
