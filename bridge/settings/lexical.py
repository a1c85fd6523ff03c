"""Paths compared as texts. Pure: no file is looked at, so links are not followed.

Texts that servers are known to read in different ways have no normal form here. A server may still
follow links, expand variables, or have another working directory.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from bridge.settings import parsers

MAX_PATH_CHARS = 4096  # What Linux takes at once; a program passes any text, and it is kept.

_FILE = "file:///"


def root(text: str) -> str:
    """Return the normal form of a directory to compare with; raises `ValueError`."""
    found = normal(str(parsers.path(text)) if text.startswith("~") else text)
    if found is None:
        raise ValueError(
            "is no path that others can be compared with: absolute, beginning with ~, or relative "
            "without leading out by .., and without backslashes"
        )
    return found


@lru_cache(maxsize=128)
def normal(text: str) -> str | None:
    """Return a path without `.`, `..` and doubled slashes; "" is a relative path's own beginning.

    A `file:///` address counts as its path. None stands for unknown: an empty text,
    another address, `~`, a backslash, a percent sign in an address, or a relative path that leads
    out of where it begins.
    """
    if not text or len(text) > MAX_PATH_CHARS or re.search(r"[\\\0]", text):
        return None
    if text.startswith(_FILE):
        text = text[len(_FILE) - 1 :]
        if any(mark in text for mark in "%?#"):
            # Some servers decode addresses, others only cut off the scheme.
            return None
    elif text.startswith("~") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        return None
    absolute = text.startswith("/")
    steps: list[str] = []
    for step in text.split("/"):
        if step in ("", "."):
            continue
        if step != "..":
            steps.append(step)
        elif steps:
            steps.pop()
        elif not absolute:
            return None
    return ("/" if absolute else "") + "/".join(steps)


def holds(directory: str, path: str) -> bool | None:
    """Return whether a normal path is a normal directory, or below it.

    None stands for unknown: one of them is relative, or they differ only in ways that some file
    systems do not see (case, and how Unicode writes a letter).
    """
    if path.startswith("/") != directory.startswith("/"):
        return None
    if _below(path, directory):
        return True
    return None if _below(_folded(path), _folded(directory)) else False


def _below(path: str, directory: str) -> bool:
    if directory in ("", "/") or path == directory:
        return True
    return path.startswith(f"{directory}/")


@lru_cache(maxsize=128)
def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())
