"""How the text of one setting becomes its value. Pure.

Each function takes the text as given and returns the value, or raises `ValueError` with the rest of
a sentence that starts with the setting's name and text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from bridge.settings import globs
from bridge.store.store import SCHEMES, ServerUrl, server_url

ENGINES = ("podman", "docker")

LADDER = (*ENGINES, "bubblewrap", "seatbelt")
"""What `auto` tries, in order: podman before docker, since it needs no daemon that runs as root;
bubblewrap where there is no engine at all, and Seatbelt where that system is macOS."""

WEAKER = ("landlock",)
"""What is used only when MCP_BRIDGE_RUNTIME names it: it keeps programs in less well than any of
the ladder, so nothing falls back to it."""

ELSEWHERE = ("kubernetes",)
"""What runs programs on other machines, and only when MCP_BRIDGE_RUNTIME names it."""

_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def idle_seconds(text: str) -> float:
    """Return a number of seconds; 0 means never."""
    return 0.0 if text.strip() == "0" else seconds(text)


def seconds(text: str) -> float:
    """Return a number of seconds, of a day at most."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number of seconds") from None
    if not 0 < value <= 86_400:  # A day; beyond it a number is more likely a mistake in units.
        raise ValueError("must be more than 0 and at most 86400 seconds")
    return value


def parse_size(text: str) -> int:
    """Return a size such as "512m", "1.5g" or "67108864", in bytes.

    Raises:
        ValueError: The text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError('is not a size such as "512m" or "1g"')
    size = float(match[1]) * _UNITS[match[2]]
    if size > 1024**5:  # No engine takes more, and what a float cannot hold is no size.
        raise ValueError("is beyond 1024t")
    return int(size)


def memory(text: str) -> int:
    """Return a size such as "512m", in bytes, that a program can have."""
    value = parse_size(text)
    if value < 32 * 1024**2:  # With asyncio imported it does not start reliably.
        raise ValueError("is below the 32m that Python needs to start")
    if value > 1024**4:
        raise ValueError("is beyond the 1t that a program may have")
    return value


def integer(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def parse(text: str) -> int:
        """Return a whole number."""
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        if value < least:
            raise ValueError(f"must be at least {least}")
        if value > most:
            raise ValueError(f"must be at most {most}")
        return value

    return parse


def pids(text: str) -> int:
    """Return a number of processes; engines read 0 and less as no limit, so it is the maximum."""
    value = integer(-(2**31), 2**31)(text)
    # The supervisor, the program and its threads need a handful; kernels have 32,768.
    return 32_768 if value <= 0 or value > 32_768 else integer(8, 32_768)(text)


def cpus(text: str) -> float:
    """Return a number of CPUs' worth of time."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number of CPUs") from None
    if not 0.01 <= value <= 1024:
        raise ValueError("must be between 0.01 and 1024")
    return value


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
    if max(uid, gid) >= 2**31:  # Engines and kernels keep those for themselves.
        raise ValueError(f"has an id above {2**31 - 1}")
    return text.strip() if match[2] else f"{uid}:{gid}"


def boolean(text: str) -> bool:
    """Return a boolean: 1, true, yes, on, or 0, false, no, off."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError('is neither "1" nor "0"')


def choice(literal: Any, *, upper: bool = False) -> Callable[[str], str]:
    """Return a parser of one word out of those of a `Literal`."""
    options = get_args(literal)

    def parse(text: str) -> str:
        """Return one of a few words."""
        value = text.strip().upper() if upper else text.strip().lower()
        value = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(value, value)
        if value not in options:
            raise ValueError(f"is not one of {', '.join(options)}")
        return value

    return parse


def text(text: str) -> str:
    """Return a string."""
    return text.strip()


def path(text: str) -> Path:
    """Return a path, with a leading ~ expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("names the home directory of a user there is none of") from None


def whole_path(text: str) -> Path:
    """Return an absolute path, with a leading ~ expanded."""
    if not (found := path(text)).is_absolute():
        raise ValueError("is relative: write the whole path, or begin it with ~")
    return found


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


def lowered(text: str) -> str:
    """Return a name in small letters."""
    return text.strip().lower()


def replica(text: str) -> str:
    """Return a replica's name: it becomes part of headers and ids."""
    found = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", found):
        raise ValueError("must be letters, digits, dots and dashes, 63 at most")
    return found


def names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, each once."""
    found = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    if len(set(found)) < len(found):
        raise ValueError("names something twice")
    return found


def runtime(text: str) -> str:
    """Return "auto", a backend's name, or an engine's path."""
    value = text.strip()
    known = (*LADDER, *WEAKER, *ELSEWHERE)
    if value not in ("auto", *known) and "/" not in value:
        raise ValueError(f"is not auto, {', '.join(known)} or the path of an engine")
    return value


def runtime_order(text: str) -> tuple[str, ...]:
    """Return names of backends in order, each once."""
    found = names(text)
    for name in found:
        if name in ELSEWHERE:
            raise ValueError(f"names {name}, which is used only when named as the runtime")
        if name in WEAKER:
            message = f"names {name}, which is weaker: it is used only when named as the runtime"
            raise ValueError(message)
        if name not in LADDER:
            raise ValueError(f"names {name!r}, which is not one of {', '.join(LADDER)}")
    return found


def sources(text: str) -> tuple[str, ...]:
    """Return names of clients to read, or of those to leave out, each with its "-"."""
    found = names(text)
    if found == ("all",):
        return ()
    if len({name.startswith("-") for name in found}) > 1:
        raise ValueError('mixes names to read with names to leave out (those with a "-")')
    return found


def secret_names(text: str) -> tuple[str, ...]:
    """Return globs in lower case, parted by commas; those of public values keep their "-"."""
    for name in (found := names(text)):
        globs.parse(name.removeprefix("-"))
    return found


def denials(text: str) -> tuple[str, ...]:
    """Return modules, functions, attributes (".name") and absolute paths, parted by commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in found:
        if not re.fullmatch(r"/.*|\.?\w+(\.\w+)*", name):
            raise ValueError(f"names {name!r}, which is no module, function, .attribute or path")
    return found


def directories(text: str) -> tuple[Path, ...]:
    """Return absolute paths, parted by commas, with a leading ~ expanded."""
    found = tuple(path(name.strip()) for name in text.split(",") if name.strip())
    for place in found:
        if not place.is_absolute():
            raise ValueError(f"names {str(place)!r}, which is not an absolute path")
    return found


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the nearest of the names; empty if none is near."""
    return "".join(difflib.get_close_matches(key, sorted(known), n=1))


def suggestion(key: str, known: Iterable[str]) -> str:
    """Return what to say of a key that is none: the nearest one, or all there are."""
    names = sorted(known)
    near = nearest(key, names)
    return f"Did you mean {near}?" if near else f"Known: {', '.join(names)}."
