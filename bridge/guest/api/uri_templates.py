"""Expands URI templates (RFC 6570) into the address of a resource.

Unlike in the RFC, a missing variable is an error, except in a query (`{?a,b}`, `{&a}`).
"""

from __future__ import annotations

import re

from bridge.guest.api.values import list_names, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Mapping, Tuple

_VARIABLE = re.compile(r"((?:[A-Za-z0-9_.\-]|%[0-9A-Fa-f]{2})+)(\*|:[1-9][0-9]{0,3})?")

_RESERVED = ":/?#[]@!$&'()*+,;="

# Operator to separator of values; the first two have no prefix.
_SEPARATORS = {"": ",", "+": ",", "#": ",", ".": ".", "/": "/", ";": ";", "?": "&", "&": "&"}
_NAMED = {";": "", "?": "=", "&": "="}
"""Operators that write names, with what an empty value leaves after its name."""


def expand(template: str, values: Mapping[str, Any]) -> str:
    """Return the URI for these values: texts, numbers, booleans, and lists or dicts of them."""
    parts = re.split(r"\{([^{}]*)\}", template)
    texts, expressions = parts[::2], [_parse_expression(part) for part in parts[1::2]]
    # Real templates have one to four.
    if any("{" in text or "}" in text for text in texts) or len(expressions) > 100:
        raise ValueError("%.200r is no URI template" % template)
    found = [(name, operator) for operator, variables in expressions for name, _ in variables]
    names = dict(found)
    for given in values:
        if given not in names:
            message = "%.200r has no variable %r.%s Variables: %s."
            raise TypeError(message % (template, given, nearest(given, names), list_names(names)))
    missing = [n for n, operator in found if operator not in ("?", "&") and values.get(n) is None]
    if missing:
        message = "%.200r is a template; give %s as keyword arguments"
        raise TypeError(message % (template, list_names(dict.fromkeys(missing))))
    for index, (operator, variables) in enumerate(expressions):
        filled = list(_fill(operator, variables, values))
        first = operator if filled and operator != "+" else ""
        parts[2 * index + 1] = first + _SEPARATORS[operator].join(filled)
    return "".join(parts)


def _parse_expression(expression: str) -> Tuple[str, List[Tuple[str, str]]]:
    operator = expression[:1] if expression[:1] in _SEPARATORS else ""
    matches = [_VARIABLE.fullmatch(part) for part in expression[len(operator) :].split(",")]
    if None in matches:
        raise ValueError("{%.100s} in a URI template cannot be understood" % expression)
    return operator, [(match[1], match[2] or "") for match in matches if match]


def _fill(
    operator: str, variables: List[Tuple[str, str]], values: Mapping[str, Any]
) -> Iterator[str]:
    def assign(name: str, text: str) -> str:
        return name + ("=" + text if text else _NAMED.get(operator, "="))

    for name, modifier in variables:
        value = values.get(name)
        if isinstance(value, dict):
            pairs = [[_escape(name, part, operator) for part in pair] for pair in value.items()]
            if modifier == "*":
                yield from (assign(*pair) for pair in pairs)
                continue
            texts = [text for pair in pairs for text in pair]
        elif isinstance(value, (list, tuple)):
            texts = [_escape(name, item, operator) for item in value]
        elif value is None:
            continue
        else:
            cut = int(modifier[1:]) if modifier[:1] == ":" else None
            texts = [_escape(name, _text(name, value)[:cut], operator)]
        if modifier != "*":
            texts = [",".join(texts)] if texts else []
        yield from (assign(name, text) if operator in _NAMED else text for text in texts)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    message = "the variable %r of a URI template must be a text or a number, not a %s"
    raise TypeError(message % (name, type(value).__name__))


def _escape(name: str, value: Any, operator: str) -> str:
    # Imported here: most programs expand no template.
    from urllib.parse import quote

    text = _text(name, value)
    if operator not in ("+", "#"):
        return quote(text, safe="")
    # Where reserved characters are allowed, escapes are kept.
    parts = re.split(r"(%[0-9A-Fa-f]{2})", text)
    parts[::2] = [quote(part, safe=_RESERVED) for part in parts[::2]]
    return "".join(parts)
