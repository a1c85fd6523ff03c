"""Resources and prompts as programs use them, and what results teach, end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.catalog.entries import Observation
from bridge.model import RunRequest, RunResult, ServerSpec
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, settings_in, workshop
from tests.fakes.backend import FakeBackend

LIBRARY = Path(__file__).parents[1] / "fakes" / "servers" / "library.py"


def library() -> ServerSpec:
    return replace(workshop("library"), args=(str(LIBRARY), "stdio"), description="")


@pytest.fixture(scope="module")
async def reading(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """An engine with a server that has resources and one without, both of them started.

    A run waits only some seconds for a server that it does not name.
    """
    backend = FakeBackend()
    settings = settings_in(tmp_path_factory.mktemp("home"))
    finder = ListFinder(library(), workshop())
    async with engine_on(backend, settings, finder=finder) as opened:
        both = "await mcp_library.list_resources(), await mcp_work_shop.add(a=1, b=1)"
        assert (await opened.run(RunRequest(code=both))).status == "success"
        yield opened
    assert backend.live == set()


async def _run(engine: Engine, code: str) -> RunResult:
    with anyio.fail_after(60):
        result = await engine.run(RunRequest(code=code))
    assert result.status == "success", (result.error, result.stderr)
    return result


async def test_a_program_reads_resources_of_every_kind(reading: Engine) -> None:
    code = """
both = await mcp_library.read_resource("books://both")
assert both[0] == "{}", both
assert isinstance(both[1], Blob) and both[1].mime_type == "image/png"
[
    (await mcp_library.read_resource("books://index")).titles,
    await runtime.read_resource("library", "books://emma"),
    await runtime.read_resource("library", "books://untyped"),
    await runtime.read_resource("library", "books://schema"),
    (await mcp_library.read_resource("books://cover")).uri,
    await mcp_library.read_resource("books://{title}/pages{?from,to}", title="a b", to=3),
]
"""
    result = await _run(reading, code)
    assert result.result == [
        ["Emma"],
        "[Emma](x) is a book.",
        [1, 2],
        {"@type": "Book"},
        "books://cover",
        "books://a%20b/pages?to=3",
    ]
    assert result.usage.tool_calls == 7
    assert result.usage.tool_result_bytes > 300


async def test_a_program_completes_arguments_and_waits_for_a_change(reading: Engine) -> None:
    code = """
import asyncio
async def change():
    while True:
        await runtime.call_tool("library", "rewrite")
        await asyncio.sleep(0.01)
changing = asyncio.ensure_future(change())
new = await runtime.watch_resource("library", "books://draft", timeout=20)
changing.cancel()
try:
    await runtime.watch_resource("work-shop", "x://y")
except MCPError as error:
    refused = str(error)
[
    new,
    await runtime.complete("library", "review", "title", "E", stars=5),
    await runtime.complete("library", "books://{title}/pages{?from,to}", "title"),
    refused,
]
"""
    result = await _run(reading, code)
    assert isinstance(result.result, list)
    assert result.result[:3] == [
        "rewritten",
        ["Emma", "review?stars"],
        ["mma", "books://{title}/pages{?from,to}?"],
    ]
    assert "does not say when a resource changes" in str(result.result[3])


async def test_a_program_lists_all_offers_and_may_omit_the_only_server(reading: Engine) -> None:
    code = 'print(mcp_library)\nawait runtime.read_resource("books://emma")'
    assert (await _run(reading, code)).result == "[Emma](x) is a book."
    code = """
everywhere = await runtime.list_resources()
assert everywhere == await runtime.list_resources("library"), everywhere
assert await runtime.list_resources("work-shop") == []
from mcp.servers import library
assert await library.list_resources() == everywhere
[
    len(everywhere), everywhere[0].server, everywhere[0].uri,
    (await mcp_library.list_resource_templates())[0].uriTemplate,
    [a.name for a in (await runtime.list_prompts("library"))[0].arguments],
    len(mcp_servers),
]
"""
    assert (await _run(reading, code)).result == [
        6,
        "library",
        "books://index",
        "books://{title}/pages{?from,to}",
        ["title", "stars"],
        2,
    ]


async def test_a_program_gets_a_prompt(reading: Engine) -> None:
    code = """
