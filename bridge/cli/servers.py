"""`servers`: what was discovered, where, and in which state it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from bridge.cli.checks import check
from bridge.cli.output import table, terminal_width, visible, write_err, write_out
from bridge.discovery.report import SkippedServer
from bridge.engine import Engine, open_engine
from bridge.model import ServerSpec, Source
from bridge.settings import Settings

MAX_REASON_CHARS = 160
"""Of a reason, in the table."""

_HEADINGS = ("NAME", "ALIAS", "TRANSPORT", "STATE", "TOOLS", "CLIENTS", "FOUND IN")


async def servers(arguments: argparse.Namespace, settings: Settings) -> int:
    """List every server: name, where it was found, transport, state, why it was skipped."""
    async with open_engine(settings) as engine:
        if arguments.check and engine.servers.names():
            return await check(engine, as_json=arguments.json)
        rows = _rows(engine)
    if arguments.json:
        write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
    elif not rows:
        write_err(
            "No MCP servers found. Add one to Claude Code with `claude mcp add`, or name a file "
            "in MCP_SERVERS_CONFIG.\n"
        )
    else:
        write_out(table(_HEADINGS, [_cells(row) for row in rows], width=terminal_width()))
        _write_notes(rows)
    return 0


def _write_notes(rows: Sequence[dict[str, Any]]) -> None:
    """Say how definitions of one server differ from file to file, below the table."""
    notes = [(row["name"], text) for row in rows for text in row.get("differences", ())]
    if notes:
        write_out("\nDefined differently elsewhere; the table has the definition that is used:\n")
    for name, text in notes:
        write_out(f"  {visible(name, keep='')}: {visible(text, keep='')}\n")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    reason = f": {_brief(row['reason'])}" if row.get("reason") else ""
    clients = dict.fromkeys([row["client"], *(place["client"] for place in row.get("also", ()))])
    return (
        row["name"],
        f"mcp_{row['alias']}" if row.get("alias") else "-",
        row.get("transport", "-"),
        row["state"],
        str(row.get("tools", "-")),
        ", ".join(clients),
        row["source"] + reason,
    )


def _brief(reason: str) -> str:
    """Return what of a reason fits a line; --json has all of it."""
    line = reason.splitlines()[0]
    return line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]}…"


def _rows(engine: Engine) -> list[dict[str, Any]]:
    discovery = engine.servers.discovery
    found = [_row(engine, spec) for spec in discovery.servers]
    return found + [_skipped(entry) for entry in discovery.skipped]


def _row(engine: Engine, spec: ServerSpec) -> dict[str, Any]:
    """Return what is known of a server. Commands, addresses and variables may hold secrets."""
    state = engine.servers.pool.state(spec.name)
    listing = engine.servers.listing(spec.name)
    row: dict[str, Any] = {
        "name": spec.name,
        "alias": engine.servers.aliases[spec.name],
        "transport": spec.transport,
        "state": state.state,
        "source": str(spec.source),
        "client": spec.source.client,
        "scope": spec.source.scope,
        "also": [_place(source) for source in spec.also],
        "differences": list(spec.differences),
        "description": engine.servers.known.entry(spec.name).description,
        "oauth": spec.oauth is not None,
    }
    if listing is not None:
        row["tools"] = len(listing.tools)
    if spec.tools.only is not None:
        row["onlyTools"] = sorted(spec.tools.only)
    if spec.tools.without:
        row["withoutTools"] = sorted(spec.tools.without)
    if state.error:
        row["reason"] = state.error
    return row


def _place(source: Source) -> dict[str, str]:
    return {"client": source.client, "scope": source.scope, "source": str(source)}


def _skipped(entry: SkippedServer) -> dict[str, Any]:
    return {
        "name": entry.name,
        "state": "skipped",
        "source": str(entry.source),
        "client": entry.source.client,
        "reason": entry.reason,
    }
