"""Parses the texts of settings. Pure.

Each function raises `ValueError` for an invalid text. The message continues a sentence that begins
with the text.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from bridge.store.store import SCHEMES, ServerUrl, server_url

MAX_PATH_CHARS = 4096  # Linux's PATH_MAX. A program may pass any text, and the result is cached.

_FILE = "file:///"

ENGINES = ("podman", "docker")

LADDER = (*ENGINES, "bubblewrap", "seatbelt")
"""The backends that `auto` tries, in order. Podman is first because it needs no root daemon."""

WEAKER = ("landlock",)
"""Backends with weaker isolation, which are used only if MCP_BRIDGE_RUNTIME names them."""

ELSEWHERE = ("kubernetes",)
"""Backends on other machines, which are used only if MCP_BRIDGE_RUNTIME names them."""

T = TypeVar("T")

_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def number(what: str, least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        """Return a number."""
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"is not a number of {what}") from None
        if not least <= value <= most:
            raise ValueError(f"must be from {least:,} to {most:,} {what}")
        return value

    return parse


seconds = number("seconds", 0.001, 86_400)  # More than a day is probably a wrong unit.
idle_seconds = number("seconds, 0 for never", 0, 86_400)
cpus = number("CPUs", 0.01, 1024)


def parse_size(text: str) -> int:
    """Return a size such as "512m", "1.5g" or "67108864", in bytes; raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError('is not a size such as "512m" or "1g"')
    size = float(match[1]) * _UNITS[match[2]]
    if size > 1024**5:  # Above the engines' maximum; a float may be infinite.
        raise ValueError("is above 1024t")
    return int(size)


def size_text(number: int) -> str:
    """Return a number of bytes in the notation of settings: "512m"."""
    for letter in ("t", "g", "m", "k"):
        if number and number % _UNITS[letter] == 0:
            return f"{number // _UNITS[letter]}{letter}"
    return f"{number:,}"


def size(least: int, most: int = 1024**5) -> Callable[[str], int]:
    def parse(text: str) -> int:
        """Return a size such as "50m", in bytes."""
        if not least <= (value := parse_size(text)) <= most:
            raise ValueError(f"must be from {size_text(least)} to {size_text(most)}")
        return value

    return parse


memory = size(32 * 1024**2, 1024**4)  # Python with asyncio does not start reliably with less.


def integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        """Return a whole number."""
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"must be from {least:,} to {most:,}")
        return value

    return parse


def pids(text: str) -> int:
    """Return a number of processes. Engines read 0 as no limit, so it means the maximum."""
    value = integer(-(2**31), 2**31)(text)
    # The supervisor, the program and its threads need 8; kernels have 32,768.
    return 32_768 if value <= 0 or value > 32_768 else integer(8, 32_768)(text)


def user(text: str) -> str:
    """Return "uid:gid" of an unprivileged user."""
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text.strip())
    if match is None:
        raise ValueError('is not "uid:gid" in numbers, such as "65534:65534"')
    uid, gid = int(match[1]), int(match[2] or match[1])
    if uid == 0:
        raise ValueError("asks to run the program as root; choose another uid")
    if gid == 0:
        raise ValueError("asks to run the program in root's group; choose another gid")
    if max(uid, gid) >= 2**31:  # Engines and kernels reserve higher ids.
        raise ValueError(f"has an id above {2**31 - 1}")
    return text.strip() if match[2] else f"{uid}:{gid}"


def boolean(text: str) -> bool:
    """Return a boolean: 1, true, yes, on, or 0, false, no, off."""
    lower = text.strip().lower()
    if lower in ("1", "true", "yes", "on"):
        return True
    if lower in ("0", "false", "no", "off", ""):
        return False
    raise ValueError('is neither "1" nor "0"')


def choice(literal: Any) -> Callable[[str], str]:
    """Return a parser of one of several words, or of a `Literal`, that ignores case."""
    options: tuple[str, ...] = get_args(literal) or literal
    known = {each.lower(): each for each in options}
    aliases = {"warn": "warning", "fatal": "critical"}

    def parse(text: str) -> str:
        """Return one of a few words."""
        word = text.strip().lower()
        if (value := known.get(aliases.get(word, word))) is None:
            near = nearest(word, known)
            guess = f"; did you mean {known[near]}?" if near else ""
            raise ValueError(f"is not one of {', '.join(options)}{guess}")
        return value

    return parse


def text(text: str) -> str:
    """Return a string."""
    return text.strip()


def line(text: str) -> str:
    """Return one line, to be shown."""
    found = text.strip()
    if not found:
        raise ValueError("is empty")
    if not found.isprintable():
        raise ValueError("holds a line break or another character that cannot be shown")
    return found


