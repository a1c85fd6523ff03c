"""The MCP surface, through the official client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation

from bridge.errors import LaunchError
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.audit_rig import records
from tests.fakes.backend import FakeBackend
from tests.record import record_of
from tests.waiting import until, until_exists


@pytest.fixture(params=["legacy", "2026-07-28"])
async def client(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with Client(build_server(engine), mode=request.param) as connected:
        yield connected


async def test_two_tools_are_offered_with_the_servers_in_the_first_s_description(
    client: Client,
) -> None:
    tool, search = (await client.list_tools()).tools
    assert (tool.name, search.name) == ("run_python", "search_tools")
    assert {"code", "apply"} <= set(tool.input_schema["properties"])
    assert "mcp_work_shop = work-shop: A workshop" in (tool.description or "")


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_what_a_client_says_it_is_stands_in_the_audit_log(
    engine: Engine, settings: Settings, era: str
) -> None:
    """In the record of a run and of a plan that is applied; short, and nothing that is obeyed."""
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


async def test_a_client_that_cancels_ends_the_run_and_its_upstream_calls(
    client: Client, backend: FakeBackend, tmp_path: Path
) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    code = f"await mcp_work_shop.slow(started={str(started)!r}, cancelled={str(cancelled)!r})"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "run_python", {"code": code})
        await until_exists(started)
        tasks.cancel_scope.cancel()
    await until_exists(cancelled)
    await until(lambda: not backend.live)


async def test_resources_describe_the_bridge_and_its_servers(client: Client) -> None:
    listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
    assert listed == {
        "bridge://capabilities",
        "bridge://servers",
        "bridge://sessions",
        "bridge://tools/work-shop",
    }
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [
        "bridge://tools/{server}",
        "bridge://stubs/{server}",
        "bridge://artifacts/{id}{?offset,length,lines}",
        "bridge://runs/{run}/{stream}{?offset,length,lines}",
    ]
    guide = (await client.read_resource("bridge://capabilities")).contents[0]
    assert "MCPError" in getattr(guide, "text", "")
    servers = json.loads(
        getattr((await client.read_resource("bridge://servers")).contents[0], "text", "")
    )
    assert servers[0]["name"] == "work-shop"
    tools = json.loads(
        getattr((await client.read_resource("bridge://tools/work-shop")).contents[0], "text", "")
    )
    assert "add" in [tool["tool"] for tool in tools]
    stub = (await client.read_resource("bridge://stubs/work-shop")).contents[0]
    assert stub.mime_type == "text/x-python"
    assert "    async def add(self, " in getattr(stub, "text", "")


@pytest.mark.parametrize(
    "uri", ["bridge://nothing", "bridge://tools/nobody", "bridge://stubs/nobody"]
)
async def test_an_unknown_resource_is_a_protocol_error(client: Client, uri: str) -> None:
    with pytest.raises(MCPError, match="nothing|nobody"):
        await client.read_resource(uri)
