"""Reads `config.toml` into settings, profiles, commands and its other tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge.errors import SettingsError
from bridge.model import Directory, Json, ProtocolMode, ServerSettings
from bridge.settings import fields
from bridge.settings.commands import CommandProfile, parse_commands
from bridge.settings.dependencies import Dependencies, parse_dependencies
from bridge.settings.directories import parse_directories
from bridge.settings.kubernetes import Kubernetes, parse_kubernetes
from bridge.settings.policy import PolicySpec, parse_policy
from bridge.settings.profiles import ProfileSpec, parse_profiles
from bridge.settings.state import require_private

SERVER_KEYS: Mapping[str, fields.Parse] = {"protocol": fields.choice(ProtocolMode)}
"""Keys of a table in `servers`."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The content of a settings file; the text is for line numbers in errors."""

    path: Path
    text: str = field(default="", repr=False)
    values: Mapping[str, Json] = field(default_factory=dict)
    profiles: Mapping[str, ProfileSpec] = field(default_factory=dict)
    commands: Mapping[str, CommandProfile] = field(default_factory=dict)
    policy: PolicySpec = field(default_factory=PolicySpec)
    directories: tuple[Directory, ...] = ()
    dependencies: Dependencies = field(default_factory=Dependencies)
    servers: Mapping[str, ServerSettings] = field(default_factory=dict)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)

    def place(self, key: str, table: str = "") -> str:
        """Return the place of a key for error messages: file, line if it is found, and key."""
        within, line = "", ""
        for number, text in enumerate(self.text.splitlines(), 1):
            if heading := re.match(r"\s*\[([^\[\]]+)\]", text):
                within = heading[1].strip()
            elif within == table and re.match(rf"\s*{re.escape(key)}\s*=", text):
                line = f":{number}"
        return f"{self.path}{line}: {f'{table}.' if table else ''}{key}"


def read_config(path: Path, *, required: bool) -> ConfigFile:
    """Return the settings file; an absent one is empty, or `SettingsError` if `required`."""
    text = _text(path, required=required)
    try:
        document: dict[str, Json] = tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} could not be read: {error}.") from None
    tables = {name: parse(document.pop(name, None), f"{path}: {name}") for name, parse in TABLES}
    policy = replace(tables.pop("policy"), path=path)
    return ConfigFile(path=path, text=text, values=document, policy=policy, **tables)


def parse_servers(tables: Json, place: str) -> Mapping[str, ServerSettings]:
    """Return what the tables in `servers`, named as in clients' files, set."""
    return {
        name: ServerSettings(**fields.record(table, fields.below(place, name), SERVER_KEYS))
        for name, table in fields.table(tables, place).items()
    }


TABLES: Sequence[tuple[str, Callable[[Json, str], Any]]] = (
    ("profiles", parse_profiles),
    ("commands", parse_commands),
    ("policy", parse_policy),
    ("directories", parse_directories),
    ("dependencies", parse_dependencies),
    ("servers", parse_servers),
    ("kubernetes", parse_kubernetes),
)
"""Tables of the settings file, in addition to the settings."""


def _text(path: Path, *, required: bool) -> str:
    try:
        if not path.is_file() and path.exists():
            # Reading a pipe or a device could block, or never end.
            raise SettingsError(f"{path} is not a regular file.")
        require_private(path, "The settings file", "MCP_BRIDGE_CONFIG")
        return path.read_text("utf-8")
    except FileNotFoundError:
        links = (each for each in (path, *path.parents) if each.is_symlink())
        if dangling := next((each for each in links if not each.exists()), None):
            message = f"{dangling} is a link to {dangling.readlink()}, which does not exist."
            if dangling != path:
                message = f"{path} cannot be read: {message}"
            raise SettingsError(message, remedy="Restore what it leads to, or remove it.") from None
        if required:
            raise SettingsError(f"MCP_BRIDGE_CONFIG names {path}, which does not exist.") from None
        return ""
    except (OSError, ValueError) as error:
        remedy = "Let this user read it, or name another file in MCP_BRIDGE_CONFIG."
        raise SettingsError(f"{path} could not be read: {error}.", remedy=remedy) from None
