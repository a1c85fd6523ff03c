"""What is remembered of servers' tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.engine import Engine, open_engine
from bridge.engine.tool_cache import MAX_BYTES, ToolCache
from bridge.model import RunRequest, Tool
from bridge.settings import Settings
from tests.engine_rig import ListFinder, workshop
from tests.fakes.backend import FakeBackend

TOOLS = (Tool(server="work-shop", name="t", input_schema={"type": "object"}),)


def test_tools_are_read_back_as_they_were(tmp_path: Path) -> None:
    """For the definition they were saved for, and no other."""
    cache = ToolCache(tmp_path / "tools")
    assert cache.load(workshop()) is None
    cache.save(workshop(), TOOLS)
    assert cache.load(workshop()) == TOOLS
    assert cache.load(workshop("other")) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'[{"server": "someone-else", "name": "t"}]', b" " * (MAX_BYTES + 1)],
    ids=["empty", "torn", "binary", "foreign", "huge"],
)
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path, content: bytes) -> None:
    """It is a preview; nothing depends on it."""
    cache = ToolCache(tmp_path)
    cache.save(workshop(), TOOLS)
    [path] = tmp_path.iterdir()
    path.write_bytes(content)
    assert cache.load(workshop()) is None


def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """A read-only home must not stop a run."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    ToolCache(blocked).save(workshop(), TOOLS)


async def test_the_next_bridge_describes_tools_without_starting_servers(
    engine: Engine, settings: Settings, backend: FakeBackend
) -> None:
    """The first message of a session lists them."""
    assert ".add(" not in engine.guide.tool_description()
    await engine.run(RunRequest(code="await mcp_work_shop.add(a=1, b=2)"))
    assert ".add(" in engine.guide.tool_description()

    async def choose(_: Settings) -> FakeBackend:
        return backend

    async with open_engine(
        settings, finder=ListFinder(workshop()), choose_backend=choose
    ) as second:
        assert ".add(" in second.guide.tool_description()
        assert second.servers.pool.states()["work-shop"].state == "idle"
