"""Compares paths as texts. Pure: links are not followed.

A path that servers may interpret in several ways has no normal form. A server may still follow
links, expand variables or have another working directory.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from bridge.settings import parsers

MAX_PATH_CHARS = 4096  # Linux's PATH_MAX. A program may pass any text, and the result is cached.

_FILE = "file:///"


def root(text: str) -> str:
    """Return the normal form of a directory. Raises `ValueError` if it has none."""
    found = normal(str(parsers.path(text)) if text.startswith("~") else text)
    if found is None:
        raise ValueError(
            "cannot be compared with paths: it must be absolute, begin with ~, or be relative "
            "without leading out by .., and have no backslashes"
        )
    return found


@lru_cache(maxsize=128)
def normal(text: str) -> str | None:
    """Return a path without `.`, `..` and doubled slashes; "" is the start of relative paths.

    A `file:///` URL counts as its path. Returns None if the meaning is unknown: an empty text,
    another URL, `~`, a backslash, a percent sign in a URL, or a relative path that leads out by
    `..`.
    """
    if not text or len(text) > MAX_PATH_CHARS or re.search(r"[\\\0]", text):
        return None
    if text.startswith(_FILE):
        text = text[len(_FILE) - 1 :]
        if any(mark in text for mark in "%?#"):
            # Some servers decode the URL, others only remove the scheme.
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
    """Return whether a normal path is a normal directory, or inside it.

    None means unknown: only one is relative, or they differ only in case or Unicode form, which
    some file systems ignore.
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
