"""Clients of each protocol version; `tests.wire` checks what they are sent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError

from bridge.runs import Engine
from tests.server.web_rig import web
from tests.wire import NEWEST, OLDER, Wire

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/call", {"name": "run_python", "arguments": {"code": "print(1)\n[1, {'a': None}]"}}),
    ("tools/call", {"name": "run_python", "arguments": {"code": "1/0"}}),
    ("tools/call", {"name": "run_python", "arguments": {"code": "await mcp_work_shop.add(a=1)"}}),
    ("tools/call", {"name": "run_python", "arguments": {"timeout": "soon"}}),
    ("tools/call", {"name": "search_tools", "arguments": {"query": "add"}}),
    ("tools/call", {"name": "no_such_tool", "arguments": {}}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "bridge://capabilities"}),
    ("resources/read", {"uri": "bridge://nothing"}),
    ("no/such/method", {}),
]
"""Whatever the bridge has another kind of answer to."""


@pytest.mark.parametrize("version", OLDER)
async def test_a_client_of_each_version_is_answered_in_it(
    engine: Engine, wire: Wire, version: str
) -> None:
    accept = {"accept": "application/json, text/event-stream"}
    async with web(engine) as url, httpx2.AsyncClient(headers=accept) as client:

        async def send(method: str, params: dict[str, Any], **rest: Any) -> httpx2.Response:
            message = {"jsonrpc": "2.0", "method": method, "params": params, **rest}
            return await client.post(url, json=message)

        facts = {"name": "test", "version": "1"}
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": facts}
        answer = await send("initialize", hello, id=0)
        assert f'"protocolVersion":"{version}"' in answer.text
        client.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        client.headers["mcp-protocol-version"] = version
        await send("notifications/initialized", {})
        older = [("ping", {}), ("logging/setLevel", {"level": "debug"})]
        for number, (method, params) in enumerate([*older, *CALLS], 1):
            told = {"_meta": {"progressToken": number}}
            answer = await send(method, {**params, **told}, id=number)
            assert f'"id":{number}' in answer.text
    assert wire.sent[version] >= len(CALLS) + 3


async def test_a_client_of_the_newest_version_is_answered_in_it(engine: Engine, wire: Wire) -> None:
    async with web(engine) as url, Client(url, mode=NEWEST) as client:
        await client.list_tools()
        for method, params in CALLS:
            if method == "tools/call":
                await _ignoring(client.call_tool(params["name"], params["arguments"]))
            elif method == "resources/read":
                await _ignoring(client.read_resource(params["uri"]))
        await client.list_resources()
        await client.list_resource_templates()
    # All but the method that no client of the SDK sends.
    assert wire.sent[NEWEST] >= len(CALLS) - 1


async def _ignoring(call: Any) -> None:
    with suppress(MCPError):
        await call
