"""Resources, templates and prompts of servers: listed once, read, and corrected when misspelt."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp.types import Implementation

from bridge.errors import CallDeniedError, CallTimeoutError, ToolCallError
from bridge.model import ToolFilter
from bridge.upstream.listing import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMAS_BYTES,
    MAX_TEXT_CHARS,
    MAX_URI_CHARS,
    Kind,
    parse_offers,
    parse_tools,
    suggestion,
)
from bridge.upstream.pool import Pool
from bridge.upstream.server import MAX_CHARS, introduction
from tests.upstream.rig import SERVERS, Rig
from tests.waiting import LOOK_SECONDS, PATIENCE_SECONDS

LIBRARY = str(SERVERS / "library.py")
WORKSHOP = str(SERVERS / "workshop.py")


@pytest.fixture(scope="module", params=["stdio", "http"])
async def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pool]:
    """A server with resources and prompts, in the older era over stdio and the newer over HTTP."""
    rig = Rig(tmp_path_factory.mktemp("library"))
    with ExitStack() as stack:
        if request.param == "stdio":
            spec = rig.spec(sys.executable, LIBRARY, "stdio")
        else:
            spec = rig.remote(stack.enter_context(rig.web("http", server="library.py")))
        async with rig.pool(spec) as pool:
            yield pool


async def lists(pool: Pool) -> int:
    result = await pool.call_tool("server", "asked", {})
    return int(result["content"][0]["text"])


async def wait_cached(pool: Pool, kind: Kind) -> None:
    """Wait until a list is cached, for which the server's notifications must be subscribed to."""
    offers = pool.server("server").offers
    with anyio.fail_after(PATIENCE_SECONDS):
        while await offers(kind) is not await offers(kind):  # noqa: ASYNC110
            await anyio.sleep(LOOK_SECONDS)


async def wait_listed(pool: Pool, kind: Kind, name: str) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while name not in {  # noqa: ASYNC110 - another process brings it about
            entry["name"] for entry in await pool.server("server").offers(kind)
        }:
            await anyio.sleep(LOOK_SECONDS)


async def test_all_pages_of_resources_are_listed_once_until_they_change(library: Pool) -> None:
    resources = await library.server("server").offers("resources")
    assert [entry["uri"] for entry in resources][-1] == "books://both"
    assert resources[0] == {"uri": "books://index", "name": "index", "mimeType": "application/json"}
    await wait_cached(library, "resources")
    asked = await lists(library)
    assert await library.server("server").offers("resources") == resources
    assert await lists(library) == asked
    await library.call_tool("server", "add_book", {})
    await wait_listed(library, "resources", "new")


async def test_templates_and_prompts_are_listed(library: Pool) -> None:
    (template,) = await library.server("server").offers("templates")
    assert template["uriTemplate"] == "books://{title}/pages{?from,to}"
    prompts = await library.server("server").offers("prompts")
    assert prompts == (
        {
            "name": "review",
            "description": "Review it",
            "arguments": [
                {"name": "title", "description": "Of the book", "required": True},
                {"name": "stars", "description": "", "required": False},
            ],
        },
    )
    await wait_cached(library, "prompts")
    await library.call_tool("server", "get_prompt", {})
    await wait_listed(library, "prompts", "summary")


async def test_a_server_without_resources_says_so_and_is_not_asked(rig: Rig) -> None:
    """Some answer nothing at all to what they do not know."""
    async with rig.pool(rig.spec(sys.executable, WORKSHOP)) as pool:
        server = pool.server("server")
        assert await server.offers("resources") == await server.offers("prompts") == ()
        about = {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "y"}}
        for request, message in (
            (server.request("resources/read", {"uri": "a://b"}), "offers no resources, only tools"),
            (server.request("prompts/get", {"name": "a"}), "offers no prompts, only tools"),
            (server.request("completion/complete", about), "completes no arguments"),
            (server.watch_resource("x://y"), "does not say when a resource changes"),
        ):
            with pytest.raises(ToolCallError, match=message):
                await request


async def test_what_the_configuration_leaves_out_is_neither_listed_nor_called(rig: Rig) -> None:
    chosen = ToolFilter(only=frozenset({"echo", "big"}), without=frozenset({"big"}))
    spec = rig.spec(sys.executable, WORKSHOP, tools=chosen)
    async with rig.pool(spec) as pool:
        assert [tool.name for tool in await pool.server("server").tools()] == ["echo"]
        assert pool.states()["server"].tool_count == 1
        await pool.call_tool("server", "echo", {})
        for name in ("big", "add", "no such"):
            with pytest.raises(CallDeniedError, match="configuration leaves it out") as caught:
                await pool.call_tool("server", name, {})
            assert "/tmp/servers.json" not in caught.value.message
            assert "/tmp/servers.json" in caught.value.host_detail
        pool.update([replace(spec, tools=ToolFilter(without=frozenset({"echo"})))])
        with pytest.raises(CallDeniedError):
            await pool.call_tool("server", "echo", {})


