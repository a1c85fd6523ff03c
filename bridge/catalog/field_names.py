"""Is a key of an object a name that a programmer chose, or data? Pure.

Owns that guess, which decides whether the shape of a result may keep the key. In doubt it is data:
a name too few costs a little knowledge, an id or a token too many would be a value in a file that
holds none.
"""

from __future__ import annotations

import re

MAX_CHARS = 48
"""The longest field names of real interfaces have 40; longer ones are somebody's text."""

MAX_DIGITS = 4
"""In all: `sha256` has three, dates eight, ids more."""

MAX_NUMBERS = 2
"""Runs of digits."""

MAX_WORD_CHARS = 24
"""Without a change of case or a separator: longer ones are tokens."""

MIN_MIXED_CHARS = 12
"""From here on the changes between cases are counted."""

_NAME = re.compile(r"[$@_]{0,2}[^\W\d_](?:[\w-]|:(?=[^\W\d_]))*")
"""A word, perhaps with a mark in front. No dots, slashes, spaces: those are in paths, addresses and
sentences."""

_ORDINARY = re.compile(r"[a-z]{1,24}(?:_[a-z]{1,24}){0,5}")
"""Most names there are; recognised at once."""

_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{8,}")

_DIGITS = re.compile(r"\d+")

_RUNS = re.compile(r"[A-Z]+")

_WORDS = re.compile(r"[A-Z]*[^\WA-Z\d_]+|[A-Z]+")

_TOKEN = re.compile(
    r"(?i:sk|pk|rk|gh[opsur]|github_pat|glpat|xox[a-z]|hf|npm|pypi|key|tok|sess|whsec|shp[a-z]{2})"
    r"[-_](?=.*[A-Z\d])[\w-]{16,}"
    r"|(?:AKIA|ASIA|AIza|eyJ|ya29)\w{8,}"
)
"""How the tokens of well-known services begin."""


def is_field_name(key: str) -> bool:
    """Whether `key` looks like the name of a field."""
    if not 0 < len(key) <= MAX_CHARS or _HEXADECIMAL.fullmatch(key):
        return False
    if _ORDINARY.fullmatch(key):
        return True
    if not _NAME.fullmatch(key) or len(_DIGITS.findall(key)) > MAX_NUMBERS:
        return False
    if sum(map(str.isdigit, key)) > MAX_DIGITS:
        return False
    if _TOKEN.match(key):
        return False
    runs = len(_RUNS.findall(key))
    if len(key) >= MIN_MIXED_CHARS and runs > 1 and runs * 4 > len(key) and not key.isupper():
        return _is_separated(key)
    return all(len(word) <= MAX_WORD_CHARS for word in _WORDS.findall(key))


def _is_separated(key: str) -> bool:
    """Whether each upper-case run begins a part of its own: `X-Rate-Limit`, `API_KEY_ID`."""
    parts = re.split(r"[-_:]+", key)
    return all(len(_RUNS.findall(part)) <= 1 for part in parts)
