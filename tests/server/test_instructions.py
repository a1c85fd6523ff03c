"""What a client is told before it lists any tools, and what it reads beside the list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.catalog.test_docs import CODEX_SHOWS
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend


@pytest.fixture(params=["legacy", "auto"])
def era(request: pytest.FixtureRequest) -> Any:
    """How the client connects: by a handshake, or by `server/discover` of 2026-07-28."""
    return request.param


async def test_the_servers_are_known_before_the_first_request(engine: Engine, era: Any) -> None:
    async with Client(build_server(engine), mode=era) as client:
        said = await instructions_of(client)
    assert "mcp_work_shop = work-shop: A workshop" in said.splitlines()
    assert "run_python" in said
    assert engine.servers.pool.states()["work-shop"].state == "idle", "nothing is started for it"


async def test_a_client_that_is_quicker_than_the_configuration_is_told_of_them(
    settings: Settings, backend: FakeBackend, era: Any
) -> None:
    """The bridge does not wait for its configuration before it answers; here it has to."""

    finder = ListFinder(workshop())
    async with engine_on(backend, settings, finder=finder, eager=False) as engine:
        server = build_server(engine)
        async with Client(server, mode=era) as client:
            assert "mcp_work_shop = " in await instructions_of(client)
        finder.specs = (replace(workshop("later"), description=""),)
        async with Client(server, mode=era) as client:
            assert "servers (later) are behind" in await instructions_of(client)


async def test_servers_of_a_project_that_wait_are_told_of_where_there_are_no_others(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: Any
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"shop": {"command": "shop"}}}')
    async with (
        engine_on(backend, settings, cwd=str(tmp_path)) as engine,
        Client(build_server(engine), mode=era) as client,
    ):
        said = await instructions_of(client)
    assert said.startswith("Not approved, so not started (servers of this project): shop. ")
    assert "`mcp-code-bridge servers approve NAME`" in said[:CODEX_SHOWS]


async def test_claude_code_is_told_to_load_run_python_and_to_show_results_whole(
    engine: Engine, era: Any
) -> None:
    async with Client(build_server(engine), mode=era) as client:
        run, search = (await client.list_tools()).tools
    assert run.meta is not None
    assert search.meta is not None
    assert run.meta["anthropic/alwaysLoad"] is True
    assert "anthropic/alwaysLoad" not in search.meta
    for meta in (run.meta, search.meta):
        assert "MCP servers" in meta["anthropic/searchHint"]
        assert meta["anthropic/maxResultSizeChars"] == 500_000


async def instructions_of(client: Client) -> str:
    said = client.instructions
    assert said is not None
    return said