async def test_each_watcher_of_a_resource_gets_its_changed_content(library: Pool) -> None:
    with pytest.raises(CallTimeoutError, match="did not change within 0.2 s"):
        await library.server("server").watch_resource("books://draft", timeout=0.2)
    found: list[str] = []

    async def watch() -> None:
        result = await library.server("server").watch_resource("books://draft")
        found.append(result["contents"][0]["text"])

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(watch)
            while len(found) < 2:
                await library.call_tool("server", "rewrite", {})
                await anyio.sleep(LOOK_SECONDS)
    assert found == ["rewritten"] * 2
    subscribed = await library.call_tool("server", "subscribed", {})
    assert subscribed["content"][0]["text"] == ""


def test_entries_that_make_no_sense_are_left_out_and_texts_are_cut() -> None:
    junk: list[object] = [None, 7, {}, {"uri": ""}, {"uri": "u" * (MAX_URI_CHARS + 1)}]
    fine = {"uri": "a://b", "name": ["x"], "description": "d" * 99_999, "size": True, "x": 1}
    (found,) = parse_offers("s", "resources", [*junk, fine, {"uri": "a://b", "name": "second"}])
    assert found == {"uri": "a://b", "description": "d" * MAX_TEXT_CHARS}
    arguments = [{"name": "a"}, 7, {"name": None}]
    (prompt,) = parse_offers("s", "prompts", [{"name": "p", "arguments": arguments}])
    assert prompt["arguments"] == [{"name": "a", "description": "", "required": False}]


def test_the_search_for_the_nearest_is_bounded() -> None:
    offers = [{"uri": f"x://{n}" + "abc" * 2_500} for n in range(10_000)]
    assert suggestion("resources", "x://" + "cab" * 2_500, offers).count("x://") <= 3


def test_a_schema_that_is_too_large_is_replaced_by_one_that_allows_anything() -> None:
    ordinary = {"type": "object", "properties": {"x": {"type": "string"}}}
    large = {"type": "object", "properties": {"x": {"description": "x" * MAX_SCHEMA_BYTES}}}
    given = {"name": "a", "inputSchema": large, "outputSchema": ordinary}
    returned = {"name": "b", "inputSchema": ordinary, "outputSchema": large}
    first, second = parse_tools("server", [given, returned])
    assert (first.input_schema, first.output_schema) == ({"type": "object"}, ordinary)
    assert (second.input_schema, second.output_schema) == (ordinary, None)


def test_all_schemas_of_a_server_together_are_bounded() -> None:
    schema = {"description": "x" * (MAX_SCHEMA_BYTES // 2)}
    count = 2 * MAX_SCHEMAS_BYTES // MAX_SCHEMA_BYTES + 1
    tools = parse_tools("server", [{"name": str(n), "inputSchema": schema} for n in range(count)])
    kept = [tool for tool in tools if tool.input_schema is schema]
    assert len(tools) == count
    assert 0 < len(kept) < count
    assert kept == list(tools[: len(kept)])


@pytest.mark.parametrize(
    ("ui", "listed", "has_view"),
    [
        (None, True, False),
        ({"resourceUri": "ui://board"}, True, True),
        ({"visibility": ["model", "app"], "resourceUri": "ui://board"}, True, True),
        ({"visibility": ["app"]}, False, False),
        ({"visibility": []}, False, False),
        ({"visibility": "app"}, True, False),
    ],
)
def test_a_tool_for_views_is_not_listed(ui: Any, listed: bool, has_view: bool) -> None:
    tools = parse_tools("server", [{"name": "x", "_meta": {"ui": ui}}])
    assert [tool.has_view for tool in tools] == ([has_view] if listed else [])


@pytest.mark.parametrize(
    ("instructions", "info", "expected"),
    [
        ("Use it.", {"description": "Issues\nand pulls."}, "Issues and pulls."),
        ("# Heading\n\nUse it for\nissues.\n\nMore.", {"title": "S"}, "Use it for issues."),
        ("Audience: written for an LLM.", {"title": "Issue tracker"}, "Issue tracker"),
        ("word " * 1_000_000, {}, ("word " * 1_000)[:MAX_CHARS]),
        ("#" * 1_000_000, {}, ""),
        (None, {"title": "s"}, ""),
        ("", {}, ""),
        (None, None, ""),
    ],
)
def test_an_introduction_has_three_sources(
    instructions: str | None, info: dict[str, Any] | None, expected: str
) -> None:
    implementation = None if info is None else Implementation(name="s", version="1", **info)
    client: Any = SimpleNamespace(server_info=implementation, instructions=instructions)
    assert introduction(client) == expected
