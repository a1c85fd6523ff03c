"""Bytes of a configuration file to plain values.

Owns decoding: UTF-8, JSON as strict as the client that owns the file, TOML, YAML, and saying in
the reader's words what is wrong. Knows nothing about servers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import NoReturn

from bridge.discovery.clients import Format
from bridge.discovery.jsonc import OpenCommentError, strip_comments
from bridge.discovery.report import shown
from bridge.discovery.yaml_documents import UnusableYamlError, load_yaml

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Claude Code keeps all its state in the file that holds its servers; some megabytes are usual."""

MAX_LENIENT_BYTES = 2 * 1024 * 1024
"""Of a format that is read by Python code rather than by C: some seconds at worst."""

MAX_YAML_BYTES = 256 * 1024
"""Where there is no C library for YAML, this takes seconds."""

MAX_KEY_PARTS = 32
"""Of a dotted key in TOML. Python's parser takes time with the square of their number and more: a
file of 60 kB that is one such key takes a minute. Within a text that many words with dots between
them count as well: nobody writes those."""

_KEY_PART = r"""(?:[\w-]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")

MAX_REPEATED_SHOWN = 5
"""Repeated keys named in one message; more only say how many."""

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class MalformedError(ValueError):
    """The bytes are not what the file's format asks for; the message says why."""


class Members(dict[str, object]):
    """A JSON object that remembers which of its keys were written more than once."""

    repeated: tuple[str, ...] = ()


def size_limit(format: Format) -> int:
    """How many bytes of a file in this format are read."""
    if format == "json":
        return MAX_FILE_BYTES
    return MAX_YAML_BYTES if format == "yaml" else MAX_LENIENT_BYTES


def decode(raw: bytes, format: Format = "json") -> object:
    """The value that a file's bytes stand for.

    Raises:
        MalformedError: They stand for none.
    """
    text = _text(raw)
    try:
        return _load(text, format)
    except MalformedError:
        raise
    except json.JSONDecodeError as error:
        raise MalformedError(_explain(error)) from error
    except tomllib.TOMLDecodeError as error:
        msg = f"not valid TOML: {error}"
        raise MalformedError(msg) from error
    except OpenCommentError as error:
        line = text.count("\n", 0, error.args[0]) + 1
        msg = f"the comment that starts at line {line} does not end"
        raise MalformedError(msg) from error
    except UnusableYamlError as error:
        raise MalformedError(str(error)) from error
    except RecursionError as error:
        msg = "nested too deeply"
        raise MalformedError(msg) from error
    except ValueError as error:
        # A number of thousands of digits, or NaN and Infinity, which JSON does not have.
        msg = f"holds an unusable number: {error}"
        raise MalformedError(msg) from error


def _text(raw: bytes) -> str:
    if raw.startswith(_UTF16_MARKS):
        msg = "the file is UTF-16; save it as UTF-8"
        raise MalformedError(msg)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"not valid UTF-8 (byte {error.start})"
        raise MalformedError(msg) from error
    if not text.strip():
        msg = "the file is empty"
        raise MalformedError(msg)
    return text


def _load(text: str, format: Format) -> object:
    if format == "toml":
        if _LONG_KEY.search(text):
            msg = f"it holds a key of more than {MAX_KEY_PARTS} parts"
            raise MalformedError(msg)
        return tomllib.loads(text)
    if format == "yaml":
        return load_yaml(text)
    if format in ("jsonc", "json with comments"):
        text = strip_comments(text, trailing_commas=format == "jsonc")
    return _load_json(text)


def repeated_keys(value: object) -> str:
    """A sentence about keys that one object has twice; empty when there are none."""
    if not isinstance(value, Members) or not value.repeated:
        return ""
    named = ", ".join(f'"{shown(key)}"' for key in value.repeated[:MAX_REPEATED_SHOWN])
    more = len(value.repeated) - MAX_REPEATED_SHOWN
    tail = f" and {more} more" if more > 0 else ""
    return f"defined more than once: {named}{tail}; the last one counts"


def kind(value: object) -> str:
    """What a value is, in JSON's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return "a date or time"


def _load_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_members, parse_constant=_refuse_constant)


def _members(pairs: list[tuple[str, object]]) -> Members:
    members = Members(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice: dict[str, None] = {}
        for key, _ in pairs:
            if key in seen:
                twice[key] = None
            seen.add(key)
        members.repeated = tuple(twice)
    return members


def _refuse_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _explain(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    rest = text[at : at + 2]
    before = text[:at].rstrip()
    hint = ""
    if rest in ("//", "/*") or rest.startswith("#"):
        hint = "; this looks like a comment, and JSON has none"
    elif rest[:1] == "'":
        hint = '; JSON strings stand in double quotes (")'
    elif (rest[:1] in ("}", "]") and before.endswith(",")) or (
        rest[:1] == "," and text[at + 1 :].lstrip()[:1] in ("}", "]")
    ):
        hint = "; the comma before the closing bracket must go"
    return f"not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}{hint}"
