"""What is said of servers on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bridge.engine import Engine
from bridge.model import Tool


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
    engine.servers.known.learn("work-shop", tools)
    assert engine.servers.known.entry("work-shop").tools
    schema.readers.clear()
    docs = await engine.guide.server_docs("work-shop", "full")
    assert [each["tool"] for each in docs] == [tool.name for tool in tools]
    assert schema.readers
    assert threading.get_ident() not in schema.readers
