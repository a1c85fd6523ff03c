"""What tools cost a client's context without the bridge and with it, and how well they are found.

    python -m benchmarks.disclosure          all of it; `scripts/bench-servers` installs the servers
    python -m benchmarks.disclosure --misses and which queries do not find their tool in five

Prints Markdown. Nothing is called but `tools/list`, and no server is given a real token.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from benchmarks.disclosure_quality import (
    HELD_OUT,
    RANKS,
    TUNED,
    Quality,
    Search,
    rate,
    read_queries,
)
from benchmarks.disclosure_servers import CROWD_SERVERS, Given, crowd, packages, real_servers, spec
from benchmarks.disclosure_speed import Speed, speed
from benchmarks.machine import machine
from bridge.catalog.search import ToolIndex
from bridge.inventory.inventory import Listing
from bridge.model import Tool
from bridge.runs import open_engine
from bridge.server.app import tool_list
from bridge.server.tools import search_result
from bridge.settings import Settings, load
from bridge.text import count_tokens, definition_text

Tools = Mapping[str, tuple[Tool, ...]]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of what a client puts into a conversation before anything is asked."""

    tokens: int
    bytes: int


def direct(tools: Sequence[Tool]) -> Cost:
    """Return what a client pays that loads the tools themselves."""
    texts = [definition_text(tool.name, tool.description, tool.input_schema) for tool in tools]
    return _cost(texts)


async def bridged(tools: Tools, settings: Settings) -> Cost:
    """Return what a client pays that loads the bridge's tools instead."""
    # Started by no one: what they offer is known already.
    specs = tuple(spec(name, "false") for name in tools)
    async with open_engine(settings, finder=Given(specs)) as engine:
        for name, found in tools.items():
            engine.servers.inventory.update(name, found)
        texts = [
            definition_text(tool.name, tool.description or "", tool.input_schema)
            for tool in await tool_list(engine)
        ]
    return _cost(texts)


async def answers(tools: Tools, settings: Settings) -> list[int]:
    """Return the tokens of the answers to the labelled queries, as `search_tools` gives them."""
    specs = tuple(spec(name, "false") for name in tools)
    counted = []
    async with open_engine(settings, finder=Given(specs)) as engine:
        for name, found in tools.items():
            engine.servers.inventory.update(name, found)
        for query in (*read_queries(TUNED), *read_queries(HELD_OUT)):
            result = await search_result(engine, {"query": query.text}, "")
            counted.append(
                sum(count_tokens(block.text) for block in result.content if block.type == "text")
            )
    return counted


async def listings(settings: Settings, directory: Path) -> dict[str, Listing]:
    """Start every real server, and return what each lists."""
    specs = real_servers(directory)
    async with open_engine(settings, finder=Given(specs)) as engine:
        errors = await engine.servers.load_unknown(engine.servers.names(), patient=True)
        for name, error in errors.items():
            print(f"{name} is left out: {error}", file=sys.stderr)
        found = {name: engine.servers.last_listing(name) for name in engine.servers.names()}
    return {name: listing for name, listing in found.items() if listing is not None}


def searcher(tools: Tools) -> Search:
    """Return a search over these tools."""
    index = ToolIndex()
    index.update(tools)

    def search(query: str) -> list[str]:
        matches = index.search(query, limit=RANKS)
        return [f"{match.tool.server}.{match.tool.name}" for match in matches]

    return search


async def report(*, misses: bool) -> None:
    """Measure, and print."""
    with _workplace() as (settings, directory):
        found = await listings(settings, directory)
        tools = {name: listing.tools for name, listing in found.items()}
        await _print_costs(found, tools, settings)
        everything = {**tools, **crowd()}
        print("\n| queries | tools | recall@5 | recall@1 | mean reciprocal rank |")
        print("|---|--:|--:|--:|--:|")
        for among in (tools, everything):
            search = searcher(among)
            for half, name in ((TUNED, "tuned on"), (HELD_OUT, "held out")):
                quality = rate(read_queries(half), search)
                _print_quality(
                    f"{name}, {len(quality.ranks)}", sum(map(len, among.values())), quality
                )
                if misses:
                    print("\n".join(f"  {rank or '-'} {text}" for text, rank in quality.missed))
        _print_speed(speed(crowd()))


