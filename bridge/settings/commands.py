"""Command profiles: what `run_command` may run, from `[commands.NAME]` of `config.toml`. Pure.

Owns the keys, their bounds and their defaults. Whether a path or an executable is there is found
out when a command is run, by `bridge.engine.commands`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from bridge.errors import SettingsError
from bridge.model import MEBIBYTE, Json
from bridge.settings import parsers

Runtime = Literal["process", "container"]
CredentialKind = Literal["aws"]
CredentialSource = Literal["env", "files", "both"]

LONGEST_TIMEOUT = 300.0
"""Seconds. Clients give up on a call long before; what takes longer is no tool call."""

MAX_PROFILES = 50
MAX_ENTRIES = 100
"""In one list of a profile: more is a mistake, and each path is a mount."""

MIN_MEMORY_BYTES = 16 * MEBIBYTE
MAX_OUTPUT_BYTES = 4 * MEBIBYTE
"""Of each stream; a model's whole context is smaller."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Where credentials come from: variables, files of the home directory, or both."""

    kind: CredentialKind
    source: CredentialSource


@dataclass(frozen=True, kw_only=True)
class CommandProfile:
    """One `[commands.NAME]` table.

    Attributes:
        workspace: What the sandbox sees as its working directory, absolute.
        executables: Names or absolute paths; of the image's in a container.
        read, write: Paths that may be read, or written as well: absolute, or below the workspace
            when relative. The workspace can only be read unless it is among the latter (".").
        network: Whether there is one.
        env, secrets: Names of variables that are passed on; values of the latter are not shown.
        fixed: Variables with their values; the key is `set`.
        memory_bytes, cpu_seconds, file_bytes, processes, open_files: Of each stage.
        timeout: Seconds, of a call that asks for none.
        max_timeout: Seconds a call may ask for.
        output_bytes: Kept of each stream.
        check_arguments: Whether arguments that look like paths are refused when they lead out.
        place: Where it is defined, for errors.
    """

    name: str
    workspace: Path
    executables: tuple[str, ...]
    description: str = ""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Credentials | None = None
    memory_bytes: int = 512 * MEBIBYTE
    cpu_seconds: int = 60
    file_bytes: int = 100 * MEBIBYTE
    processes: int = 32
    open_files: int = 256
    timeout: float = 120.0
    max_timeout: float = LONGEST_TIMEOUT
    output_bytes: int = 256 * 1024
    runtime: Runtime = "process"
    image: str = ""
    check_arguments: bool = True
    place: str = ""


def parse_commands(tables: Mapping[str, Json], place: str) -> Mapping[str, CommandProfile]:
    """Return the profiles of the `commands` table at `place`, by name.

    Raises:
        SettingsError: One has a name, a key or a value that cannot be.
    """
    if len(tables) > MAX_PROFILES:
        raise SettingsError(f"{place} holds more than {MAX_PROFILES} profiles.")
    return {name: _profile(name, table, f"{place}.{name}") for name, table in tables.items()}


def _profile(name: str, table: Json, place: str) -> CommandProfile:
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{place}: a profile's name has small letters, digits, - and _ only.")
    if not isinstance(table, Mapping):
        raise SettingsError(f"{place} must be a table, [commands.{name}].")
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in _KEYS:
            message = f"{place}.{key} is no key of a command profile. Known: {', '.join(_KEYS)}."
            raise SettingsError(message)
        attribute, parse = _KEYS[key]
        try:
            values[attribute] = parse(value)
        except ValueError as error:
            raise SettingsError(f"{place}.{key} {error}.") from None
    for key in ("executables", "workspace"):
        if not values.get(key):
            raise SettingsError(f"{place} needs `{key}`.")
    profile = CommandProfile(name=name, place=place, **values)  # type: ignore[arg-type]  # parsed
    return _consistent(profile, asked=frozenset(values))


def _consistent(profile: CommandProfile, *, asked: frozenset[str]) -> CommandProfile:
    problem = ""
    if profile.runtime == "container" and not profile.image:
        problem = 'needs `image` when `runtime` is "container"'
    elif profile.runtime == "process" and profile.image:
        problem = 'has an `image`, which only `runtime` = "container" uses'
    elif profile.timeout > profile.max_timeout and asked >= {"timeout", "max_timeout"}:
        problem = "has a `timeout` beyond its `max_timeout`"
    elif len({_base(entry) for entry in profile.executables}) < len(profile.executables):
        problem = "names two `executables` that a command could not tell apart"
    else:
        names = [*profile.env, *profile.secrets, *profile.fixed]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            problem = f"has {twice[0]} in more than one of `env`, `secrets` and `set`"
    if problem:
        raise SettingsError(f"{profile.place} {problem}.")
    if profile.timeout > profile.max_timeout:
        return CommandProfile(**{**profile.__dict__, "timeout": profile.max_timeout})
    return profile


