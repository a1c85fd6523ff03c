"""Command profiles for `run_command`, from `[commands.NAME]` of `config.toml`. Pure.

Paths and executables are resolved when a command runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bridge.model import MEBIBYTE, Json
from bridge.settings import fields, parsers

Runtime = Literal["process", "container"]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The source of cloud credentials: variables, files of the home directory, or both."""

    kind: Literal["aws"] = fields.key(fields.choice(("aws",)))
    source: Literal["env", "files", "both"] = fields.key(
        fields.choice(("env", "files", "both")), "both"
    )


def _base(entry: str) -> str:
    return entry.rpartition("/")[2]


def _executable(text: str) -> str:
    """Return a name or an absolute path."""
    if ("/" in text and not text.startswith("/")) or not _base(text).strip(". "):
        raise ValueError("is neither a plain name nor an absolute path")
    return text


def _variable(text: str) -> str:
    """Return the name of a variable."""
    return parsers.require_match(r"[A-Za-z_][A-Za-z0-9_]{0,255}", text, "is no name of a variable")


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


_timeout = fields.seconds(300)  # Most clients time out earlier.


@dataclass(frozen=True, kw_only=True)
class CommandProfile:
    """One `[commands.NAME]` table.

    Attributes:
        description: The profile's purpose, for the model.
        workspace: The working directory of commands, absolute.
        executables: Names or absolute paths; in a container, those of the image.
        read: Paths that commands may read: absolute, or relative to the workspace.
        write: Paths that commands may read and write. The workspace is read-only unless "." is
            here.
        network: Whether commands have network access.
        env: Names of variables that commands inherit.
        secrets: Names of inherited variables whose values are masked in output.
        fixed: Variables with fixed values.
        call_env: Names of variables that a call may set.
        credentials: The cloud login that commands get.
        memory_bytes: Memory of each stage of a pipeline.
        cpu_seconds: CPU time of each stage.
        processes: Processes and threads of each stage.
        open_files: Open files of each process.
        file_bytes: The largest file that a stage may write.
        timeout: Seconds that a call may take by default.
        max_timeout: Most seconds that a call may request.
        output_bytes: Bytes that are kept of each output stream.
        runtime: The sandbox: a process with this machine's files, or a container.
        image: The container's image.
        check_arguments: Whether the answer to a failed command names arguments outside the
            sandbox.
        place: Where the profile is defined, for errors.
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
        problem = "has a `timeout` above its `max_timeout`"
    elif len({_base(entry) for entry in profile.executables}) < len(profile.executables):
        problem = "names two `executables` with the same name"
    elif twice:
        problem = f"has {twice[0]} in more than one of `env` or `call_env`, `secrets` and `set`"
    if problem:
        fields.fail(profile.place, problem)
    return replace(profile, timeout=min(profile.timeout, profile.max_timeout))
