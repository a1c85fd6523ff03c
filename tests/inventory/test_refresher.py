"""The catalogue of tools: what is started for it, and what is asked again in the background."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from bridge.callers.client import RunCaller
from bridge.discovery.consents import ConsentFile
from bridge.discovery.finder import DiscoveryContext
from bridge.errors import ServerStartError
from bridge.event_loop import Clock
from bridge.inventory.configuration import ConfigFinder, ProjectConsents
from bridge.inventory.inventory import AGE, Listing, ToolCache, listing_digest
from bridge.inventory.servers import FIRST_STARTS, REFRESH_SECONDS, Lister, Servers
from bridge.model import RunRequest, ServerSpec, Tool, ToolFilter
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import Store
from bridge.upstream.client_features import ServerCaller, current_caller, on_behalf_of
from bridge.upstream.pool import Pool
from bridge.upstream.server import UpstreamServer
from tests.engine_rig import WORKSHOP, ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.inventory.rig import open_servers, raw, starts
from tests.waiting import until, until_exists


def remember(directory: Path, spec: ServerSpec, age: float, tool: str = "old_tool") -> None:
    """Store a listing that an earlier bridge made `age` seconds ago."""
    tools = (Tool(server=spec.name, name=tool),)
    listing = Listing(server=spec.name, tools=tools, listed_at=time.time() - age)
    ToolCache(Store(directory)).save(spec, listing)


def names(servers: Servers, server: str) -> list[str]:
    return [tool.name for tool in servers.inventory.tools(server) or ()]


def states(servers: Servers) -> set[str]:
    return {state.state for state in servers.pool.states().values()}


async def test_an_unknown_server_is_started_and_stopped(tmp_path: Path) -> None:
    specs = [raw(f"s{number}") for number in range(FIRST_STARTS + 2)]
    async with open_servers(tmp_path, *specs) as servers:
        assert await servers.load_unknown(servers.names()) == {}
        assert all("echo" in names(servers, spec.name) for spec in specs)
        await until(lambda: states(servers) == {"idle"})
        await servers.load_unknown(servers.names())
        assert starts(tmp_path) == len(specs)
    async with open_servers(tmp_path, *specs) as servers:
        await servers.load_unknown(servers.names())
        assert "echo" in names(servers, "s0")
    assert starts(tmp_path) == len(specs)


async def test_lists_have_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may outlive its run, so its server's requests must not go to that run's client."""
    callers: list[ServerCaller | None] = []
    original = UpstreamServer.tools

    async def tools(self: UpstreamServer, **how: bool) -> tuple[Tool, ...]:
        callers.append(current_caller())
        return await original(self, **how)

    monkeypatch.setattr(UpstreamServer, "tools", tools)
    async with open_servers(tmp_path, raw("a")) as servers:
        with on_behalf_of(RunCaller(None, Clock())):
            assert await servers.load_unknown(servers.names()) == {}
    assert callers == [None]


async def test_a_server_in_use_is_not_stopped(tmp_path: Path) -> None:
    async with open_servers(tmp_path, raw("loaded"), raw("called"), raw("asked")) as servers:
        await servers.load(["loaded"])
        await servers.pool.call_tool("called", "echo", {})
        assert await servers.load_unknown(servers.names(), fresh=True) == {}
        await until(lambda: servers.pool.state("asked").state == "idle")
        for name in ("loaded", "called"):
            servers.pool.server(name).stop_if_unused()
        assert servers.pool.state("called").state == "ready"
        assert "echo" in names(servers, "called")
        assert servers.pool.state("loaded").pid is None or starts(tmp_path) == 3


async def test_a_straggler_does_not_hold_up_a_search(tmp_path: Path) -> None:
    async with open_servers(tmp_path, raw("a"), straggler_seconds=0.0) as servers:
        assert list(await servers.load_unknown(["a"])) == ["a"]
        await until(lambda: "echo" in names(servers, "a"))
        await until(lambda: states(servers) == {"idle"})
        assert await servers.load_unknown(["a"]) == {}
    assert starts(tmp_path) == 1


