"""`servers` and `tools`: what was discovered, and what it can do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bridge.cli.output import table, visible, write_err, write_out
from bridge.engine import Engine, open_engine
from bridge.errors import BridgeError
from bridge.settings import Settings

MAX_REASON_CHARS = 160
"""Of a reason, in the table."""


async def servers(arguments: argparse.Namespace, settings: Settings) -> int:
    """List every server: name, where it was found, transport, state, why it was skipped."""
    async with open_engine(settings) as engine:
        errors: dict[str, BridgeError] = {}
        if arguments.start:
            _, errors = await engine.servers.load(
                engine.servers.names(), tolerant=True, patient=True
            )
        rows = _rows(engine)
    if arguments.json:
        write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
    elif not rows:
        write_err(
            "No MCP servers found. Add one to Claude Code with `claude mcp add`, or name a file "
            "in MCP_SERVERS_CONFIG.\n"
        )
    else:
        headings = ("NAME", "ALIAS", "TRANSPORT", "STATE", "FOUND IN")
        cells = [
            (
                row["name"],
                f"mcp_{row['alias']}" if row.get("alias") else "-",
                row.get("transport", "-"),
                row["state"],
                row["source"] + (f": {_brief(row['reason'])}" if row.get("reason") else ""),
            )
            for row in rows
        ]
        write_out(table(headings, cells))
    return 4 if errors else 0


def _brief(reason: str) -> str:
    """Return what of a reason fits a line; --json has all of it."""
    line = reason.splitlines()[0]
    return line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]}…"


def _rows(engine: Engine) -> list[dict[str, Any]]:
    known = engine.servers
    states = known.pool.states()
    rows: list[dict[str, Any]] = []
    for spec in known.discovery.servers:
        state = states[spec.name]
        row: dict[str, Any] = {
            "name": spec.name,
            "alias": known.aliases[spec.name],
            "transport": spec.transport,
            "state": state.state,
            "source": str(spec.source),
            "client": spec.source.client,
        }
        if state.error:
            row["reason"] = state.error
        rows.append(row)
    rows.extend(
        {
            "name": entry.name,
            "state": "skipped",
            "source": str(entry.source),
            "client": entry.source.client,
            "reason": entry.reason,
        }
        for entry in known.discovery.skipped
    )
    return rows


async def tools(arguments: argparse.Namespace, settings: Settings) -> int:
    """List or search tools; servers that do not start are named on stderr."""
    async with open_engine(settings) as engine:
        if arguments.server:
            names: tuple[str, ...] = (engine.servers.resolve(arguments.server),)
        else:
            names = engine.servers.names()
        _, errors = await engine.servers.load(names, tolerant=True, patient=True)
        found = engine.guide.tools(names, query=arguments.query)
    if arguments.json:
        write_out(json.dumps(found, ensure_ascii=False, indent=2) + "\n")
    else:
        for document in found:
            write_out(f"{visible(document['signature'])}\n")
            if document.get("description"):
                write_out(f"    {visible(document['description'])}\n")
    for name, error in errors.items():
        write_err(visible(f"warning: {name}: {error}\n"))
    if not found and not arguments.json:
        write_err("No tool matches.\n" if arguments.query and names else "No tools found.\n")
    return 4 if errors and not found else 0