def _base(entry: str) -> str:
    return entry.rpartition("/")[2]


def _error(message: str) -> ValueError:
    return ValueError(message)


def _text(value: Json) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise _error("must be a text")
    return value.strip()


def _flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise _error("must be true or false")
    return value


def _texts(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error("must be a list of texts")
    if len(value) > MAX_ENTRIES:
        raise _error(f"has more than {MAX_ENTRIES} entries")
    if any(not item.strip() or "\0" in item for item in value):
        raise _error("has an entry that is empty or holds a NUL")
    return tuple(dict.fromkeys(value))


def _executables(value: Json) -> tuple[str, ...]:
    found = _texts(value)
    for entry in found:
        if ("/" in entry and not entry.startswith("/")) or not _base(entry).strip("."):
            raise _error(f"has {entry!r}, which is neither a plain name nor an absolute path")
    return found


def _variables(value: Json) -> tuple[str, ...]:
    found = _texts(value)
    for name in found:
        if not _VARIABLE.fullmatch(name):
            raise _error(f"has {name!r}, which is no name of a variable")
    return found


def _fixed(value: Json) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise _error("must be a table of variables, NAME = text")
    _variables(list(value))
    for name, text in value.items():
        if not isinstance(text, str) or "\0" in text:
            raise _error(f"has {name}, whose value must be a text")
    return dict(value)


def _paths(value: Json) -> tuple[str, ...]:
    return tuple(str(parsers.path(item)) for item in _texts(value))


def _workspace(value: Json) -> Path:
    path = parsers.path(_text(value))
    if not path.is_absolute():
        raise _error("must be an absolute path (or begin with ~)")
    return path


def _credentials(value: Json) -> Credentials:
    if not isinstance(value, Mapping) or set(value) - {"kind", "source"}:
        raise _error('must be like { kind = "aws", source = "both" }')
    kind, source = value.get("kind"), value.get("source", "both")
    if kind not in get_args(CredentialKind):
        raise _error(f"has kind {kind!r}; known: {', '.join(get_args(CredentialKind))}")
    if source not in get_args(CredentialSource):
        raise _error(f"has source {source!r}, not {', '.join(get_args(CredentialSource))}")
    return Credentials(kind=cast("CredentialKind", kind), source=cast("CredentialSource", source))


def _size(least: int, most: int) -> Callable[[Json], int]:
    def parse(value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _error('must be a size such as "512m"')
        try:
            size = parsers.parse_size(str(value))
        except ValueError as error:
            raise _error(f"{value!r} {error}") from None
        if not least <= size <= most:
            raise _error(f"must be between {least:,} and {most:,} bytes")
        return size

    return parse


def _number(least: int, most: int) -> Callable[[Json], int]:
    def parse(value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _error(f"must be a whole number from {least} to {most}")
        return value

    return parse


def _timeout(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _error("must be a number of seconds")
    if not 1 <= value <= LONGEST_TIMEOUT:
        raise _error(f"must be from 1 to {LONGEST_TIMEOUT:g} seconds")
    return float(value)


def _runtime(value: Json) -> str:
    if value not in get_args(Runtime):
        raise _error(f"is {value!r}, not {' or '.join(get_args(Runtime))}")
    return str(value)


_KEYS: Mapping[str, tuple[str, Callable[[Json], object]]] = {
    "description": ("description", _text),
    "executables": ("executables", _executables),
    "workspace": ("workspace", _workspace),
    "read": ("read", _paths),
    "write": ("write", _paths),
    "network": ("network", _flag),
    "env": ("env", _variables),
    "secrets": ("secrets", _variables),
    "set": ("fixed", _fixed),
    "credentials": ("credentials", _credentials),
    "memory": ("memory_bytes", _size(MIN_MEMORY_BYTES, parsers.MAX_MEMORY_BYTES)),
    "cpu_seconds": ("cpu_seconds", _number(1, 3600)),
    "file_size": ("file_bytes", _size(0, parsers.MAX_MEMORY_BYTES)),
    "processes": ("processes", _number(1, 4096)),
    "open_files": ("open_files", _number(16, 65536)),
    "timeout": ("timeout", _timeout),
    "max_timeout": ("max_timeout", _timeout),
    "output_bytes": ("output_bytes", _size(1024, MAX_OUTPUT_BYTES)),
    "runtime": ("runtime", _runtime),
    "image": ("image", _text),
    "check_arguments": ("check_arguments", _flag),
}
"""Key of the table to its attribute and parser."""