@pytest.mark.parametrize("age", [REFRESH_SECONDS + 60, -3600.0], ids=["old", "future"])
async def test_an_old_list_is_asked_again_once(tmp_path: Path, age: float) -> None:
    spec = raw("a")
    remember(tmp_path, spec, age=age)
    async with open_servers(tmp_path, spec) as servers:
        for _ in range(3):
            assert await servers.load_unknown(["a"]) == {}
        assert names(servers, "a") == ["old_tool"]
        revision = servers.inventory.revision
        await until(lambda: "echo" in names(servers, "a"))
        assert servers.inventory.revision != revision
        await until(lambda: states(servers) == {"idle"})
        await servers.load_unknown(["a"])
    listing = ToolCache(Store(tmp_path)).load(spec)
    assert listing is not None
    assert 0 <= time.time() - listing.listed_at < REFRESH_SECONDS
    assert listing.start_seconds is not None
    assert starts(tmp_path) == 1


async def test_a_list_of_another_bridge_is_used(tmp_path: Path) -> None:
    spec = raw("a")
    remember(tmp_path, spec, age=REFRESH_SECONDS + 60)
    async with open_servers(tmp_path, spec) as servers:
        remember(tmp_path, spec, age=0.0, tool="new")
        await servers.load_unknown(["a"])
        await until(lambda: names(servers, "a") == ["new"])
    assert starts(tmp_path) == 0


async def test_a_stored_list_does_not_replace_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, load, refresh = raw("a"), ToolCache.load, Lister._refresh
    refreshed = anyio.Event()
    remember(tmp_path, spec, age=REFRESH_SECONDS + 60)
    async with open_servers(tmp_path, spec) as servers:
        remember(tmp_path, spec, age=60.0, tool="other bridge's")

        def load_slowly(cache: ToolCache, spec: ServerSpec) -> Listing | None:
            found = load(cache, spec)
            anyio.from_thread.run(servers.load, ["a"])
            return found

        async def refresh_once(lister: Lister, name: str) -> None:
            await refresh(lister, name)
            refreshed.set()

        monkeypatch.setattr(ToolCache, "load", load_slowly)
        monkeypatch.setattr(Lister, "_refresh", refresh_once)
        await servers.load_unknown(["a"])
        await refreshed.wait()
        assert "echo" in names(servers, "a")


async def test_a_server_that_fails_keeps_what_was_known_of_it(tmp_path: Path) -> None:
    spec = raw("a", "exit")
    remember(tmp_path, spec, age=REFRESH_SECONDS + 60)
    async with open_servers(tmp_path, spec) as servers:
        await servers.load_unknown(["a"])
        await until(lambda: servers.pool.state("a").state == "failed")
        assert await servers.load_unknown(["a"]) == {}
        assert names(servers, "a") == ["old_tool"]
    assert starts(tmp_path) == 1


async def test_a_server_with_other_variables_is_asked_again(tmp_path: Path) -> None:
    """Variables' values are not part of the listing's key, but may change the tools."""
    finder = ListFinder(raw("a", "", SETTING="1"))
    remember(tmp_path, finder.specs[0], age=1.0)
    async with open_servers(tmp_path, finder=finder) as servers:
        finder.specs = (raw("a", "", SETTING="2"),)
        await servers.refresh()
        await servers.load_unknown(["a"])
        await until(lambda: "echo" in names(servers, "a"))


async def test_known_servers_are_started_only_on_request(tmp_path: Path) -> None:
    good, bad = raw("good"), raw("bad", "exit")
    for spec in (good, bad):
        remember(tmp_path, spec, age=REFRESH_SECONDS / 2)
    async with open_servers(tmp_path, good, bad) as servers:
        for patient in (False, True):
            assert await servers.load_unknown(servers.names(), patient=patient) == {}
        assert names(servers, "bad") == ["old_tool"]
        assert states(servers) == {"idle"}
        assert starts(tmp_path) == 0
        errors = await servers.load_unknown(servers.names(), fresh=True, patient=True)
        assert list(errors) == ["bad"]
        assert "echo" in names(servers, "good")


