"""Sessions and configuration: what starts, what is shared, what is read again, what ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from bridge.errors import ServerStartError, UnknownServerError
from tests.contract.rig import open_descriptors
from tests.older_bridge.rig import Place, entry, run_on
from tests.upstream.rig import SERVERS, Rig, is_alive
from tests.waiting import until

CALL = "(await mcp_raw.echo(n=1)).n"


async def test_runs_at_the_same_time_start_each_server_once(place: Place) -> None:
    """However many of them are the first to need it."""
    place.configure({"raw": place.raw()})
    async with place.engine() as engine:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(run_on, engine, CALL)
        assert len(place.pids()) == 1
        assert (await run_on(engine, CALL)).result == 1
    assert len(place.pids()) == 1


@pytest.mark.parametrize("how", ["crash", "killed"])
async def test_a_dead_server_is_explained_and_replaced(place: Place, how: str) -> None:
    """In the run that saw it die, and in the next."""
    place.configure({"raw": place.raw()})
    code = f"""
try:
    await mcp_raw.{how}()
except runtime.MCPError as error:
    told = str(error)
[told, (await mcp_raw.echo(n=1)).n]
"""
    async with place.engine() as engine:
        told, n = (await run_on(engine, code)).result
        assert n == 1
        assert "raw" in told
        assert "went away during the call" in told
        os.kill(place.pids()[-1], 9)
        await until(lambda: engine.servers.pool.states()["raw"].state == "failed")
        assert (await run_on(engine, CALL)).result == 1
        assert len(place.pids()) == 3


async def test_servers_end_with_the_bridge(place: Place) -> None:
    """Also those that nobody asked anything for a while."""
    place.configure({"raw": place.raw(), "other": place.raw()})
    async with place.engine() as engine:
        await run_on(engine, f"{CALL}\nawait mcp_other.echo()")
        assert [is_alive(pid) for pid in place.pids()] == [True, True]
    assert [is_alive(pid) for pid in place.pids()] == [False, False]


async def test_a_failed_start_is_explained_and_leaves_nothing(place: Place) -> None:
    """No process, and no file more after five failures than after one; the next start is fresh."""
    place.configure({"raw": place.raw("exit")})

    def files() -> set[Path]:
        # Of a log there is one older copy.
        return {path for path in place.home.rglob("*") if path.suffix != ".1"}

    async with place.engine() as engine:
        with pytest.raises(ServerStartError, match="cannot find my configuration"):
            await run_on(engine, CALL)
        before = files()
        descriptors = open_descriptors()
        for _ in range(4):
            with pytest.raises(ServerStartError, match="exited with status 3"):
                await run_on(engine, CALL)
        assert files() == before
        assert open_descriptors() <= descriptors
        assert not any(map(is_alive, place.pids()))
        place.configure({"raw": place.raw()})
        assert (await run_on(engine, CALL)).result == 1


async def test_tools_on_later_pages_are_there(place: Place) -> None:
    """A program sees all three pages, and can call what stands on the last."""
    place.configure({"raw": place.raw("pages")})
    async with place.engine() as engine:
        result = await run_on(engine, "mcp_raw.tool_2_1\nlen(await mcp_raw.list_tools())")
    assert result.result == 6


async def test_tools_that_a_server_adds_are_there_in_the_next_run(place: Place) -> None:
    """The server announces them; what was listed before is not kept for ever."""
    place.configure({"raw": place.raw()})
    async with place.engine() as engine:
        assert "has no tool" in (await run_on(engine, "await mcp_raw.grown(n=2)")).error
        assert (await run_on(engine, "await mcp_raw.grow()")).status == "success"
        assert (await run_on(engine, "(await mcp_raw.grown(n=2)).n")).result == 2
        assert len(place.pids()) == 1


async def test_each_run_has_the_servers_it_names(place: Place) -> None:
    """The first run does not settle what later ones can use."""
    place.configure({name: place.raw() for name in ("one", "two", "three")})
    async with place.engine() as engine:
        for servers in (["one"], ["two"], ["three", "one"], []):
            result = await run_on(engine, "LOADED_MCP_SERVERS", servers)
            assert sorted(result.result) == sorted(result.servers) == sorted(servers)
        assert (await run_on(engine, "(await mcp_two.echo(n=7)).n")).result == 7


async def test_an_edited_file_counts_from_the_next_run_on(place: Place) -> None:
    """Added, changed, disabled and removed servers; the bridge is not restarted."""
    where = "(await mcp_raw.where()).env.WHO"

    def raw(who: str) -> dict[str, object]:
        return {**place.raw(), "env": {"WHO": who, "PID_FILE": str(place.pid_file)}}

    async with place.engine() as engine:
        with pytest.raises(UnknownServerError, match="mcp_raw"):
            await run_on(engine, where)
        place.configure({"raw": raw("first")})
        assert (await run_on(engine, where)).result == "first"
        place.configure({"raw": raw("the second")})
        assert (await run_on(engine, where)).result == "the second"
        place.configure({"raw": {**raw("nobody"), "disabled": True}})
        with pytest.raises(UnknownServerError):
            await run_on(engine, where)
        place.configure({"raw": raw("third")})
        assert (await run_on(engine, where)).result == "third"
        (place.project / ".mcp.json").unlink()
        with pytest.raises(UnknownServerError):
            await run_on(engine, where)
    assert not any(map(is_alive, place.pids()))


async def test_a_stronger_file_added_later_overrides(place: Place) -> None:
    """One name in two files: the order of the files decides, not which was read first."""
    where = "(await mcp_raw.where()).env.WHO"
    place.configure({"raw": place.raw() | {"env": {"WHO": "weak"}}}, "MCPs/raw.json")
    async with place.engine() as engine:
        assert (await run_on(engine, where)).result == "weak"
        place.configure({"raw": place.raw() | {"env": {"WHO": "strong"}}}, ".claude.json")
        assert (await run_on(engine, where)).result == "strong"
        (place.home / ".claude.json").unlink()
        assert (await run_on(engine, where)).result == "weak"


async def test_servers_of_every_spelling_and_transport_are_usable_together(
    place: Place, tmp_path: Path
) -> None:
    """Remote and local, under each name of the key, with variables in their entries."""
    web = Rig(tmp_path)
    folder = place.home / "MCPs"
    folder.mkdir()
    variable = "${MCB_NO_SUCH_VARIABLE:-" + str(SERVERS / "raw.py") + "}"
    with web.web("http") as url:
        remote = {"type": "http", "url": url, "headers": {"X-Who": "${HOME}"}}
        (folder / "a.json").write_text(json.dumps({"servers": {"far": remote}}))
        (folder / "b.json").write_text(json.dumps({"mcp_servers": {"near": place.raw()}}))
        place.configure({"varied": entry(variable)})
        code = "[(await server.echo(n=1)).n for server in (mcp_near, mcp_varied, mcp_far)]"
        async with place.engine() as engine:
            result = await run_on(engine, code)
    assert result.result == [1, 1, 1], result.error
