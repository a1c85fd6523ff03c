"""URI templates: from the address that a server describes to one that can be read.

Owns the expansion of RFC 6570, all four levels, with one difference: a variable that is left out is
a mistake, except in a query (`{?a,b}`, `{&a}`), where it means that the server decides.
"""

from __future__ import annotations

import re

from bridge.guest.values import listed, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Tuple

MAX_EXPRESSIONS = 100
"""In one template; those of real servers have one to four."""

_EXPRESSION = re.compile(r"\{([^{}]*)\}")

_VARIABLE = re.compile(r"((?:[A-Za-z0-9_.\-]|%[0-9A-Fa-f]{2})+)(\*|:[1-9][0-9]{0,3})?")

_UNRESERVED = "-._~"

_RESERVED = _UNRESERVED + ":/?#[]@!$&'()*+,;="

# Operator: what comes first, what between, whether names are written, what an empty value leaves
# after its name, and what needs no escape.
_OPERATORS: Dict[str, Tuple[str, str, bool, str, str]] = {
    "": ("", ",", False, "", _UNRESERVED),
    "+": ("", ",", False, "", _RESERVED),
    "#": ("#", ",", False, "", _RESERVED),
    ".": (".", ".", False, "", _UNRESERVED),
    "/": ("/", "/", False, "", _UNRESERVED),
    ";": (";", ";", True, "", _UNRESERVED),
    "?": ("?", "&", True, "=", _UNRESERVED),
    "&": ("&", "&", True, "=", _UNRESERVED),
}

_OPTIONAL = ("?", "&")


def expand(template: str, values: Mapping[str, Any]) -> str:
    """Return the URI for these values: texts, numbers, truth values, lists or dicts of such.

    Raises:
        TypeError: A value is missing, has no place in the template, or is of another type.
        ValueError: It is no template.
    """
    parts = _EXPRESSION.split(template)
    texts, expressions = parts[::2], [_parsed(part) for part in parts[1::2]]
    if any("{" in text or "}" in text for text in texts) or len(expressions) > MAX_EXPRESSIONS:
        raise ValueError("%.200r is no URI template" % template)
    names = [name for _, variables in expressions for name, _ in variables]
    for given in values:
        if given not in names:
            message = "%.200r has no variable %r.%s Variables: %s."
            raise TypeError(message % (template, given, nearest(given, names), listed(names)))
    missing = [
        name
        for operator, variables in expressions
        for name, _ in variables
        if operator not in _OPTIONAL and values.get(name) is None
    ]
    if missing:
        message = "%.200r is a template; give %s as keyword arguments"
        raise TypeError(message % (template, listed(dict.fromkeys(missing))))
    filled = [_filled(operator, variables, values) for operator, variables in expressions]
    parts = [texts[0]]
    for index, text in enumerate(filled):
        parts += (text, texts[index + 1])
    return "".join(parts)


def _parsed(expression: str) -> Tuple[str, List[Tuple[str, str]]]:
    operator = expression[:1] if expression[:1] in _OPERATORS else ""
    variables = []
    for part in expression[len(operator) :].split(","):
        found = _VARIABLE.fullmatch(part)
        if found is None:
            raise ValueError("{%.100s} in a URI template cannot be understood" % expression)
        variables.append((found.group(1), found.group(2) or ""))
    return operator, variables


def _filled(operator: str, variables: List[Tuple[str, str]], values: Mapping[str, Any]) -> str:
    first, between, named, empty, safe = _OPERATORS[operator]
    parts = []
    for name, modifier in variables:
        value = values.get(name)
        if value is None or (isinstance(value, (list, tuple, dict)) and not value):
            continue
        if modifier == "*" and isinstance(value, (list, tuple, dict)):
            parts.append(between.join(_exploded(name, value, named, empty, safe)))
            continue
        text = _joined(name, value, modifier, safe)
        if named:
            text = "%s%s" % (name, "=" + text if text else empty)
        parts.append(text)
    return first + between.join(parts) if parts else ""


def _exploded(name: str, value: Any, named: bool, empty: str, safe: str) -> List[str]:
    if isinstance(value, dict):
        pairs = [(_escaped(str(key), safe), item) for key, item in value.items()]
    else:
        pairs = [(name if named else "", item) for item in value]
    parts = []
    for key, item in pairs:
        text = _escaped(_text(name, item), safe)
        if not key:
            parts.append(text)
        else:
            parts.append("%s%s" % (key, "=" + text if text or not named else empty))
    return parts


def _joined(name: str, value: Any, modifier: str, safe: str) -> str:
    if isinstance(value, dict):
        items = [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        text = _text(name, value)
        return _escaped(text[: int(modifier[1:])] if modifier[:1] == ":" else text, safe)
    return ",".join(_escaped(_text(name, item), safe) for item in items)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    message = "the variable %r of a URI template must be a text or a number, not a %s"
    raise TypeError(message % (name, type(value).__name__))


def _escaped(text: str, safe: str) -> str:
    # Not above: most programs expand nothing.
    from urllib.parse import quote

    if safe is _UNRESERVED:
        return quote(text, safe=safe)
    # What is escaped already stays so where reserved characters may stand.
    return re.sub(
        r"(%[0-9A-Fa-f]{2})|[^%]+|%",
        lambda part: part.group(1) or quote(part.group(0), safe=safe),
        text,
    )
