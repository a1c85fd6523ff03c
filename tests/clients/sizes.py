"""How large a client's first request is, with a server of its own and with it behind the bridge."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.client import PEERS, Client, Setting
from tests.clients.exchange import bridge_environ
from tests.clients.model import program, serving

SERVER = "server-everything"
"""The server of the Model Context Protocol's own tests, from npm."""


@dataclass(frozen=True)
class Direct(Setting):
    """A client that starts a server itself."""

    def entry(self, **more: Any) -> dict[str, Any]:
        return {**entry(), "env": {}, **more}


def entry() -> dict[str, Any]:
    return {"command": str(PEERS / "node_modules/.bin" / f"mcp-{SERVER}"), "args": []}


def first_bytes(client: Client, kind: type[Setting]) -> int:
    """Return the bytes of the first request that has tools, to the nearest hundred."""
    with tempfile.TemporaryDirectory(prefix="mcb") as name, serving([program("1")]) as model:
        directory = Path(name)
        environ = bridge_environ(directory / "bridge", {"everything": entry()})
        client.run(kind(directory / "home", model.url, environ))
        return round(model.sizes[0], -2)


def with_sizes(page: str, rows: Mapping[str, str]) -> str:
    head, begin, rest = page.partition("<!-- begin: sizes -->")
    table, end, tail = rest.partition("<!-- end: sizes -->")
    lines = table.strip().splitlines()
    new = [
        next((row for title, row in rows.items() if line.startswith(f"| {title} ")), line)
        for line in lines
    ]
    return "".join([head, begin, "\n\n", "\n".join(new), "\n\n", end, tail])


def size_row(client: Client) -> str:
    direct, bridged = (first_bytes(client, kind) for kind in (Direct, Setting))
    return f"| {client.title} {client.version} | {direct:,} | {bridged:,} | {bridged - direct:+,} |"