async def test_changed_tools_of_a_running_server_are_listed_soon(tmp_path: Path) -> None:
    async with open_servers(tmp_path, raw("a")) as servers:
        await servers.load(["a"])
        assert "grown" not in names(servers, "a")
        await servers.pool.call_tool("a", "grow", {})
        await until(lambda: "grown" in names(servers, "a"))
        assert starts(tmp_path) == 1
    listing = ToolCache(Store(tmp_path)).load(raw("a"))
    assert listing is not None
    assert "grown" in [tool.name for tool in listing.tools]


LISTING = Listing(
    server="work-shop",
    tools=(Tool(server="work-shop", name="t", title="T", input_schema={"type": "object"}),),
    info={"name": "workshop", "version": "1.2", "protocol": "2025-11-25"},
    listed_at=1_700_000_000.5,
    start_seconds=0.25,
)


def test_a_listing_has_the_size_that_a_client_would_load() -> None:
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
def test_a_damaged_listing_is_ignored(tmp_path: Path, content: bytes) -> None:
    cache = ToolCache(Store(tmp_path))
    cache.save(workshop(), LISTING)
    with Store(tmp_path).writing() as store:
        store.put("listing", "", listing_digest(workshop()), content)
    assert cache.load(workshop()) is None
    cache.save(workshop(), LISTING)
    assert cache.load(workshop()) == LISTING


def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    ToolCache(Store(blocked)).save(workshop(), LISTING)
    assert ToolCache(Store(blocked)).load(workshop()) is None


def test_only_the_user_can_read_it_and_no_secret_is_in_it(tmp_path: Path) -> None:
    cache = ToolCache(Store(tmp_path))
    spec = replace(workshop(), env={"TOKEN": "s3cret"}, headers={"Authorization": "s3cret"})
    assert cache.load(spec) is None
    cache.save(spec, LISTING)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"s3cret" not in path.read_bytes()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    other = replace(spec, env={"TOKEN": "another"}, headers={"Authorization": "another"})
    assert cache.load(other) == LISTING
    assert cache.load(workshop()) is None


def test_the_key_of_a_listing_is_what_a_definition_starts_and_admits() -> None:
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


def test_old_listings_are_removed(tmp_path: Path) -> None:
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
    listing = engine.servers.last_listing("work-shop")
    assert listing is not None
    assert listing.info["protocol"]
    assert listing.start_seconds is not None
    async with engine_on(backend, settings, finder=ListFinder(workshop())) as second:
        assert ".add(" in await second.guide.tool_description()
        assert second.servers.pool.states()["work-shop"].state == "idle"
        assert second.servers.last_listing("work-shop") == listing


async def test_a_server_that_hangs_at_start_is_waited_for_once_and_briefly(tmp_path: Path) -> None:
    async with open_servers(
        tmp_path, raw("slow", "silent"), raw("good"), straggler_seconds=2.0
    ) as s:
        await s.load(["good"])
        tools, errors = await s.load(["slow", "good"], tolerant=True)
        assert list(tools) == ["good"]
        assert isinstance(errors["slow"], ServerStartError)
        assert "did not answer within 2 s" in str(errors["slow"])
        for _ in range(50):
            tools, errors = await s.load(["slow", "good"], tolerant=True)
            assert (list(tools), list(errors)) == (["good"], ["slow"])
        assert s.pool.states()["slow"].state == "starting"
    assert starts(tmp_path) == 2


async def test_the_tools_a_straggler_had_last_time_count_meanwhile(tmp_path: Path) -> None:
    spec = raw("slow", "silent")
    remember(tmp_path, spec, age=0.0)
    async with open_servers(tmp_path, spec, straggler_seconds=0.1) as servers:
        tools, errors = await servers.load(["slow"], tolerant=True)
    assert ([tool.name for tool in tools["slow"]], errors) == (["old_tool"], {})


