"""Command profiles: what `run_command` may run, from `[commands.NAME]` of `config.toml`. Pure.

Paths and executables are looked for when a command is run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bridge.model import MEBIBYTE, Json
from bridge.settings import fields, parsers

Runtime = Literal["process", "container"]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Where credentials come from: variables, files of the home directory, or both."""

    kind: Literal["aws"] = fields.key(fields.choice(("aws",)))
    source: Literal["env", "files", "both"] = fields.key(
        fields.choice(("env", "files", "both")), "both"
    )


def _base(entry: str) -> str:
    return entry.rpartition("/")[2]


def _executable(text: str) -> str:
    """Return a name or an absolute path."""
    if ("/" in text and not text.startswith("/")) or not _base(text).strip("."):
        raise ValueError("is neither a plain name nor an absolute path")
    return text


def _variable(text: str) -> str:
    """Return the name of a variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,255}", text):
        raise ValueError("is no name of a variable")
    return text


def _path(text: str) -> str:
    """Return a path."""
    return str(parsers.path(parsers.line(text)))


_variables = fields.several(fields.of(_variable, str), none=True)
_paths = fields.several(fields.of(_path, str), none=True)


def _set(value: Json, place: str) -> Mapping[str, str]:
    """Return a table of names to texts."""
    table = fields.table(value, place)
    _variables(list(table), place)
    for name, text in table.items():
        if not isinstance(text, str) or "\0" in text:
            fields.fail(place, f"has {name}, whose value must be a text")
    return dict(table)


def _credentials(value: Json, place: str) -> Credentials:
    """Return a table of `kind` ("aws") and `source` ("env", "files" or "both")."""
    return fields.fill(Credentials, value, place)


_timeout = fields.seconds(300)  # Clients give up on a call long before.


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
        secrets: Names of variables; their values are not shown.
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
    description: str = fields.key(fields.text, "")
    executables: tuple[str, ...] = fields.key(
        fields.several(fields.of(_executable, str), none=True)
    )
    workspace: Path = fields.key(fields.path)
    read: tuple[str, ...] = fields.key(_paths, ())
    write: tuple[str, ...] = fields.key(_paths, ())
    network: bool = fields.key(fields.flag, False)
    env: tuple[str, ...] = fields.key(_variables, ())
    secrets: tuple[str, ...] = fields.key(_variables, ())
    fixed: Mapping[str, str] = fields.key(_set, called="set", default_factory=dict, repr=False)
    call_env: tuple[str, ...] = fields.key(_variables, ())
    credentials: Credentials | None = fields.key(_credentials, None)
    memory_bytes: int = fields.key(
        fields.size(16 * MEBIBYTE, 1024**4), 512 * MEBIBYTE, called="memory"
    )
    cpu_seconds: int = fields.key(fields.whole(3600), 60)
    file_bytes: int = fields.key(fields.size(0, 1024**4), 100 * MEBIBYTE, called="file_size")
    processes: int = fields.key(fields.whole(4096), 32)
    open_files: int = fields.key(fields.whole(65536, 16), 256)
    timeout: float = fields.key(_timeout, 120.0)
    max_timeout: float = fields.key(_timeout, 300.0)
    output_bytes: int = fields.key(fields.size(1024, 4 * MEBIBYTE), 256 * 1024)
    runtime: Runtime = fields.key(fields.choice(Runtime), "process")
    image: str = fields.key(fields.text, "")
    check_arguments: bool = fields.key(fields.flag, True)
    place: str = ""


def parse_commands(tables: Json, place: str) -> Mapping[str, CommandProfile]:
    found = {}
    for name, table, where in fields.named_tables(tables, place):
        profile = fields.fill(CommandProfile, table, where, name=name, place=where)
        found[name] = _consistent(profile, asked=table.keys())
    return found


def _consistent(profile: CommandProfile, *, asked: Collection[str]) -> CommandProfile:
    problem = ""
    names = [*profile.env, *profile.secrets, *profile.fixed]
    names += {*profile.call_env} - {*profile.env}
    twice = sorted({name for name in names if names.count(name) > 1})
    if not profile.executables:
        problem = "needs `executables`"
    elif profile.runtime == "container" and not profile.image:
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
