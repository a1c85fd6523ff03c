"""Descriptions of servers and tools for clients and programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bridge.catalog.entries import run_server
from bridge.inventory.guide import BRIEF_TOKENS
from bridge.inventory.inventory import ToolInventory
from bridge.model import RunRequest, Tool
from bridge.runs import Engine
from bridge.sandbox.backend import Contents
from bridge.sandbox.probe import remember
from bridge.settings import Settings
from bridge.settings.values import PreflightMode
from bridge.text import count_tokens
from tests.catalog.nasty_servers import server_entries
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend


class Watched(dict[str, object]):
    """A schema that records which threads read it."""

    readers: set[int]

    def __iter__(self) -> Iterator[str]:
        self.readers.add(threading.get_ident())
        return super().__iter__()

    def get(self, key: str, default: object = None) -> object:
        self.readers.add(threading.get_ident())
        return super().get(key, default)


@pytest.mark.parametrize("count", [21, 1])
async def test_tools_are_documented_in_a_thread(engine: Engine, count: int) -> None:
    schema = Watched(type="object", properties={"path": {"type": "string"}})
    schema.readers = set()
    tools = tuple(
        Tool(server="work-shop", name=f"tool_{number}", input_schema=schema)
        for number in range(count)
    )
    engine.servers.inventory.update("work-shop", tools)
    assert engine.servers.inventory.entry("work-shop").tools
    schema.readers.clear()
    docs = await engine.guide.server_docs("work-shop", "full")
    assert [each["tool"] for each in docs] == [tool.name for tool in tools]
    assert schema.readers
    assert threading.get_ident() not in schema.readers


async def test_a_search_shows_a_shared_tool_once_and_few_poor_matches(
    engine: Engine, finder: ListFinder
) -> None:
    tools = tuple(Tool(server="work-shop", name=f"read_{name}") for name in "abcdefgh")
    engine.servers.inventory.update("work-shop", tools)
    found = await engine.guide.search("read parliament minutes", 50, "summary")
    assert len(found) == 3
    assert all(docs["poor"] for docs in found)
    assert "poor" not in (await engine.guide.search("read", 50, "summary"))[0]
    finder.specs = (workshop("first"), workshop("second"))
    await engine.servers.refresh()
    for server in ("first", "second"):
        tools = tuple(Tool(server=server, name=name) for name in ("paint_wall", "paint_door"))
        engine.servers.inventory.update(server, tools)
    found = await engine.guide.search("paint wall", 5, "summary")
    assert [(docs["signature"], docs["also"]) for docs in found] == [
        ("mcp_first.paint_wall()", ["mcp_second"]),
        ("mcp_first.paint_door()", ["mcp_second"]),
    ]


async def test_it_changes_once_for_servers_first_used(engine: Engine, finder: ListFinder) -> None:
    """With another description a client pays for its whole conversation again."""
    finder.specs = (workshop("first"), workshop("second"))
    await engine.servers.refresh()
    before = await engine.guide.tool_description()
    brief = await engine.guide.tool_description(brief=True)
    assert count_tokens(brief) <= BRIEF_TOKENS
    assert "mcp_" in brief
    assert "search_tools" in brief
    await engine.run(RunRequest(code="await mcp_first.add(a=1, b=2)"))
    assert engine.servers.inventory.tools("first")
    assert await engine.guide.tool_description() == before
    await engine.run(RunRequest(code="await mcp_second.add(a=1, b=2)"))
    after = await engine.guide.tool_description()
    assert after.count(".add(a: float, b: float)") == 1
    assert "(same tools as mcp_first)" in after


async def test_it_follows_the_configuration_at_once(engine: Engine, finder: ListFinder) -> None:
    assert "mcp_second" not in await engine.guide.tool_description()
    finder.specs = (workshop(), workshop("second"))
    await engine.servers.refresh()
    assert "mcp_second" in await engine.guide.tool_description()
    # Both wait to be asked, so this one is known only when the other is.
    await engine.run(RunRequest(code="await mcp_second.add(a=1, b=2)"))
    finder.specs = (workshop("second"),)
    await engine.servers.refresh()
    assert "mcp_work_shop" not in await engine.guide.tool_description()
    assert ".add(a: float, b: float)" in await engine.guide.tool_description()


async def test_it_has_a_budget(
    settings: Settings, finder: ListFinder, backend: FakeBackend
) -> None:
    finder.specs = tuple(workshop(f"shop-{number}") for number in range(60))
    modes: tuple[tuple[int, PreflightMode], ...] = ((500, "check"), (900, "off"))
    for tokens, preflight in modes:
        set_so = replace(settings, description_tokens=tokens, preflight=preflight)
        async with engine_on(backend, set_so, finder=finder) as opened:
            made = await opened.guide.tool_description()
        assert tokens * 0.7 < count_tokens(made) <= tokens
        assert ("refused before anything runs" in made) is (preflight == "check")


async def test_packages_of_the_last_sandbox_with_these_settings_are_described(
    settings: Settings, finder: ListFinder, backend: FakeBackend
) -> None:
    """A bridge describes itself before it has a sandbox, as the last bridge stored it."""
    contents = Contents(python="3.12", packages=(("numpy", "2.1.0"), ("polars", "1.9")))
    remember(replace(settings, image="mine:1"), contents)
    remember(replace(settings, image="mine:2"), Contents(python="3.9"))
    known = (("mine:1", "of Python 3.12, numpy 2.1.0, polars."), ("mine:2", "of Python 3.9. "))
    for image, told in (*known, ("mine:3", "the standard library. ")):
        async with engine_on(backend, replace(settings, image=image), finder=finder) as opened:
            assert told in await opened.guide.tool_description()
            assert ("polars 1.9" in opened.guide.capabilities()) is (image == "mine:1")


async def test_a_server_introduces_itself(engine: Engine, finder: ListFinder) -> None:
    finder.specs = (replace(workshop("silent"), description=""), workshop("described"))
    await engine.servers.refresh()
    engine.servers.inventory.describe("silent", {"about": "It makes things."})
    engine.servers.inventory.describe("described", {"about": "It makes things."})
    entries = engine.servers.inventory.initial_entries()
    assert [entry.description for entry in entries] == ["It makes things.", "A workshop"]


SERVERS = {"one": "The first", "Two!": "The second", "three": ""}


def tools(server: str, *names: str) -> tuple[Tool, ...]:
    return tuple(Tool(server=server, name=name, input_schema={}) for name in names)


@pytest.fixture
def mine() -> ToolInventory:
    inventory = ToolInventory()
    inventory.reset(SERVERS, {"one": tools("one", "a", "b-c")})
    return inventory


def test_an_inventory_has_the_entries_of_the_catalog(mine: ToolInventory) -> None:
    mine.update("Two!", tools("Two!", "x"))
    asked = {"one": tools("one", "a", "b-c"), "Two!": tools("Two!", "x")}
    for loaded in ((), ("one",), ("three", "one")):
        plain = server_entries(SERVERS, asked, loaded=loaded)
        assert mine.entries(loaded=loaded) == plain
        ordered = [name for name in mine.aliases if name in loaded]
        assert [mine.stubs(name, None) for name in ordered] == [
            run_server(each) for each in plain if each.loaded
        ]


def test_entries_are_made_once_per_revision(mine: ToolInventory) -> None:
    entries, stub, revision = mine.entries(), mine.stubs("one", None), mine.revision
    assert mine.entries() is entries
    assert mine.stubs("one", None) is stub
    assert mine.update("three", tools("three", "z"))
    assert mine.revision != revision
    assert mine.entries() != entries
    assert mine.entry("one") is entries[0]
    assert mine.stubs("one", None) is stub
    again, revision, entries = tools("one", "a", "b-c"), mine.revision, mine.entries()
    for _ in range(2):
        assert not mine.update("one", again)
        assert mine.tools("one") is again
    assert (mine.revision, mine.entries()) == (revision, entries)
    mine.reset({"one": "Again"}, {})
    assert mine.revision != revision
    assert [(entry.description, entry.known) for entry in mine.entries()] == [("Again", False)]


def test_a_program_gets_the_tools_that_it_names(mine: ToolInventory) -> None:
    (tool,) = mine.stubs("one", frozenset({"b_c"}))["tools"]
    assert tool["name"] == "b-c"
    assert "description" not in tool
    assert mine.stubs("one", frozenset({"read_resource", "b_c"}))["tools"] == [tool]
    assert mine.stubs("one", frozenset({"b_c", "list_tools"})) == mine.stubs("one", None)
    assert mine.stubs("one", frozenset())["tools"] == []
    assert mine.stubs("one", frozenset({"a", "bc"})) == mine.stubs("one", None)
