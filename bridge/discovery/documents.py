"""Decodes configuration files: JSON as strict as the client's, TOML, YAML and `.env`.

Bounds nesting, and refuses YAML aliases, which could expand to any size.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from bridge.discovery.dialect import Format

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Any program may fill a client's file. Claude Code's state file has some megabytes."""

MAX_KEY_PARTS = 32
"""Maximum parts of a dotted TOML key in a repository's file. Python's parser needs quadratic time:
one key of 60 kB takes a minute. The limit also applies to dotted words within texts.
"""

_KEY_PART = r"""(?:[\w-]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


class MalformedError(ValueError):
    """A file, or an entry of one, is unusable; the message gives the reason."""


def size_limit(format: Format) -> int:
    if format == "json":
        return MAX_FILE_BYTES
    # Python code parses these formats: some seconds at most.
    return 256 * 1024 if format == "yaml" else 2 * 1024 * 1024


def decode(raw: bytes, format: Format = "json") -> object:
    """Return the decoded value of a file. Raises `MalformedError` if it is invalid."""
    text = _decode_text(raw)
    try:
        return _load(text, format)
    except MalformedError:
        raise
    except json.JSONDecodeError as error:
        raise MalformedError(_describe_error(error)) from error
    except tomllib.TOMLDecodeError as error:
        raise MalformedError(_describe_toml_error(error, text)) from error
    except RecursionError as error:
        raise MalformedError("nested too deeply") from error
    except ValueError as error:
        # A number with thousands of digits, or NaN or Infinity.
        raise MalformedError(f"holds an unusable number: {error}") from error


def _decode_text(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MalformedError("the file is UTF-16; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedError(f"not valid UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise MalformedError("the file is empty")
    return text


def _load(text: str, format: Format) -> object:
    if format == "toml":
        if _LONG_KEY.search(text):
            raise MalformedError(f"it holds a key of more than {MAX_KEY_PARTS} parts")
        return tomllib.loads(text)
    if format == "yaml":
        return load_yaml(text)
    if format in ("jsonc", "json with comments"):
        text = strip_comments(text, trailing_commas=format == "jsonc")
        if not text.strip():
            return {}
    return json.loads(text, parse_constant=_refuse_constant)


_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def kind(value: object) -> str:
    """Return the name of a value's JSON type, with its article."""
    return _KINDS.get(type(value), "a date or time")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _describe_error(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    rest = text[at : at + 2]
    before = text[:at].rstrip()
    message, hint = error.msg, ""
    if rest in ("//", "/*") or rest.startswith("#"):
        hint = "; this looks like a comment, and JSON has none"
    elif rest[:1] == "'":
        hint = '; JSON strings stand in double quotes (")'
    elif (rest[:1] in ("}", "]") and before.endswith(",")) or (
        rest[:1] == "," and text[at + 1 :].lstrip()[:1] in ("}", "]")
    ):
        hint = "; the comma before the closing bracket must go"
    elif not text[at:].strip():
        message = "the file ends before its last bracket is closed"
    elif "escape" in error.msg:
        message = "a backslash, as in a Windows path, is written twice"
    return f"not valid JSON at line {error.lineno}, column {error.colno}: {message}{hint}"


def _describe_toml_error(error: tomllib.TOMLDecodeError, text: str) -> str:
    message = str(error)
    place = re.search(r"line (\d+)", message)
    lines = text.split("\n")
    line = lines[int(place[1]) - 1] if place and int(place[1]) <= len(lines) else ""
    if twice := re.match(r"Cannot declare \((.*)\) twice", message):
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        message = f"the table [{name}] is there twice ({place and place[0]}): join or rename them"
    elif re.search(r'"[A-Za-z]:\\|"\\\\', line):
        message = f"a Windows path stands in single quotes ({place and place[0]})"
    return f"not valid TOML: {message}"


_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # A string, perhaps unterminated.
    r"|//[^\r\n]*+"
    r"|/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
    r"|[,\]}]"
    r'|[^\s"/,\]}]++|/',
    re.DOTALL,
)


def strip_comments(text: str, *, trailing_commas: bool) -> str:
    """Return JSON with its comments, and optionally trailing commas, blanked."""
    kept: list[str] = []
    done = 0
    comma = -1
    for match in _TOKEN.finditer(text):
        token, at = match[0], match.start()
        if token.startswith(("//", "/*")):
            if token[1] == "*" and (len(token) < 4 or not token.endswith("*/")):
                line = text.count("\n", 0, at) + 1
                raise MalformedError(f"the comment that starts at line {line} does not end")
            kept += (text[done:at], re.sub(r"[^\r\n]", " ", token))
            done = match.end()
        elif token == ",":
            # A separate piece, so that a following bracket can blank it.
            kept += (text[done:at], ",")
            done = match.end()
            comma = len(kept) - 1
        else:
            if token in ("]", "}") and comma >= 0 and trailing_commas:
                kept[comma] = " "
            comma = -1
    kept.append(text[done:])
    return "".join(kept)


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
"""Tag, first characters and pattern of unquoted words that are not strings."""


def load_yaml(text: str) -> object:
    """Return a YAML document with JSON's types only. Raises `MalformedError`."""
    # The import takes 20 ms, and few users have YAML files.
    import yaml

    loader = _loader()
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return _with_text_keys(yaml.load(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise MalformedError(f"not valid YAML{place}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise MalformedError("not valid YAML: it holds a character that is not allowed") from error


def yaml_node(text: str) -> Any:
    import yaml

    return yaml.compose(text, Loader=_loader())


@lru_cache(maxsize=1)
def _loader() -> Any:
    """Return PyYAML's safe loader with YAML 1.2's plain words, like Goose and Continue.

    In YAML 1.1, PyYAML's default, `off` is false, `1:30` is 90 and `<<` copies objects.
    """
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, first, pattern in _PLAIN_WORDS:
        for char in first:
            resolvers.setdefault(char, []).append((f"tag:yaml.org,2002:{tag}", pattern))
    return type("Loader12", (base,), {"yaml_implicit_resolvers": resolvers})


def _check_events(events: Iterable[Any]) -> None:
    depth = 0
    for event in events:
        kind = type(event).__name__
        tag = getattr(event, "tag", None)
        # Other tags construct other types than JSON's.
        if kind == "AliasEvent" or tag not in {None, "!", "tag:yaml.org,2002:str"}:
            what = f"the tag {str(tag)[:80]}" if tag else f"the alias *{event.anchor[:80]}"
            raise MalformedError(f"{what} is not supported")
        depth += kind in ("MappingStartEvent", "SequenceStartEvent")
        depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
        if depth > 64:  # Configurations nest five deep.
            raise MalformedError("nested too deeply")


def _with_text_keys(value: object) -> object:
    if isinstance(value, list):
        return [_with_text_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Keys such as `null`, `true` and numbers become texts, like in JSON.
    keys = (key if isinstance(key, str) else json.dumps(key, default=str) for key in value)
    return dict(zip(keys, map(_with_text_keys, value.values()), strict=True))


_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)\"""")
_ESCAPE = re.compile(r"\\(.)")


def parse_env_file(text: str) -> dict[str, str]:
    """Return the variables of a `.env` file; a name's last line counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        name, written = match.groups()
        if (quoted := _QUOTED.match(written)) is None:
            found[name] = re.split(r"\s#", written, maxsplit=1)[0].strip()
        elif quoted[1] is not None:
            found[name] = quoted[1]
        else:
            found[name] = _ESCAPE.sub(lambda each: "\n" if each[1] == "n" else each[1], quoted[2])
    return found
