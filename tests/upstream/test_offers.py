"""Resources, templates and prompts of servers: listed once, read, and corrected when misspelt."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
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

EVERYTHING = (
    Path(__file__).parents[1] / "node/node_modules/@modelcontextprotocol/server-everything"
) / "dist/index.js"


@pytest.fixture(scope="module", params=["stdio", "http"])
async def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pool]:
    """A server with a bit of everything, in the older era over a pipe and the newer over HTTP.

    One for all tests, since it takes a second to start.
    """
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


async def kept(pool: Pool, kind: Kind) -> None:
    """Return once a list is kept; the server's notices may take a moment to be subscribed to."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while await pool.server("server").offers(kind) is not await pool.server(  # noqa: ASYNC110
            "server"
        ).offers(kind):
            await anyio.sleep(LOOK_SECONDS)


async def listed(pool: Pool, kind: Kind, wanted: dict[str, str]) -> None:
    """Return once something is listed: the server's notice comes beside its answer."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not any(  # noqa: ASYNC110 - another process brings it about
            wanted.items() <= entry.items() for entry in await pool.server("server").offers(kind)
        ):
            await anyio.sleep(LOOK_SECONDS)


async def test_all_pages_of_resources_are_listed_once_until_they_change(library: Pool) -> None:
    resources = await library.server("server").offers("resources")
    assert [entry["uri"] for entry in resources][-1] == "books://both"
    assert resources[0] == {
        "uri": "books://index",
        "name": "index",
        "mimeType": "application/json",
    }
    await kept(library, "resources")
    asked = await lists(library)
    assert await library.server("server").offers("resources") == resources
    assert await lists(library) == asked
    await library.call_tool("server", "add_book", {})
    await listed(library, "resources", {"uri": "books://new", "name": "new"})


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
    await kept(library, "prompts")
    await library.call_tool("server", "get_prompt", {})
    await listed(library, "prompts", {"name": "summary"})


async def test_a_server_without_resources_says_so_and_is_not_asked(rig: Rig) -> None:
    """Some answer nothing at all to what they do not know."""
    async with rig.pool(rig.spec(sys.executable, WORKSHOP)) as pool:
        assert await pool.server("server").offers("resources") == ()
        assert await pool.server("server").offers("prompts") == ()
        with pytest.raises(ToolCallError, match="offers no resources, only tools"):
            await pool.server("server").request("resources/read", {"uri": "a://b"})
        with pytest.raises(ToolCallError, match="offers no prompts, only tools"):
            await pool.server("server").request("prompts/get", {"name": "a", "arguments": {}})
        about = {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "y"}}
        with pytest.raises(ToolCallError, match="completes no arguments"):
            await pool.server("server").request("completion/complete", about)
        with pytest.raises(ToolCallError, match="does not say when a resource changes"):
            await pool.server("server").watch_resource("x://y")


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


async def test_whoever_watches_a_resource_gets_what_it_holds_after_a_change(library: Pool) -> None:
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


def test_looking_for_the_nearest_is_bounded() -> None:
    offers = [{"uri": f"x://{n}" + "abc" * 2_500} for n in range(10_000)]
    assert suggestion("resources", "x://" + "cab" * 2_500, offers).count("x://") <= 3


def test_a_schema_that_is_too_large_is_taken_for_one_that_allows_anything() -> None:
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


@dataclass
class Client:
    """A connection that has been greeted."""

    server_info: Implementation | None
    instructions: str | None = None


def line(instructions: str | None = None, **info: Any) -> str:
    made: Any = Client(Implementation(name="s", version="1", **info), instructions)
    return introduction(made)


@pytest.mark.parametrize(
    ("instructions", "info", "told"),
    [
        ("Use it.", {"description": "Issues\nand pulls."}, "Issues and pulls."),
        ("# Heading\n\nUse it for\nissues.\n\nMore.", {"title": "S"}, "Use it for issues."),
        ("Audience: written for an LLM.", {"title": "Issue tracker"}, "Issue tracker"),
        (None, {"title": "s"}, ""),
        ("", {}, ""),
    ],
)
def test_an_introduction_has_three_sources(
    instructions: str | None, info: dict[str, str], told: str
) -> None:
    assert line(instructions, **info) == told


def test_a_book_is_not_repeated() -> None:
    assert len(line("word " * 1_000_000)) == MAX_CHARS
    assert line("#" * 1_000_000) == ""


def test_a_server_that_gives_no_information_has_none() -> None:
    nobody: Any = Client(None)
    assert introduction(nobody) == ""
