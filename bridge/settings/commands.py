"""Command profiles: what `run_command` may run, from `[commands.NAME]` of `config.toml`. Pure.

Owns the keys, their bounds and their defaults. Whether a path or an executable is there is found
out when a command is run, by `bridge.commands.runner`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from bridge.model import MEBIBYTE, Json
from bridge.settings import fields, parsers

Runtime = Literal["process", "container"]
CredentialKind = Literal["aws"]
CredentialSource = Literal["env", "files", "both"]

LONGEST_TIMEOUT = 300.0
"""Seconds. Clients give up on a call long before; what takes longer is no tool call."""


MIN_MEMORY_BYTES = 16 * MEBIBYTE
MAX_OUTPUT_BYTES = 4 * MEBIBYTE  # Of each stream; a model's whole context is smaller.

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
        description: What it is for, for the model.
        workspace: What the sandbox sees as its working directory, absolute.
        executables: Names or absolute paths; of the image's in a container.
        read: Paths that may be read: absolute, or below the workspace when relative.
        write: Paths that may be written as well. The workspace is only read unless "." is here.
        network: Whether commands have one.
        env: Names of variables that are passed on.
        secrets: Likewise; their values are not shown.
        fixed: Variables with their values.
        call_env: Names of variables that a call may set.
        credentials: Which cloud's login is passed on, from variables, files or both.
        memory_bytes: Memory of each stage of a pipeline.
        cpu_seconds: CPU time of each stage.
        processes: Processes and threads of each stage.
        open_files: Files that each process may have open.
        file_bytes: The largest file that a stage may write.
        timeout: Seconds that a call may take, unless it asks for others.
        max_timeout: Most seconds that a call may ask for.
        output_bytes: What is kept of each stream.
        runtime: What it runs in: a sandbox over this machine's files, or a container.
        image: Of the container.
        check_arguments: Whether the answer to a failed command names arguments that lead out.
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
    call_env: tuple[str, ...] = ()
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


def parse_commands(tables: Json, place: str) -> Mapping[str, CommandProfile]:
    """Return the profiles of the `commands` table at `place`, by name.

    Raises:
        SettingsError: One has a name, a key or a value that cannot be.
    """
    named = fields.named_tables(tables, place, "profile")
    return {name: _profile(name, table, where) for name, table, where in named}


def _profile(name: str, table: Mapping[str, Json], place: str) -> CommandProfile:
    found = fields.record(table, place, KEYS, "a command profile")
    for key in ("executables", "workspace"):
        if not found.get(key):
            fields.fail(place, f"needs `{key}`")
    values = {ATTRIBUTES.get(key, key): value for key, value in found.items()}
    return _consistent(CommandProfile(name=name, place=place, **values), asked=found.keys())


def _consistent(profile: CommandProfile, *, asked: Collection[str]) -> CommandProfile:
    problem = ""
    names = [*profile.env, *profile.secrets, *profile.fixed]
    names += {*profile.call_env} - {*profile.env}
    twice = sorted({name for name in names if names.count(name) > 1})
    if profile.runtime == "container" and not profile.image:
        problem = 'needs `image` when `runtime` is "container"'
    elif profile.runtime == "process" and profile.image:
        problem = 'has an `image`, which only `runtime` = "container" uses'
    elif profile.timeout > profile.max_timeout and {"timeout", "max_timeout"} <= set(asked):
        problem = "has a `timeout` beyond its `max_timeout`"
    elif len({_base(entry) for entry in profile.executables}) < len(profile.executables):
        problem = "names two `executables` that a command could not tell apart"
    elif twice:
        problem = f"has {twice[0]} in more than one of `env` or `call_env`, `secrets` and `set`"
    if problem:
        fields.fail(profile.place, problem)
    return replace(profile, timeout=min(profile.timeout, profile.max_timeout))


def _base(entry: str) -> str:
    return entry.rpartition("/")[2]


_texts = fields.entries("texts")


def _executables(value: Json, place: str) -> tuple[str, ...]:
    """Return a list of names or absolute paths."""
    found = _texts(value, place)
    for entry in found:
        if ("/" in entry and not entry.startswith("/")) or not _base(entry).strip("."):
            problem = f"has {entry!r}, which is neither a plain name nor an absolute path"
            fields.fail(place, problem)
    return found


def _variables(value: Json, place: str) -> tuple[str, ...]:
    """Return a list of names of variables."""
    found = _texts(value, place)
    for name in found:
        if not _VARIABLE.fullmatch(name):
            fields.fail(place, f"has {name!r}, which is no name of a variable")
    return found


def _fixed(value: Json, place: str) -> Mapping[str, str]:
    """Return a table of names to texts."""
    table = fields.table(value, place)
    _variables(list(table), place)
    for name, text in table.items():
        if not isinstance(text, str) or "\0" in text:
            fields.fail(place, f"has {name}, whose value must be a text")
    return dict(table)


def _paths(value: Json, place: str) -> tuple[str, ...]:
    """Return a list of paths."""
    try:
        return tuple(str(parsers.path(item)) for item in _texts(value, place))
    except ValueError as error:
        fields.fail(place, str(error))


def _credentials(value: Json, place: str) -> Credentials:
    """Return a table of `kind` ("aws") and `source` ("env", "files" or "both")."""
    known = {
        "kind": fields.choice(get_args(CredentialKind)),
        "source": fields.choice(get_args(CredentialSource)),
    }
    found = fields.record(value, place, known, "credentials")
    if "kind" not in found:
        fields.fail(place, 'must be like { kind = "aws", source = "both" }')
    return Credentials(kind=found["kind"], source=found.get("source", "both"))


KEYS: Mapping[str, fields.Parse] = {
    "description": fields.text,
    "executables": _executables,
    "workspace": fields.path,
    "read": _paths,
    "write": _paths,
    "network": fields.flag,
    "env": _variables,
    "secrets": _variables,
    "set": _fixed,
    "call_env": _variables,
    "credentials": _credentials,
    "memory": fields.size(MIN_MEMORY_BYTES, parsers.MAX_MEMORY_BYTES),
    "cpu_seconds": fields.whole(3600),
    "file_size": fields.size(0, parsers.MAX_MEMORY_BYTES),
    "processes": fields.whole(4096),
    "open_files": fields.whole(65536, 16),
    "timeout": fields.seconds(LONGEST_TIMEOUT),
    "max_timeout": fields.seconds(LONGEST_TIMEOUT),
    "output_bytes": fields.size(1024, MAX_OUTPUT_BYTES),
    "runtime": fields.choice(get_args(Runtime)),
    "image": fields.text,
    "check_arguments": fields.flag,
}

ATTRIBUTES = {"set": "fixed", "memory": "memory_bytes", "file_size": "file_bytes"}
"""Of keys that are not called like them."""
