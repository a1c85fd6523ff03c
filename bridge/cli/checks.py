"""`servers --check`: starts each server once and compares token costs with the bridge's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from bridge.cli.output import visible, waiting, write_json, write_list, write_prose
from bridge.cli.servers import SERVER_UNREACHABLE
from bridge.client_configs.writers import WRITERS
from bridge.errors import BridgeError, LoginRequiredError
from bridge.runs import Engine
from bridge.server.app import tool_list
from bridge.server.clients import CLIENTS
from bridge.text import count_tokens, definition_text, join_names


async def check_servers(engine: Engine, *, as_json: bool) -> int:
    """Start every server, list its tools and report; return status 4 if one fails."""
    names = engine.servers.names()
    rows: dict[str, dict[str, Any]] = {}
    # Many are package runners that compete for the CPUs.
    turn = anyio.CapacityLimiter(4)
    with waiting("starting servers") as say:

        async def one(name: str) -> None:
            async with turn:
                say(f"starting {name} ({len(rows)} of {len(names)} done)")
                rows[name] = await _check_server(engine, name)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
    document = await _document(engine, [rows[name] for name in names])
    if as_json:
        write_json(document, indent=2)
    else:
        _write(document)
    return SERVER_UNREACHABLE if any(row["state"] != "ready" for row in rows.values()) else 0


async def _check_server(engine: Engine, name: str) -> dict[str, Any]:
    servers = engine.servers
    error: BridgeError | None = (await servers.load_unknown([name], fresh=True)).get(name)
    if error is not None:
        state = "login required" if isinstance(error, LoginRequiredError) else "failed"
        return {"name": name, "state": state, "reason": str(error)}
    listing = servers.last_listing(name)
    assert listing is not None
    return {
        "name": name,
        "state": "ready",
        "server": listing.info.get("name", ""),
        "version": listing.info.get("version", ""),
        "protocol": listing.info.get("protocol", ""),
        "tools": len(listing.tools),
        "startSeconds": listing.start_seconds,
        "schemaBytes": listing.schema_bytes,
        "tokens": _tokens(listing.tools),
    }


def _tokens(tools: Iterable[Any]) -> int:
    texts = (definition_text(one.name, one.description or "", one.input_schema) for one in tools)
    return sum(map(count_tokens, texts))


async def _document(engine: Engine, rows: list[dict[str, Any]]) -> dict[str, Any]:
    own, brief = await tool_list(engine), await tool_list(engine, brief=True)
    deferring = {WRITERS[each.source].name for each in CLIENTS.values() if each.defers}
    specs = engine.servers.discovery.servers
    clients = {source.client for spec in specs for source in (spec.source, *spec.also)}
    return {
        "servers": rows,
        "totals": {
            key: sum(row.get(key, 0) for row in rows) for key in ("tools", "schemaBytes", "tokens")
        },
        "bridge": {"tools": len(own), "tokens": _tokens(own), "briefTokens": _tokens(brief)},
        "clients": {name: "on demand" if name in deferring else "all" for name in sorted(clients)},
    }


def _write(document: dict[str, Any]) -> None:
    rows, totals, bridge = document["servers"], document["totals"], document["bridge"]
    listed = [*rows, {"name": "all", "state": "", **totals}] if len(rows) > 1 else rows
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "NAME": lambda row: row["name"],
        "STATE": lambda row: row["state"],
        "VERSION": lambda row: row.get("version") or "-",
        "PROTOCOL": lambda row: row.get("protocol") or "-",
        "TOOLS": lambda row: f"{row['tools']:,}" if "tools" in row else "-",
        "START": lambda row: f"{row['startSeconds']:.1f} s" if "startSeconds" in row else "-",
        "SCHEMA": lambda row: f"{row['schemaBytes']:,} B" if "schemaBytes" in row else "-",
        "TOKENS": lambda row: f"{row['tokens']:,}" if "tokens" in row else "-",
    }
    write_list(listed, columns, "", as_json=False, drop=("PROTOCOL", "SCHEMA", "VERSION"))
    for row in rows:
        if "reason" in row:
            write_prose(f"\n{visible(row['name'], keep='')}: {visible(row['reason'])}\n")
    directly, through = totals["tokens"], bridge["tokens"]
    loading, deferring = (
        [name for name, how in document["clients"].items() if how == wanted]
        for wanted in ("all", "on demand")
    )
    texts = []
    if deferring:
        texts.append(
            f"\n{join_names(deferring, 400)}: tools load on demand, so definitions cost little. "
            f"The bridge's cost about {bridge['briefTokens']:,} tokens in every conversation; "
            "the gain is that results stay out of it.\n"
        )
    if loading or not deferring:
        texts.append(
            f"\n{join_names(loading, 400) or 'Clients that load all tools'}: about {directly:,} "
            "tokens for all these tools in every conversation; through the bridge about "
            f"{through:,}.\n"
        )
    write_prose(visible("".join(texts)))
