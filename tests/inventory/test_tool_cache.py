"""What is remembered of servers' tools."""

from __future__ import annotations

import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.inventory.tool_cache import AGE, Listing, ToolCache, listing_digest
from bridge.model import RunRequest, Tool, ToolFilter
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import Store
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend

LISTING = Listing(
    server="work-shop",
    tools=(Tool(server="work-shop", name="t", title="T", input_schema={"type": "object"}),),
    info={"name": "workshop", "version": "1.2", "protocol": "2025-11-25"},
    listed_at=1_700_000_000.5,
    start_seconds=0.25,
)


def test_a_listing_is_read_back_as_it_was(tmp_path: Path) -> None:
    """For the definition it was saved for, and no other."""
    cache = ToolCache(Store(tmp_path))
    assert cache.load(workshop()) is None
    cache.save(workshop(), LISTING)
    assert cache.load(workshop()) == LISTING
    assert cache.load(workshop("other")) is None
    assert cache.load(replace(workshop(), args=("other",))) is None


def test_its_size_is_that_of_what_a_client_would_load() -> None:
    assert LISTING.schema_bytes == len(
        '{"name":"t","description":"","inputSchema":{"type":"object"}}'
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'[{"server": "work-shop", "name": "t"}]',
        b'{"form": 1, "server": "work-shop", "tools": []}',
        b'{"server": "someone-else", "tools": []}',
        b'{"server": "work-shop", "tools": [{"server": "someone-else", "name": "t"}]}',
    ],
    ids=["empty", "torn", "binary", "list", "older", "form", "foreign", "foreign-tool"],
)
def test_a_damaged_listing_is_as_if_it_were_not_there(tmp_path: Path, content: bytes) -> None:
    cache = ToolCache(Store(tmp_path))
    cache.save(workshop(), LISTING)
    with Store(tmp_path).writing() as kept:
        kept.put("listing", "", listing_digest(workshop()), content)
    assert cache.load(workshop()) is None
    cache.save(workshop(), LISTING)
    assert cache.load(workshop()) == LISTING


def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    ToolCache(Store(blocked)).save(workshop(), LISTING)
    assert ToolCache(Store(blocked)).load(workshop()) is None


def test_only_the_user_can_read_it_and_no_secret_is_in_it(tmp_path: Path) -> None:
    """Values of variables and headers are neither in the file nor in its name."""
    cache = ToolCache(Store(tmp_path))
    spec = replace(workshop(), env={"TOKEN": "s3cret"}, headers={"Authorization": "s3cret"})
    cache.save(spec, LISTING)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"s3cret" not in path.read_bytes()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    other = replace(spec, env={"TOKEN": "another"}, headers={"Authorization": "another"})
    assert cache.load(other) == LISTING


def test_a_definition_is_told_from_others_by_what_it_starts_and_lets_through() -> None:
    spec = workshop()
    others = (
        replace(spec, name="other"),
        replace(spec, command="other"),
        replace(spec, args=("other",)),
        replace(spec, cwd="/other"),
        replace(spec, transport="http", url="http://other/"),
        replace(spec, env={"OTHER": ""}),
        replace(spec, headers={"Other": ""}),
        replace(spec, tools=ToolFilter(only=frozenset({"a"}))),
        replace(spec, tools=ToolFilter(without=frozenset({"a"}))),
    )
    digests = {listing_digest(other) for other in (spec, *others)}
    assert len(digests) == 1 + len(others)
    assert listing_digest(replace(spec, description="x", call_timeout=1.0)) in digests


def test_what_is_old_is_removed(tmp_path: Path) -> None:
    store, now = Store(tmp_path), time.time()
    with store.writing() as kept:
        for name, age in {"a": 100.0, "e": AGE + 1}.items():
            kept.put("listing", "", name, b"{}", updated=now - age)
        kept.put("shapes", "", "old", b"{}", updated=0.0)
    ToolCache(store).save(workshop(), LISTING)
    with store.reading() as kept:
        assert [each.name for each in kept.listed("listing")] == [listing_digest(workshop()), "a"]
        assert kept.get("shapes", "", "old")


async def test_the_next_bridge_describes_tools_without_starting_servers(
    engine: Engine, settings: Settings, backend: FakeBackend
) -> None:
    assert ".add(" not in await engine.guide.tool_description()
    await engine.run(RunRequest(code="await mcp_work_shop.add(a=1, b=2)"))
    assert ".add(" in await engine.guide.tool_description()
    listing = engine.servers.listing("work-shop")
    assert listing is not None
    assert listing.info["protocol"]
    assert listing.start_seconds is not None
    async with engine_on(backend, settings, finder=ListFinder(workshop())) as second:
        assert ".add(" in await second.guide.tool_description()
        assert second.servers.pool.states()["work-shop"].state == "idle"
        assert second.servers.listing("work-shop") == listing