@pytest.mark.parametrize("started", [False, True])
async def test_a_cancelled_search_leaves_its_request(tmp_path: Path, started: bool) -> None:
    async with open_servers(tmp_path, raw("slow")) as servers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(servers.load, ["slow"], tolerant=True))
            if started:
                await until_exists(tmp_path / "pids")
            tasks.cancel_scope.cancel()
        tools, errors = await servers.load(["slow"], tolerant=True)
        assert (list(tools), errors) == (["slow"], {})
        assert servers.pool.states()["slow"].state == "ready"
    assert starts(tmp_path) == 1


async def test_a_failed_server_is_left_alone(tmp_path: Path) -> None:
    finder = ListFinder(raw("bad", "exit"))
    async with open_servers(tmp_path, finder=finder) as servers:
        for _ in range(3):
            _, errors = await servers.load(["bad"], tolerant=True)
            assert "exited with status 3" in str(errors["bad"])
        assert starts(tmp_path) == 1
        with pytest.raises(ServerStartError):
            await servers.load(["bad"])
        assert starts(tmp_path) == 2
        await servers.load(["bad"], tolerant=True, patient=True)
        assert starts(tmp_path) == 3
        finder.specs = (raw("bad"),)
        assert await servers.refresh()
        tools, _ = await servers.load(["bad"], tolerant=True)
        assert list(tools) == ["bad"]


@pytest.mark.parametrize("seconds", [1000.0, 0.0])
async def test_time_and_success_end_a_failure(tmp_path: Path, seconds: float) -> None:
    spec = raw("bad", "fail-once", FAIL_ONCE=str(tmp_path / "first"))
    async with open_servers(tmp_path, spec, failure_seconds=seconds) as servers:
        _, errors = await servers.load(["bad"], tolerant=True)
        assert list(errors) == ["bad"]
        if seconds:
            await servers.load(["bad"])
        tools, errors = await servers.load(["bad"], tolerant=True)
        assert (list(tools), errors) == (["bad"], {})


def config(*names: str) -> str:
    entry = {"command": sys.executable, "args": [str(WORKSHOP)]}
    return json.dumps({"mcpServers": dict.fromkeys(names, entry)})


def read_config(home: Path, extra: Path | None = None) -> Servers:
    context = DiscoveryContext(
        home=home,
        cwd=home,
        platform="linux",
        environ={},
        extra_config=extra,
        system_root=home / "system",
    )
    finder = ConfigFinder(context, ProjectConsents(ConsentFile(home / "consents.json")))
    pool = Pool((), log_dir=home / "logs", environ=os.environ)
    return Servers(finder, pool, ToolCache(Store(home)))


@pytest.mark.parametrize("torn", ["", config("one", "two")[:-9]], ids=["empty", "half"])
async def test_a_torn_file_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: str
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / ".claude.json"
    file.write_text(config("one", "two"))
    async with read_config(tmp_path) as servers:
        await servers.load(["one"])
        pid = servers.pool.states()["one"].pid
        for text in (torn, torn + " ", torn + "  "):
            file.write_text(text)
            assert await servers.refresh()
            assert servers.names() == ("one", "two")
            assert servers.resolve("one") == "one"
        assert str(file) in str(servers.discovery.warnings)
        assert str(file) in caplog.text
        assert servers.pool.states()["one"].pid == pid
        file.write_text(config("two", "three"))
        await servers.refresh()
        assert servers.names() == ("two", "three")
        assert not any(not warning.key for warning in servers.discovery.warnings)


async def test_servers_of_torn_files_give_way_and_of_deleted_files_go(tmp_path: Path) -> None:
    file, other = tmp_path / ".claude.json", tmp_path / "extra.json"
    file.write_text(config("one", "two"))
    other.write_text(config("three"))
    async with read_config(tmp_path, other) as servers:
        file.write_text("{")
        other.write_text(config("three", "two"))
        await servers.refresh()
        assert sorted(servers.names()) == ["one", "three", "two"]
        assert servers.pool.spec("two").source.path == str(other)
        other.write_text(config("two"))
        await servers.refresh()
        assert sorted(servers.names()) == ["one", "two"]
        file.unlink()
        await servers.refresh()
        assert servers.names() == ("two",)
        other.unlink()
        await servers.refresh()
        assert servers.names() == ()
        assert str(other) in str(servers.discovery.warnings)
