"""Sessions through the MCP surface: over stdio by name, over HTTP each caller's own by id."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.arguments import OUTPUT_SCHEMA
from tests.engine_rig import ListFinder
from tests.record import record_of, text_of
from tests.server.web_rig import connected, web

SESSIONS_URI = "bridge://sessions"


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder()


async def _run(client: Client, **arguments: Any) -> Any:
    with anyio.fail_after(60):
        return await client.call_tool("run_python", arguments)


async def _listed(client: Client) -> list[dict[str, Any]]:
    [content] = (await client.read_resource(SESSIONS_URI)).contents
    found: list[dict[str, Any]] = json.loads(content.text)["sessions"]  # type: ignore[union-attr]
    return found


async def test_over_stdio_a_session_goes_by_its_name(engine: Engine) -> None:
    async with Client(build_server(engine, principal="stdio")) as client:
        first = await _run(client, code="total = 41\nrows = ['x'] * 3000", session="analysis")
        assert '[session "analysis", run 1] holds rows: list (24 kB), total: int.' in text_of(first)
        assert "Go on with" not in text_of(first)
        second = await _run(client, code="total + 1", session="analysis")
        document = record_of(second)
        assert (document["result"], document["session"]["state"]) == (42, "kept")
        jsonschema.validate(document, OUTPUT_SCHEMA)
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert SESSIONS_URI in uris
        [listed] = await _listed(client)
        assert listed["id"] == document["session"]["id"]
        assert (listed["name"], listed["state"], listed["runs"]) == ("analysis", "open", 2)
        assert listed["memoryLimitBytes"] > 0
        assert {held["name"] for held in listed["holds"]} == {"rows", "total"}
        ended = await _run(client, session="analysis", end_session=True)
        assert ended.is_error is False
        assert "ended" in text_of(ended)
        assert await _listed(client) == []


async def test_over_http_a_session_is_its_callers_own_and_needs_its_id(engine: Engine) -> None:
    """Another caller can neither use nor see it; without credentials no one sees any."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(90))
        url = await stack.enter_async_context(web(engine))
        ada, bob, nobody = [
            await stack.enter_async_context(connected(url, who, "auto"))
            for who in ("ada", "bob", "")
        ]
        first = await _run(ada, code="total = 41", session="analysis")
        identity = record_of(first)["session"]["id"]
        assert f'Continue with session="{identity}".' in text_of(first)
        # The name alone begins another, also for its owner.
        again = await _run(ada, code="'total' in globals()", session="analysis")
        assert record_of(again)["result"] is False
        for stranger in (bob, nobody):
            refused = await _run(stranger, code="total", session=identity)
            assert refused.is_error
            assert "No session" in text_of(refused)
            assert await _listed(stranger) == []
        assert {each["id"] for each in await _listed(ada)} == {
            identity,
            record_of(again)["session"]["id"],
        }
        second = await _run(ada, code="total + 1", session=identity)
        assert record_of(second)["result"] == 42
        # Whoever has no credentials has the id, and is not told of others' either.
        own = await _run(nobody, code="x = 1", session="own")
        assert await _listed(nobody) == []
        own_id = record_of(own)["session"]["id"]
        assert record_of(await _run(nobody, code="x", session=own_id))["result"] == 1
