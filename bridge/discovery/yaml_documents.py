"""YAML to plain values, with its size known before anything is built.

Owns the bounds: an alias stands for a whole value, so that a few lines can mean more than any
memory holds, and brackets can nest deeper than any stack. Both are counted in the events of the
parser, which builds nothing. Knows nothing about servers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_YAML_DEPTH = 64
"""Configurations nest five deep."""

MAX_YAML_NODES = 50_000
"""With every alias counted as often as it stands; a configuration with a hundred servers has some
two thousand."""

_PLAIN_WORDS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    ("null", ("~", "n", "N", ""), re.compile(r"(?:~|null|Null|NULL|)$")),
    ("bool", tuple("tTfF"), re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
    ("int", tuple("-+0123456789"), re.compile(r"[-+]?(?:0|[1-9][0-9]{0,99})$")),
    (
        "float",
        tuple("-+.0123456789"),
        re.compile(
            r"[-+]?[0-9]{1,99}(?:\.[0-9]{0,99}(?:[eE][-+]?[0-9]{1,3})?|[eE][-+]?[0-9]{1,3})$"
        ),
    ),
)
"""Tag, first characters and form of words that are no text; longer numbers are text."""

_TAGS = frozenset({None, "!", "tag:yaml.org,2002:str"})
"""What a value may be said to be; every other tag asks for code of its own."""


class UnusableYamlError(ValueError):
    """The text is not what YAML or this module's bounds allow; the message says why."""


def load_yaml(text: str) -> object:
    """The value of one YAML document, of JSON's kinds only.

    Raises:
        UnusableYamlError: There is none, or it is too large.
    """
    # Importing it takes some 20 ms, and few have a client that writes YAML.
    import yaml

    loader = _loader()
    try:
        _check(yaml.parse(text, Loader=loader))
        return _plain(yaml.load(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        msg = f"not valid YAML{place}: {error.problem or error.context}"
        raise UnusableYamlError(msg) from error
    except yaml.YAMLError as error:
        msg = "not valid YAML: it holds a character that YAML does not allow"
        raise UnusableYamlError(msg) from error


@lru_cache(maxsize=1)
def _loader() -> Any:
    """PyYAML's safe loader with YAML 1.2's idea of a plain word, as Goose and Continue have it.

    Under 1.1, which is PyYAML's own, `off` is false, `1:30` is ninety and `<<` copies objects.
    """
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, first, pattern in _PLAIN_WORDS:
        for char in first:
            resolvers.setdefault(char, []).append((f"tag:yaml.org,2002:{tag}", pattern))
    return type("Loader12", (base,), {"yaml_implicit_resolvers": resolvers})


def _check(events: Iterable[Any]) -> None:
    """Count what the document would be when built."""
    total = 0
    anchored: dict[str, int] = {}
    # Of each open collection: its anchor and the count before it.
    open_: list[tuple[str | None, int]] = []
    for event in events:
        kind = type(event).__name__
        tag = getattr(event, "tag", None)
        if tag not in _TAGS:
            msg = f"the tag {str(tag)[:80]} is not supported"
            raise UnusableYamlError(msg)
        if kind == "AliasEvent":
            # An alias inside its own value is not counted yet; it would never end.
            if event.anchor not in anchored:
                msg = f"the alias *{event.anchor[:80]} stands inside its own value, or for nothing"
                raise UnusableYamlError(msg)
            total += anchored[event.anchor]
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_.append((event.anchor, total))
            total += 1
            if len(open_) > MAX_YAML_DEPTH:
                msg = f"nested deeper than {MAX_YAML_DEPTH} levels"
                raise UnusableYamlError(msg)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            anchor, before = open_.pop()
            if anchor:
                anchored[anchor] = total - before
        elif kind == "ScalarEvent":
            total += 1
            if event.anchor:
                anchored[event.anchor] = 1
        if total > MAX_YAML_NODES:
            msg = f"it stands for more than {MAX_YAML_NODES} values"
            raise UnusableYamlError(msg)


def _plain(value: object) -> object:
    """The same value with text for keys, as JSON has it."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if key is None:
        return "null"
    return str(key).lower() if isinstance(key, bool) else str(key)
