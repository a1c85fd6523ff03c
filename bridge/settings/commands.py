"""Command profiles: what `run_command` may run, from `[commands.NAME]` of `config.toml`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.model import Json


@dataclass(frozen=True, kw_only=True)
class CommandProfile:
    """One `[commands.NAME]` table."""

    name: str


def parse_commands(tables: Mapping[str, Json], place: str) -> Mapping[str, CommandProfile]:
    """Return the profiles of the `commands` table at `place`, by name."""
    return {name: CommandProfile(name=name) for name in tables}
