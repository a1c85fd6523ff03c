"""Hostile clients: no request keeps the loop, and what is wrong with it is said in short."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError

from bridge.event_loop import offload
from bridge.model import Json
from bridge.runs import Engine
from bridge.server.app import build_server, fingerprint
from bridge.server.stdio import MAX_MESSAGE_BYTES
from bridge.upstream.framing import MAX_VALUES
from tests.hostile.conftest import cases
from tests.hostile.test_servers import PATIENCE_SECONDS
from tests.watchdog import Watchdog

M = 1_000_000

MAX_TOLD = 3_000
"""Characters of an answer that says what is wrong."""


def program(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "run_python", {"code": "1", **fields}


def search(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "search_tools", {"query": "w", **fields}


CALLS: dict[str, tuple[Any, str]] = {
    "a query of 1,000 words": (
        lambda: search(query=" ".join(f"word{i}" for i in range(700))),
        "No tool fits",
    ),
    "a server of 12 MB": (lambda: search(server="s" * 12 * M), "There is no server 'sss"),
    "an argument of 12 MB": (lambda: search(**{"x" * 12 * M: 1}), "has no argument 'xxx"),
    "100,000 servers": (lambda: program(servers=["s"] * 100_000), "at most 200 items"),
    "200 servers of 60,000": (lambda: program(servers=["s" * 60_000] * 200), "There is no server"),
    "100,000 arguments": (
        lambda: program(**{f"k{i}": 1 for i in range(100_000)}),
        "has no argument 'k0'",
    ),
    "a session of 12 MB": (lambda: program(session="s" * 12 * M), "`session` must be a name"),
    "a file's name of 12 MB": (
        lambda: program(files=[{"name": "s" * 12 * M, "text": "a"}]),
        "is longer than 1,024 bytes",
    ),
    "a file's address of 12 MB": (
        lambda: program(files=[{"name": "s", "uri": "a" * 12 * M}]),
        "could not be read",
    ),
    "100,000 files": (
        lambda: program(files=[{"name": f"s{i}", "text": ""} for i in range(100_000)]),
        "at most 100 items",
    ),
    "a package of 12 MB": (lambda: program(packages=["p" * 12 * M]), "50,000 characters in all"),
    "a mode of 12 MB": (lambda: program(mode="p" * 12 * M), "mode must be one of"),
    "a retry of 12 MB": (lambda: program(retry_of="a" * 12 * M), "must be an id"),
    "code of 1,000,000 numbers": (lambda: program(code=[1] * M), "code must be a string"),
    "a timeout of 4,000 digits": (lambda: program(timeout=10**4_000), "timeout must be at most"),
}


@pytest.mark.guarantee("loop-never-stalls")
@cases(CALLS)
async def test_no_call_keeps_the_loop(
    engine: Engine, watchdog: Watchdog, made: Any, told: str
) -> None:
    name, arguments = made()
    async with Client(build_server(engine)) as client:
        with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
            result = await client.call_tool(name, arguments)
    said = "".join(getattr(block, "text", "") for block in result.content)
    assert told in said
    assert len(said) < MAX_TOLD


@pytest.mark.guarantee("loop-never-stalls")
@pytest.mark.parametrize(
    "uri", ["bridge://tools/", "bridge://artifacts/", "bridge://runs/x/stdout?lines=1", "x"]
)
async def test_no_address_of_a_resource_keeps_the_loop(
    engine: Engine, watchdog: Watchdog, uri: str
) -> None:
    long = uri + "1" * 12 * M
    async with Client(build_server(engine)) as client:
        with (
            anyio.fail_after(PATIENCE_SECONDS),
            watchdog.watching(),
            pytest.raises(MCPError) as caught,
        ):
            await client.read_resource(long)
    assert len(str(caught.value)) < MAX_TOLD


@pytest.mark.parametrize(
    "large", ["\xe9" * (MAX_MESSAGE_BYTES // 2), ["a"] * MAX_VALUES], ids=["text", "values"]
)
async def test_no_arguments_keep_the_loop_while_they_are_compared(
    watchdog: Watchdog, large: Json
) -> None:
    with watchdog.watching():
        found = await offload(large, partial(fingerprint, large))
    assert found == fingerprint(large)


def test_only_equal_arguments_are_the_same_call() -> None:
    assert fingerprint({"a": 1, "b": [None]}) == fingerprint({"b": [None], "a": 1})
    distinct: list[Json] = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}, ["a", 1], ["a", [1]]]
    distinct += ["a", ["ab"], ["a", "b"], [], {}, "", None, "\udc80"]
    assert len({fingerprint(each) for each in distinct}) == len(distinct)