def label(text: str) -> str:
    """Return a label of small letters, digits, - and _."""
    problem = "must have small letters, digits, - and _ only"
    return require_match(r"[a-z0-9][a-z0-9_-]{0,63}", text, problem)


def require_match(pattern: str, text: str, problem: str) -> str:
    """Return a text that matches a regular expression as a whole."""
    if not re.fullmatch(pattern, text):
        raise ValueError(problem)
    return text


def path(text: str) -> Path:
    """Return a path, with a leading ~ expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("names the home directory of an unknown user") from None


def whole_path(text: str) -> Path:
    """Return an absolute path, with a leading ~ expanded."""
    if not (found := path(text.strip())).is_absolute():
        raise ValueError("is relative: write the whole path, or begin it with ~")
    return found


def normal_root(text: str) -> str:
    """Return the normal form of a directory. Raises `ValueError` if it has none."""
    found = normal_path(str(path(text)) if text.startswith("~") else text)
    if found is None:
        raise ValueError(
            "cannot be compared with paths: it must be absolute, begin with ~, or be relative "
            "without leading out by .., and have no backslashes"
        )
    return found


@lru_cache(maxsize=128)
def normal_path(text: str) -> str | None:
    """Return a path without `.`, `..` and doubled slashes; "" is the start of relative paths.

    Links are not followed. A `file:///` URL counts as its path. Returns None if servers may read
    the path in several ways: an empty text, another URL, `~`, a backslash, a percent sign in a
    URL, or a relative path that leads out by `..`.
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


def holds_path(directory: str, path: str) -> bool | None:
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


def place(text: str) -> Path:
    """Return an absolute path; a relative one counts from the working directory."""
    return path(text).absolute()


def database(text: str) -> Path | ServerUrl:
    """Return a path, sqlite:///PATH as SQLAlchemy writes it, or postgresql://... as libpq does."""
    scheme, mark, rest = text.strip().partition("://")
    if not mark:
        return whole_path(text)
    if scheme in SCHEMES:
        return server_url(text.strip())
    if scheme not in ("sqlite", "sqlite+pysqlite") or not rest.startswith("/") or "?" in rest:
        raise ValueError(
            "is no database that is supported: give a path, sqlite:///PATH, or postgresql://..."
        )
    return whole_path(rest[1:])


def lower(text: str) -> str:
    """Return a name in small letters."""
    return text.strip().lower()


def replica(text: str) -> str:
    """Return a replica's name: it becomes part of headers and ids."""
    problem = "must be letters, digits, dots and dashes, 63 at most"
    return require_match(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", text.strip(), problem)


def split(item: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of a list with commas, each item once."""

    def parse(text: str) -> tuple[T, ...]:
        """Return a list."""
        found = []
        for part in filter(None, map(str.strip, text.split(","))):
            try:
                found.append(item(part))
            except ValueError as error:
                raise ValueError(f"names {part!r}, which {error}") from None
        return tuple(dict.fromkeys(found))

    return parse


def runtime(text: str) -> str:
    """Return "auto", a backend's name, or an engine's path."""
    value = text.strip()
    known = (*LADDER, *WEAKER, *ELSEWHERE)
    if value not in ("auto", *known) and "/" not in value:
        raise ValueError(f"is not auto, {', '.join(known)} or the path of an engine")
    return value


def _backend(text: str) -> str:
    """Return the name of a backend."""
    if text in (*WEAKER, *ELSEWHERE):
        raise ValueError("is used only when named as the runtime")
    return choice(LADDER)(text)


def _denial(text: str) -> str:
    """Return a module, function, attribute (".name") or absolute path."""
    problem = "is no module, function, .attribute or path"
    return require_match(r"/.*|\.?\w+(\.\w+)*", text, problem)


runtime_order = split(_backend)
denials = split(_denial)
directories = split(whole_path)


def sources(text: str) -> tuple[str, ...]:
    """Return names of clients to read, or of clients to omit, each with a "-"."""
    found = split(lower)(text)
    if found == ("all",):
        return ()
    if len({name.startswith("-") for name in found}) > 1:
        raise ValueError('mixes names to read with names to leave out (those with a "-")')
    return found


def nearest(key: str, known: Iterable[str]) -> str:
    return "".join(difflib.get_close_matches(key, sorted(known), n=1))


def suggestion(key: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown key: the most similar one, or all known keys."""
    names = sorted(known)
    near = nearest(key, names)
    return f"Did you mean {near}?" if near else f"Known: {', '.join(names)}."
