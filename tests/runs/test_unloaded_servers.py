"""Servers that a program names at run time: loaded when it first calls them, not by a guess."""

from __future__ import annotations

import dataclasses

import pytest

from bridge.model import RunRequest
from bridge.runs import Engine
from tests.engine_rig import ListFinder, workshop


@pytest.fixture(autouse=True)
def _three_servers(finder: ListFinder) -> None:
    broken = dataclasses.replace(workshop("broken"), command="/nowhere/server", args=())
    finder.specs = (workshop(), workshop("other shop"), broken)


@pytest.mark.parametrize(
    "server",
    [
        "mcp_servers['-'.join(parts)]",
        "globals()['mcp_' + '_'.join(parts)]",
        "__import__('importlib').import_module('mcp.servers.' + '_'.join(parts))",
        "getattr(__import__('mcp.servers').servers, '_'.join(parts))",
    ],
)
async def test_a_computed_name_loads_its_server_at_the_first_call(
    engine: Engine, server: str
) -> None:
    """By name and alias; arguments go by position and by name, and no other server is started."""
    code = f"""
parts = ("work", "shop")
server = {server}
[(await server.add(1, 2)).sum, (await server.add(a=3, b=4)).sum, "add" in dir(server)]
"""
    assert (await engine.run(RunRequest(code="'__path__' in globals()"))).result is False
    assert _started(engine) == []
    result = await engine.run(RunRequest(code=code))
    assert (result.error, result.result) == ("", [3, 7, True])
    assert _started(engine) == ["work-shop"]


async def test_servers_named_in_a_list_are_loaded(engine: Engine) -> None:
    """Also by an alias; one that cannot start hinders nobody until it is called."""
    code = """
sums = []
for name in ["work-shop", "other_shop"]:
    sums += [(await mcp_servers[name].add(a=1, b=1)).sum, len(list(mcp_servers[name])) > 1]
try:
    await mcp_servers["broken"[:]].add(a=1, b=1)
except MCPError as error:
    sums.append("did not start" in str(error))
sums
"""
    result = await engine.run(RunRequest(code=code))
    assert (result.error, result.result) == ("", [2, True, 2, True, True])


async def test_the_tools_of_a_server_are_listed_once_it_is_loaded(engine: Engine) -> None:
    code = """
server = mcp_servers["-".join(["work", "shop"][:])]
try:
    list(server)
except KeyError as error:
    print(error)
print(len(await server.list_tools()) == len(list(server)), repr(server))
await mcp_servers[" ".join(["other", "shop"][:])].addd(1, 2)
"""
    result = await engine.run(RunRequest(code=code))
    assert result.stdout.startswith("mcp_work_shop: its tools are not known yet")
    assert "True <MCP server 'work-shop': " in result.stdout
    assert "has no tool 'addd'. Did you mean 'add'?" in result.error


def _started(engine: Engine) -> list[str]:
    return [name for name, one in engine.servers.pool.states().items() if one.state != "idle"]
