"""The MCP surface, through the official client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.types import Implementation

from bridge.errors import LaunchError
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.audit_rig import records
from tests.catalog.test_docs import CODEX_SHOWS
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.record import record_of
from tests.server.web_rig import web
from tests.wire import NEWEST, OLDER, Wire


@pytest.fixture(params=["legacy", "auto"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(engine: Engine, era: str) -> AsyncIterator[Client]:
    async with Client(build_server(engine), mode=era) as connected:
        yield connected


async def test_two_tools_are_offered_with_the_servers_and_hints_for_claude_code(
    client: Client,
) -> None:
    tool, search = (await client.list_tools()).tools
    assert (tool.name, search.name) == ("run_python", "search_tools")
    assert {"code", "apply"} <= set(tool.input_schema["properties"])
    assert "mcp_work_shop = work-shop: A workshop" in (tool.description or "")
    # Claude Code loads `run_python` and shows results whole.
    assert tool.meta is not None
    assert search.meta is not None
    assert tool.meta["anthropic/alwaysLoad"] is True
    assert "anthropic/alwaysLoad" not in search.meta
    for meta in (tool.meta, search.meta):
        assert "MCP servers" in meta["anthropic/searchHint"]
        assert meta["anthropic/maxResultSizeChars"] == 500_000


async def test_what_a_client_says_it_is_stands_in_the_audit_log(
    engine: Engine, settings: Settings, era: str
) -> None:
    said = Implementation(name="\x1b[2Jharness\n" + "x" * 500, version="2.1")
    async with Client(build_server(engine), mode=era, client_info=said) as client:
        code = "await mcp_work_shop.add(a=1, b=2)"
        plan = await client.call_tool("run_python", {"code": code, "mode": "plan"})
        await client.call_tool("run_python", {"apply": record_of(plan)["plan"]["id"]})
    found = [each for each in records(settings.state_dir / "audit") if "clientSays" in each]
    assert [each["kind"] for each in found] == ["run", "apply"]
    for each in found:
        assert each["clientSays"].startswith("\\x1b[2Jharness\\nxxx")
        assert each["clientSays"].endswith("… 2.1")
        assert len(each["clientSays"]) < 120


async def test_a_broken_sandbox_is_told_with_its_code_and_remedy(
    client: Client, backend: FakeBackend
) -> None:
    backend.failure = LaunchError("The image is broken.", remedy="Build it again.")
    result = await client.call_tool("run_python", {"code": "1"})
    document = record_of(result)
    assert (document["status"], document["reason"]) == ("error", "engine")
    assert document["error"] == "The image is broken. Build it again. [launch_failed]"


async def test_resources_describe_the_bridge_and_its_servers(client: Client) -> None:
    listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
    names = ("capabilities", "servers", "sessions", "tools/work-shop")
    assert listed == {f"bridge://{name}" for name in names}
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [
        "bridge://tools/{server}",
        "bridge://stubs/{server}",
        "bridge://artifacts/{id}{?offset,length,lines}",
        "bridge://runs/{run}/{stream}{?offset,length,lines}",
    ]
    guide, servers, tools, stub = [
        (await client.read_resource(f"bridge://{name}")).contents[0]
        for name in ("capabilities", "servers", "tools/work-shop", "stubs/work-shop")
    ]
    assert "MCPError" in getattr(guide, "text", "")
    assert json.loads(getattr(servers, "text", ""))[0]["name"] == "work-shop"
    assert "add" in [tool["tool"] for tool in json.loads(getattr(tools, "text", ""))]
    assert stub.mime_type == "text/x-python"
    assert "    async def add(self, " in getattr(stub, "text", "")


@pytest.mark.parametrize(
    "uri", ["bridge://nothing", "bridge://tools/no-server", "bridge://stubs/no-server"]
)
async def test_an_unknown_resource_is_a_protocol_error(client: Client, uri: str) -> None:
    with pytest.raises(MCPError, match="nothing|no-server"):
        await client.read_resource(uri)


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
            with suppress(MCPError):
                if method == "tools/call":
                    await client.call_tool(params["name"], params["arguments"])
                elif method == "resources/read":
                    await client.read_resource(params["uri"])
        await client.list_resources()
        await client.list_resource_templates()
    # All but the method that no client of the SDK sends.
    assert wire.sent[NEWEST] >= len(CALLS) - 1


async def test_the_servers_are_known_before_the_first_request(engine: Engine, era: str) -> None:
    async with Client(build_server(engine), mode=era) as client:
        said = client.instructions or ""
    assert "mcp_work_shop = work-shop: A workshop" in said.splitlines()
    assert "run_python" in said
    assert engine.servers.pool.states()["work-shop"].state == "idle", "nothing is started for it"


async def test_each_handshake_tells_of_the_present_servers(
    settings: Settings, backend: FakeBackend, era: str
) -> None:
    finder = ListFinder(workshop())
    async with engine_on(backend, settings, finder=finder) as engine:
        server = build_server(engine)
        async with Client(server, mode=era) as client:
            assert "mcp_work_shop = " in (client.instructions or "")
        finder.specs = (replace(workshop("later"), description=""),)
        async with Client(server, mode=era) as client:
            assert "servers (later) are behind" in (client.instructions or "")


async def test_servers_of_a_project_that_wait_are_told_about_where_there_are_no_others(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"shop": {"command": "shop"}}}')
    async with (
        engine_on(backend, settings, cwd=str(tmp_path)) as engine,
        Client(build_server(engine), mode=era) as client,
    ):
        said = client.instructions or ""
    assert said.startswith("Not approved, so not started (servers of this project): shop. ")
    assert "`mcp-code-bridge servers approve NAME`" in said[:CODEX_SHOWS]
