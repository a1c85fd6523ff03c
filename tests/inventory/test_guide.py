"""What is said of servers on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bridge.model import Tool
from bridge.runs import Engine
from tests.engine_rig import ListFinder, workshop


class Watched(dict[str, object]):
    """A schema that notes which threads read it."""

    readers: set[int]

    def __iter__(self) -> Iterator[str]:
        """Note the thread."""
        self.readers.add(threading.get_ident())
        return super().__iter__()

    def get(self, key: str, default: object = None) -> object:
        """Note the thread."""
        self.readers.add(threading.get_ident())
        return super().get(key, default)


@pytest.mark.parametrize("count", [21, 1])
async def test_tools_are_documented_in_a_thread_while_others_go_on(
    engine: Engine, count: int
) -> None:
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


async def test_a_search_tells_a_tool_once_that_two_servers_have_alike(
    engine: Engine, finder: ListFinder
) -> None:
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


async def test_a_search_without_a_good_match_gives_a_few_that_say_so(engine: Engine) -> None:
    tools = tuple(Tool(server="work-shop", name=f"read_{name}") for name in "abcdefgh")
    engine.servers.inventory.update("work-shop", tools)
    found = await engine.guide.search("read parliament minutes", 50, "summary")
    assert len(found) == 3
    assert all(docs["poor"] for docs in found)
    assert "poor" not in (await engine.guide.search("read", 50, "summary"))[0]
