"""A client for the official suite's scenarios, made of the bridge's own parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.context import Context

from bridge.errors import LoginRequiredError, UpstreamError
from bridge.event_loop import Clock
from bridge.model import Json, OAuthHints, ServerSpec, Source, Tool
from bridge.upstream.client_features import Method, on_behalf_of
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_login import log_in
from bridge.upstream.pool import Pool
from tests.upstream.login_rig import browse

MAX_LOGINS = 3
"""One for the server and one for each step of permissions that a scenario has."""

LOGIN_SECONDS = 20.0
"""For one login. Scenarios without an answer to the browser wait as long."""

EXAMPLES: Mapping[str, Json] = {"string": "a", "integer": 1, "number": 1.5, "boolean": True}
"""A value of each simple type."""


class Consenting:
    client = "conformance"
    clock = Clock()
    wants_progress = True
    log_level = "debug"
    trace = Context()

    async def ask(self, server: str, method: Method, params: Mapping[str, Any]) -> dict[str, Json]:
        return {"action": "accept", "content": _fill_schema(params["requestedSchema"])}

    def note_restart(self, server: str) -> None: ...

    async def record_refusal(self, server: str, method: Method, why: str) -> None: ...

    async def report(self, *progress: object) -> None: ...

    async def log(self, *message: object) -> None: ...


async def play(directory: Path, url: str, context: Mapping[str, Any]) -> None:
    """List and call all tools of a scenario's server, logging in when told to.

    Args:
        context: What the scenario tells a client beforehand.
    """
    hints = None
    if "client_id" in context:
        hints = OAuthHints(
            client_id=context["client_id"], client_secret=context.get("client_secret", "")
        )
    source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
    spec = ServerSpec(name="server", transport="http", source=source, url=url, oauth=hints)
    logins = Logins(directory / "logins")
    async with Pool([spec], log_dir=directory, environ=os.environ, logins=logins) as pool:
        for _ in range(MAX_LOGINS + 1):
            try:
                with on_behalf_of(Consenting()):
                    await _use(pool, context)
            except LoginRequiredError:
                await log_in(spec, logins.store, browse, seconds=LOGIN_SECONDS)
            else:
                return
    message = "it never had enough"
    raise UpstreamError(message, server="server")


async def _use(pool: Pool, context: Mapping[str, Any]) -> None:
    """Make the calls that a scenario wants, or else one of each tool."""
    tools = await pool.server("server").tools()
    wanted = context.get("toolCalls")
    calls = wanted or [{"name": tool.name, "arguments": _arguments(tool, tools)} for tool in tools]
    for call in calls:
        await pool.call_tool("server", call["name"], call["arguments"])


def _arguments(tool: Tool, tools: tuple[Tool, ...]) -> dict[str, Json]:
    if tool.name == "json_schema_echo":
        # The scenario compares what arrived of the other tool's schema.
        [other] = [each for each in tools if each is not tool]
        return {"schema": dict(other.input_schema)}
    return _fill_schema(tool.input_schema)


def _fill_schema(schema: Mapping[str, Any]) -> dict[str, Json]:
    return {
        name: part.get("default", EXAMPLES.get(part.get("type", ""), {}))
        for name, part in schema.get("properties", {}).items()
    }