prompt = await runtime.get_prompt("library", "review", {"title": "Emma", "stars": 5})
assert (await mcp_library.get_prompt()).isdigit()
contents = [message.content for message in prompt.messages]
assert contents[3].mime_type == "image/png"
[prompt.description, prompt.messages[1].role, *contents[:3]]
"""
    assert (await _run(reading, code)).result == [
        "A review",
        "assistant",
        "[{'title': 'Emma', 'stars': '5'}]",
        '{"not": "parsed"}',
        {"titles": ["Emma"]},
    ]


async def test_an_error_names_a_missing_resource(reading: Engine) -> None:
    code = """
async def told(awaitable):
    try:
        await awaitable
    except (MCPError, TypeError) as error:
        return [getattr(error, "server", ""), str(error)]
[
    await told(runtime.read_resource("library", "books://ema")),
    await told(runtime.read_resource("work-shop", "a://b")),
    await told(runtime.read_resource("no" + "where", "a://b")),
    await told(runtime.read_resource("a://b")),
    await told(runtime.get_prompt("library", "review")),
    await told(runtime.get_prompt("library", "review", {"title": {1}})),
    await told(mcp_library.read_resource("books://{title}/pages")),
    await told(runtime.read_resource("library")),
    len(str(mcp_work_shop)),
]
"""
    found = (await _run(reading, code)).result
    assert isinstance(found, list)
    assert found[0][0] == "library"
    assert "'books://ema'" in found[0][1]
    assert "Did you mean 'books://emma'" in found[0][1]
    assert "'work-shop' offers no resources, only tools" in found[1][1]
    assert "no server 'nowhere'" in found[2][1]
    assert "needs the server too: read_resource(server, uri). Loaded: library," in found[3][1]
    assert "Its arguments: title (required), stars." in found[4][1]
    assert "argument 'title' is a set" in found[5][1]
    assert "give title as keyword arguments" in found[6][1]
    assert "read_resource(server, uri)" in found[7][1]


async def test_a_guest_that_asks_nonsense_gets_errors(reading: Engine) -> None:
    """Its own helpers check all this first; the host does not rely on that."""
    code = """
client = runtime.list_resources.__self__._client
async def told(method, **params):
    try:
        return await client.call(method, params, method)
    except MCPError as error:
        return str(error)
library = {"server": "library"}
[
    await told("list_offers", kind="tools", **library),
    await told("list_offers", kind=["resources"], **library),
    await told("list_offers", kind="resources", servers=[["x"], {}, 7, "nowhere"]),
    await told("list_offers", kind="resources", servers=7),
    await told("read_resource", uri=7, **library),
    await told("read_resource", uri="a:" + "b" * 9_000, **library),
    await told("get_prompt", name="review", arguments={"title": 7}, **library),
    await told("get_prompt", name="review", arguments=None, **library),
]
"""
    assert (await _run(reading, code)).result == [
        "kind must be one of resources, templates, prompts.",
        "kind must be one of resources, templates, prompts.",
        [],
        [],
        "uri must be a string that is not empty, not int.",
        "uri has 9,002 characters; the limit is 8,000.",
        "library: arguments of a prompt must be a dict of texts.",
        "library: arguments of a prompt must be a dict of texts.",
    ]


async def test_what_results_teach_is_known_at_once_and_to_the_next_bridge(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> None:
    code = """
for _ in range(3):
    await mcp_work_shop.rows()
await mcp_work_shop.image()
try:
    await mcp_work_shop.fail()
except MCPError:
    pass
"""
    rows = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
            "required": ["id", "name"],
        },
    }
    async with engine_on(backend, settings, finder=finder) as engine:
        await _run(engine, "await mcp_work_shop.echo()")
        before = engine.servers.inventory.initial_entries()
        await _run(engine, code)
        tools = {one.tool.name: one for one in engine.servers.inventory.entry("work-shop").tools}
        assert tools["rows"].observed == Observation(schema=rows, count=3)
        assert tools["image"].result_schema == {"title": "Blob"}
        assert tools["fail"].observed is None
        assert engine.servers.inventory.initial_entries() == before
    async with engine_on(backend, settings, finder=finder) as engine:
        entries = {entry.name: entry for entry in engine.servers.inventory.initial_entries()}
        found = {one.tool.name: one.result_schema for one in entries["work-shop"].tools}
        assert found["rows"] == rows
