"""A server that records its calls, for an engine or a client's configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.model import ServerSpec, Source

RECORDER = Path(__file__).parent / "fakes" / "servers" / "recorder.py"


def recorder(
    name: str,
    log: Path,
    *,
    notes: Mapping[str, str] | None = None,
    bare: bool = False,
    env: Mapping[str, str] | None = None,
) -> ServerSpec:
    """Return the definition of a recorder. Several recorders may share a log.

    Args:
        notes: Its readable notes.
        bare: Omit the annotations of its tools.
    """
    entry = recorder_entry(log, notes=notes, bare=bare, env=env)
    return ServerSpec(
        name=name,
        transport="stdio",
        source=Source(client="Test", scope="user", path="/test.json", key=f"mcpServers.{name}"),
        command=entry["command"],
        args=tuple(entry["args"]),
        env=entry["env"],
    )


def recorder_entry(
    log: Path,
    *,
    notes: Mapping[str, str] | None = None,
    bare: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the definition as an entry of `mcpServers`."""
    return {
        "command": sys.executable,
        "args": [str(RECORDER), str(log)],
        "env": {
            "RECORDER_NOTES": json.dumps(dict(notes or {})),
            **({"RECORDER_BARE": "1"} if bare else {}),
            **(env or {}),
        },
    }


def recorded(log: Path) -> list[tuple[str, Any]]:
    """Return the tools and arguments of the recorded calls, in order."""
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [(line["tool"], line["arguments"]) for line in lines]


def tools_recorded(log: Path) -> list[str]:
    return [tool for tool, _ in recorded(log)]
