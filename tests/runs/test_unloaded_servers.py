"""Servers that a program names at run time: loaded when it first calls them, not by a guess."""

from __future__ import annotations

import pytest

from bridge.model import RunRequest
from bridge.runs import Engine


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


def _started(engine: Engine) -> list[str]:
    return [name for name, one in engine.servers.pool.states().items() if one.state != "idle"]
