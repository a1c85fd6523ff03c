"""`store`: shows, migrates and limits the database that several bridges share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

from bridge.artifacts.store import store_for
from bridge.cli.options import AsJson, flag
from bridge.cli.output import visible, write_err, write_json, write_list, write_out
from bridge.errors import UsageError
from bridge.sessions.checkpoints import Checkpoints
from bridge.settings import Settings, store_of
from bridge.store.heartbeat import ALIVE
from bridge.store.retention import LIMITS
from bridge.store.store import VERSION, Store, table
from bridge.text import counted


async def show_status(settings: Settings, *, as_json: AsJson = False) -> int:
    from sqlalchemy import select

    store, bridges = _store(settings), table("bridges")
    rows = await store.run(store.query, bridges.select().order_by(bridges.c.renewed.desc()))
    ((now,),) = await store.run(store.query, select(store.moment(0)))
    known = [
        {"name": row.name, "version": row.version, "quietSeconds": round(float(now) - row.renewed)}
        for row in rows
    ]
    skew = round(time.time() - float(now))
    if as_json:
        status = {"store": str(store.place), "version": VERSION, "clockSeconds": skew}
        write_json({**status, "bridges": known}, indent=2)
        return 0
    write_out(f"{visible(str(store.place))}, tables of version {VERSION}\n")
    write_out(f"This machine's clock is {skew:+d} s off the server's.\n\n")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "BRIDGE": lambda each: each["name"],
        "VERSION": lambda each: str(each["version"]),
        "ALIVE": lambda each: "yes" if each["quietSeconds"] < ALIVE else "no",
        "HEARD": lambda each: f"{each['quietSeconds']:,} s ago",
    }
    return write_list(known, columns, "No bridge uses it.", as_json=False)


async def migrate(settings: Settings) -> int:
    """Bridges of earlier versions then end."""
    store = _store(settings)
    await store.run(store.migrate)
    write_err(f"The tables of {visible(str(store.place))} are of version {VERSION}.\n")
    return 0


async def limits(
    settings: Settings,
    *,
    takes: Annotated[bool, flag("--set", "make this bridge's settings the store's limits")] = False,
    as_json: AsJson = False,
) -> int:
    store = _store(settings)
    own = {
        "artifacts": store_for(settings).limits,
        "sessions": Checkpoints(store, days=settings.session_days).limits,
    }

    def read_or_set() -> dict[str, Any]:
        with store.writing(durable=True) as kept:
            for kind, said in own.items() if takes else ():
                kept.put(LIMITS, "", kind, json.dumps(said, sort_keys=True).encode())
            return {kind: json.loads(data) for kind, data in kept.all(LIMITS, "")}

    known = await store.run(read_or_set)
    rows = [{"kind": kind, "store": known.get(kind), "bridge": said} for kind, said in own.items()]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "KIND": lambda each: each["kind"],
        "STORE": lambda each: _limits_text(each["store"]),
        "THIS BRIDGE": lambda each: _limits_text(each["bridge"]),
    }
    return write_list(rows, columns, "", as_json=as_json)


def _limits_text(limits: dict[str, int] | None) -> str:
    if limits is None:
        return "not set yet"
    return f"{limits['bytes']:,} bytes, {counted(limits['days'], 'day')}"


def _store(settings: Settings) -> Store:
    if not (store := store_of(settings)).shared:
        message = "This bridge shares no store: MCP_BRIDGE_STORE names no database server."
        raise UsageError(message, remedy="Bridges of one machine need none of this.")
    return store
