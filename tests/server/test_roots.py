"""A client's roots, for servers that have no directory of their own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import ListRootsResult, Root, RootsListChangedNotification
from pydantic import FileUrl

from bridge.model import ServerSpec
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.upstream.server import explain_missing_roots
from tests.asker_rig import asker, call, text_of
from tests.engine_rig import ListFinder
from tests.server.web_rig import web

FILESYSTEM = (
    Path(__file__).parents[1] / "node/node_modules/@modelcontextprotocol/server-filesystem"
) / "dist/index.js"

LISTED = "print(await mcp_files.list_allowed_directories())"
WHY = "asked for the client's directories (roots) and got none"

pytestmark = pytest.mark.node


def filesystem(*arguments: str) -> ServerSpec:
    assert FILESYSTEM.exists(), "`make test` installs it"
    node = Path(sys.executable).parent / "node"
    path = f"{node.parent}{os.pathsep}{os.environ['PATH']}"
    args = (str(FILESYSTEM), *arguments)
    return replace(asker(), name="files", command=str(node), args=args, env={"PATH": path})


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(filesystem())


class Roots:
    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.asked = 0

    async def __call__(self, context: Any) -> ListRootsResult:
        self.asked += 1
        return ListRootsResult(roots=[Root(uri=FileUrl(path.as_uri())) for path in self.paths])


@pytest.mark.parametrize("early", [False, True])
async def test_a_server_without_a_directory_gets_its_client_s_roots(
    engine: Engine, tmp_path: Path, era: str, early: bool
) -> None:
    mine, other = (tmp_path / name for name in ("mine", "other"))
    for place in (mine, other):
        place.mkdir()
        (place / "a.txt").write_text(f"of {place.name}")
    roots = Roots(mine)
    if early:
        await engine.servers.pool.server("files").tools(refresh=True, patient=True)
    server = build_server(engine, principal="stdio")
    async with Client(server, mode=era, list_roots_callback=roots) as client:
        assert await wait_listed(client, mine)
        read = f"print(await mcp_files.read_text_file(path={str(mine / 'a.txt')!r}))"
        assert "of mine" in text_of(await call(client, read))
        asked, roots.paths = roots.asked, (other,)
        if era == "legacy":
            await client.session.send_notification(RootsListChangedNotification())
            assert str(mine) not in await wait_listed(client, other)
            assert roots.asked > asked


async def wait_listed(client: Client, place: Path) -> str:
    with anyio.fail_after(60):
        while str(place) not in (listed := text_of(await call(client, LISTED))):
            pass
    return listed


async def test_an_answer_that_is_empty_for_want_of_roots_says_why(engine: Engine, era: str) -> None:
    async with Client(build_server(engine, principal="stdio"), mode=era) as client:
        assert WHY in text_of(await call(client, LISTED))
        refused = await call(client, "await mcp_files.list_directory(path='/etc')")
        assert WHY in text_of(refused)
        assert "MCP_BRIDGE_ROOTS" in text_of(refused)


async def test_over_http_no_server_gets_a_client_s_roots(
    engine: Engine, tmp_path: Path, era: str
) -> None:
    roots = Roots(tmp_path)
    async with web(engine) as url, Client(url, mode=era, list_roots_callback=roots) as client:
        assert WHY in text_of(await call(client, LISTED))
    assert roots.asked == 0


async def test_a_server_with_a_directory_keeps_it(
    engine: Engine, finder: ListFinder, tmp_path: Path
) -> None:
    roots, own = Roots(Path("/")), tmp_path / "own"
    own.mkdir()
    finder.specs = (filesystem(str(own)),)
    assert await engine.servers.refresh()
    server = build_server(engine, principal="stdio")
    async with Client(server, mode="legacy", list_roots_callback=roots) as client:
        assert str(own) in text_of(await call(client, LISTED))
    assert roots.asked == 0


@pytest.mark.parametrize(
    ("result", "explained"),
    [
        ({"content": []}, True),
        ({"content": [{"type": "text", "text": "Repositories:\n"}]}, True),
        ({"content": [{"type": "text", "text": " "}]}, True),
        ({"content": [{"type": "text", "text": "No roots"}], "isError": True}, True),
        ({"content": [{"type": "text", "text": "a"}, 1], "isError": True}, False),
        ({"content": [], "structuredContent": {"rows": []}}, False),
        ({"content": [{"type": "image", "data": ""}]}, False),
        ({"content": [{"type": "text", "text": "3 files in directory"}]}, False),
        ({"content": [{"type": "text", "text": 7}], "structuredContent": 3}, False),
    ],
)
def test_only_what_is_empty_or_refused_is_explained(result: Any, explained: bool) -> None:
    before = str(result)
    explain_missing_roots(result)
    assert (WHY in str(result)) is explained
    assert explained or str(result) == before
