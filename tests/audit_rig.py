"""Audit logs that tests write and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.reading import LogReport, verify
from bridge.gate.policy import CallFacts, Decision

NOON = 1_790_000_000.0
"""2026-09-21, 14:13:20 UTC."""

DAY = 86_400.0

ALLOWED = Decision(action="allow", rule="default for writes")


class FakeClock:
    """A clock with a settable time."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def a_call(tool: str = "write", **arguments: Any) -> CallFacts:
    return CallFacts(server="shop", tool=tool, arguments=arguments)


def records(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in log_paths(directory):
        for line in path.read_bytes().split(b"\n"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def log_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


def tear(directory: Path, data: bytes) -> None:
    """Append the garbage that a crash of the machine may leave."""
    with log_paths(directory)[-1].open("ab") as file:
        file.write(data)


def kinds(directory: Path) -> list[str]:
    return [record["kind"] for record in records(directory)]


def whole(directory: Path) -> LogReport:
    """Return the report on a log without problems."""
    report = verify(directory)
    assert report.problems == []
    return report


def wrong(directory: Path) -> list[str]:
    return [str(finding) for finding in verify(directory).problems]


async def write(log: AuditLog, *names: str, **more: Any) -> list[str]:
    return [await log.append(note(name, **more)) for name in names]


def note(name: str, **more: Any) -> Mapping[str, Any]:
    return {"kind": "run", "run": name, **more}