async def _print_costs(found: Mapping[str, Listing], tools: Tools, settings: Settings) -> None:
    here = machine()
    system = f"{here.cpu}, {here.cores} cores, Python {here.python}, load {here.load_before}"
    print(f"Tokens are estimated. {system}.")
    print("\n| server | version | tools | start, s | bytes | tokens | alone behind the bridge |")
    print("|---|---|--:|--:|--:|--:|--:|")
    cheaper = 0
    for name, listing in found.items():
        alone, cost = await bridged({name: listing.tools}, settings), direct(listing.tools)
        cheaper += alone.tokens < cost.tokens
        seconds = "" if listing.start_seconds is None else f"{listing.start_seconds:.1f}"
        version = listing.info.get("version", "")
        print(
            f"| {name} | {version} | {len(listing.tools)} | {seconds} | {cost.bytes:,} "
            f"| {cost.tokens:,} | {alone.tokens:,} |"
        )
    sets: list[tuple[str, Tools]] = [("all of these", tools)]
    sets.append((f"{CROWD_SERVERS} made-up servers", crowd()))
    print("\n| servers | tools | bytes | tokens | bytes, bridge | tokens, bridge | of it |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, members in sets:
        cost = direct([tool for each in members.values() for tool in each])
        with_bridge = await bridged(members, settings)
        count = sum(map(len, members.values()))
        print(
            f"| {name} | {count:,} | {cost.bytes:,} | {cost.tokens:,} | {with_bridge.bytes:,} "
            f"| {with_bridge.tokens:,} | {with_bridge.tokens / cost.tokens:.1%} |"
        )
    print(f"\nAlone behind the bridge, {cheaper} of {len(found)} servers cost less than directly.")
    counted = await answers(tools, settings)
    print(
        f"An answer of search_tools with five hits: {median(counted):.0f} tokens (median), at most "
        f"{max(counted):,}."
    )
    print("npm: " + ", ".join(f"{name} {version}" for name, version in sorted(packages().items())))


def _print_quality(name: str, count: int, quality: Quality) -> None:
    print(
        f"| {name} | {count:,} | {quality.recall(5):.3f} | {quality.recall(1):.3f} "
        f"| {quality.mean_reciprocal_rank:.3f} |"
    )


def _print_speed(measured: Speed) -> None:
    print(
        f"\nSearch over {measured.tools:,} tools: median {measured.median_ms:.2f} ms, p99 "
        f"{measured.p99_ms:.2f} ms of CPU time, {measured.fresh_ms:.2f} ms (median) for words that "
        "were not looked for before, where SQLite's own ranking of the same words takes "
        f"{measured.floor_ms:.2f} ms (ratio {measured.median_ms / measured.floor_ms:.2f}). The "
        f"index takes {measured.build_ms:.0f} ms to build, {measured.server_ms:.1f} ms for one "
        f"server again, and {measured.megabytes:.0f} MB."
    )


def _cost(texts: Sequence[str]) -> Cost:
    return Cost(
        tokens=sum(map(count_tokens, texts)),
        bytes=sum(len(text.encode("utf-8", "replace")) for text in texts),
    )


@contextmanager
def _workplace() -> Iterator[tuple[Settings, Path]]:
    """Give settings that touch nothing of the user's, and a directory for the servers' data."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        environ = {**os.environ, "HOME": name, "MCP_BRIDGE_STATE_DIR": str(directory / "state")}
        data = directory / "data"
        data.mkdir()
        yield load({"warm": "0"}, environ), data


def main() -> None:
    """Parse the arguments and report."""
    parser = argparse.ArgumentParser(description="Measure what tools cost, and how they are found.")
    parser.add_argument(
        "--misses", action="store_true", help="name queries that miss the first five"
    )
    arguments = parser.parse_args()

    async def run() -> None:
        await report(misses=arguments.misses)

    anyio.run(run)


if __name__ == "__main__":
    main()
