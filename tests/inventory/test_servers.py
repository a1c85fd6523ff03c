"""The user's servers while some hang, fail, or have their configuration written at the moment."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import anyio
import pytest

from bridge.discovery.consents import ConsentFile
from bridge.discovery.finder import DiscoveryContext
from bridge.errors import ServerStartError
from bridge.inventory.configuration import ConfigFinder
from bridge.inventory.consents import ProjectConsents
from bridge.inventory.servers import Servers
from bridge.inventory.tool_cache import Listing, ToolCache
from bridge.model import Tool
from bridge.store import Store
from bridge.upstream.pool import Pool
from tests.engine_rig import WORKSHOP, ListFinder, workshop
from tests.inventory.rig import opened, raw, starts
from tests.waiting import PATIENCE_SECONDS, until, until_exists

OLD = Tool(server="slow", name="old_tool")


async def test_a_server_that_hangs_at_start_is_waited_for_once_and_briefly(tmp_path: Path) -> None:
    """The others are there, every time; its start continues, once."""
    async with opened(tmp_path, raw("slow", "silent"), raw("good"), straggler_seconds=2.0) as s:
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
    """A program may name them; its call waits for the server."""
    spec = raw("slow", "silent")
    ToolCache(Store(tmp_path)).save(spec, Listing(server="slow", tools=(OLD,)))
    async with opened(tmp_path, spec, straggler_seconds=0.1) as servers:
        assert await servers.load(["slow"], tolerant=True) == ({"slow": (OLD,)}, {})


async def test_a_straggler_is_there_once_it_has_started(tmp_path: Path) -> None:
    """Although no one waited for it, and the one who asked first was cancelled."""
    async with opened(tmp_path, raw("slow"), straggler_seconds=0.0) as servers:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await servers.load(["slow"], tolerant=True)
        await servers.load(["slow"], tolerant=True)
        await until(lambda: servers.entries()[0].known)
        assert servers.pool.states()["slow"].state == "ready"
    assert starts(tmp_path) == 1


async def test_a_cancelled_search_leaves_the_question_to_the_others(tmp_path: Path) -> None:
    """They get the answer to the question that it asked."""
    async with opened(tmp_path, raw("slow")) as servers:
        async with anyio.create_task_group() as tasks:

            async def search() -> None:
                await servers.load(["slow"], tolerant=True)

            tasks.start_soon(search)
            await until_exists(tmp_path / "pids")
            tasks.cancel_scope.cancel()
        tools, errors = await servers.load(["slow"], tolerant=True)
        assert (list(tools), errors) == (["slow"], {})
    assert starts(tmp_path) == 1


async def test_a_failed_server_is_left_alone(
    tmp_path: Path,
) -> None:
    """But not by those who name it, and not once its definition has changed."""
    finder = ListFinder(raw("bad", "exit"))
    async with opened(tmp_path, finder=finder) as servers:
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


async def test_a_failure_is_forgotten_in_time_and_by_success(tmp_path: Path) -> None:
    """A server that was fixed needs no restart of the bridge."""
    spec = raw("bad", "fail-once", FAIL_ONCE=str(tmp_path / "first"))
    async with opened(tmp_path, spec) as servers:
        _, errors = await servers.load(["bad"], tolerant=True)
        assert list(errors) == ["bad"]
        await servers.load(["bad"])
        tools, errors = await servers.load(["bad"], tolerant=True)
        assert (list(tools), errors) == (["bad"], {})
    (tmp_path / "first").unlink()
    async with opened(tmp_path, spec, failure_seconds=0.0) as servers:
        _, errors = await servers.load(["bad"], tolerant=True)
        assert list(errors) == ["bad"]
        tools, errors = await servers.load(["bad"], tolerant=True)
        assert (list(tools), errors) == (["bad"], {})


def config(*names: str) -> str:
    entry = {"command": sys.executable, "args": [str(WORKSHOP)]}
    return json.dumps({"mcpServers": dict.fromkeys(names, entry)})


def config_finder(home: Path, extra: Path | None = None) -> ConfigFinder:
    context = DiscoveryContext(
        home=home,
        cwd=home,
        platform="linux",
        environ={},
        extra_config=extra,
        system_root=home / "system",
    )
    return ConfigFinder(context, ProjectConsents(ConsentFile(home / "consents.json")))


def configured(home: Path, extra: Path | None = None) -> Servers:
    pool = Pool((), log_dir=home / "logs", environ=os.environ)
    return Servers(config_finder(home, extra), pool, ToolCache(Store(home)))


@pytest.mark.parametrize("torn", ["", config("one", "two")[:-9]], ids=["empty", "half"])
async def test_a_half_written_file_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: str
) -> None:
    """However often it is read in between; once it is whole again, it counts."""
    caplog.set_level(logging.INFO)
    file = tmp_path / ".claude.json"
    file.write_text(config("one", "two"))
    async with configured(tmp_path) as servers:
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


async def test_a_server_of_a_torn_file_gives_way_to_one_defined_elsewhere(tmp_path: Path) -> None:
    file, other = tmp_path / ".claude.json", tmp_path / "extra.json"
    file.write_text(config("one", "two"))
    other.write_text(config("three"))
    async with configured(tmp_path, other) as servers:
        file.write_text("{")
        other.write_text(config("three", "two"))
        await servers.refresh()
        assert sorted(servers.names()) == ["one", "three", "two"]
        assert servers.pool.spec("two").source.path == str(other)


async def test_the_servers_of_a_deleted_file_go(tmp_path: Path) -> None:
    """Also when it was torn before, and when its absence is worth a warning."""
    file, other = tmp_path / ".claude.json", tmp_path / "extra.json"
    file.write_text(config("one"))
    other.write_text(config("two"))
    async with configured(tmp_path, other) as servers:
        file.write_text("{")
        await servers.refresh()
        assert sorted(servers.names()) == ["one", "two"]
        file.unlink()
        await servers.refresh()
        assert servers.names() == ("two",)
        other.unlink()
        await servers.refresh()
        assert servers.names() == ()
        assert str(other) in str(servers.discovery.warnings)


async def test_who_does_not_wait_for_the_configuration_gets_it_by_asking(tmp_path: Path) -> None:
    pool = Pool((), log_dir=tmp_path, environ={})
    servers = Servers(ListFinder(workshop()), pool, ToolCache(Store(tmp_path)), eager=False)
    async with servers:
        assert servers.names() == ()
        with anyio.fail_after(PATIENCE_SECONDS):
            await servers.refresh()
        assert servers.names() == ("work-shop",)
