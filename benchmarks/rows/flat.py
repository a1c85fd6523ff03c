"""Whether a run costs the same however much is configured that it does not use."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from benchmarks.bench import TOOL_SERVER, Bench, BenchmarkError
from benchmarks.bridge_client import (
    Bridge,
    Servers,
    configure,
    environment,
    open_bridge,
    open_direct,
)
from benchmarks.engines import Engine
from benchmarks.processes import all_pids, below, command
from benchmarks.results import Measurement, compare_medians
from bridge.inventory.configuration import ConfigFinder, consents_of, context_for
from bridge.inventory.inventory import Listing, ToolCache
from bridge.model import Tool
from bridge.settings import load
from bridge.store import Store

RUNS = (25, 4)
"""Of each of two bridges, in turns."""

PACE_SECONDS = 0.45
"""Between two runs of one bridge passes twice this: time for its next sandbox."""

FEW_SERVERS, MANY_SERVERS = 1, 200
FEW_TOOLS, MANY_TOOLS = 10, 5000

ONE_CALL = "await mcp_bench.noop()\n1"


async def servers(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure a run that uses one server, with few and with many configured."""
    measured = await _compare(bench, engine, _configured(FEW_SERVERS), _configured(MANY_SERVERS))
    return [_flat("flat-servers", engine, *measured)]


async def tools(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure a run that uses one tool of a server with few and with many."""
    few, many = ({"bench": (*TOOL_SERVER, str(count))} for count in (FEW_TOOLS, MANY_TOOLS))
    return [_flat("flat-tools", engine, *await _compare(bench, engine, few, many))]


def _configured(count: int) -> Servers:
    others = {f"other_{number}": TOOL_SERVER for number in range(count - 1)}
    return {"bench": TOOL_SERVER, **others}


async def _compare(
    bench: Bench, engine: Engine, few: Servers, many: Servers
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of runs with few and with many, made in turns."""
    homes = [bench.place(), bench.place()]
    for home, configured in zip(homes, (few, many), strict=True):
        configure(home, configured)
        await _remember_tools(home, engine)
    samples: tuple[list[float], list[float]] = ([], [])
    async with (
        open_bridge(bench, engine, home=homes[0]) as first,
        open_bridge(bench, engine, home=homes[1]) as second,
    ):
        for bridge in (first, second):
            # What a client does when it connects; it also starts the server that is used.
            await bridge.client.list_tools()
            for _ in range(3):
                await bridge.run(ONE_CALL, timeout=60)
        for _ in range(bench.count(*RUNS)):
            for taken, bridge in zip(samples, (first, second), strict=True):
                await anyio.sleep(PACE_SECONDS)
                taken.append((await bridge.run(ONE_CALL)).ms)
        for bridge in (first, second):
            _insist_on_one_server(bridge)
    return samples


def _insist_on_one_server(bridge: Bridge) -> None:
    """See that the servers which no program used were not started."""
    below_it = below(all_pids(), bridge.pid)
    started = [pid for pid in below_it if TOOL_SERVER[1] in command(pid)]
    if len(started) != 1:
        message = f"The bridge started {len(started)} servers; the programs used one."
        raise BenchmarkError(message)


async def _remember_tools(home: Path, engine: Engine) -> None:
    """Fill the cache of tools as earlier bridges of this user would have."""
    settings = load(environ=environment(home, engine, {}))
    context = context_for(settings, str(home / "project"), sys.platform)
    found = ConfigFinder(context, consents_of(settings)).find()
    cache = ToolCache(Store(settings.state_dir))
    listed: dict[tuple[str, ...], list[Tool]] = {}
    for spec in found.servers:
        argv = (spec.command, *spec.args)
        if argv not in listed:
            listed[argv] = await _listed(argv)
        own = tuple(
            Tool(
                server=spec.name,
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
            )
            for tool in listed[argv]
        )
        cache.save(spec, Listing(server=spec.name, tools=own, listed_at=time.time()))


async def _listed(command: tuple[str, ...]) -> list[Tool]:
    async with open_direct(command) as client:
        answer = await client.list_tools()
    return [
        Tool(
            server="",
            name=tool.name,
            description=tool.description or "",
            input_schema=tool.input_schema,
        )
        for tool in answer.tools
    ]


def _flat(row: str, engine: Engine, few: list[float], many: list[float]) -> Measurement:
    return compare_medians(
        row,
        many,
        few,
        detail=f"measured on {engine.name}; only the server that is used was started",
    )
