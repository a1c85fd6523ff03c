"""Another MCP server that runs code, measured by the same client beside this bridge.

Owns the three questions that make sense of any such server: how long from starting it to its first
answer, how long a run takes at a person's pace, and how long when one follows the other. What the
other server isolates is its own business; docs/performance.md says how to read the comparison.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent

from benchmarks.bench import TOOL_SERVER, Bench, BenchmarkError, without_bridge_settings
from benchmarks.bridge_client import open_bridge
from benchmarks.engines import Engine
from benchmarks.figures import median, quantile, shown
from benchmarks.runner import reason
from benchmarks.table import columns

DEFAULT_CODE = "print(1)"

STARTS = (5, 2)
RUNS = (20, 4)
PACE_SECONDS = 1.0

START_SECONDS = 60.0
CALL_SECONDS = 60.0
"""A server that takes longer, or says nothing, is given up; starting includes the first run."""

MAX_FAILURES = 3
"""Of one question; after so many the rest of its samples are not asked for."""

MAX_QUOTE = 200
"""Characters of what a failing server said."""

QUESTIONS = ("start to first answer", "a run, a second apart", "a run, back to back")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the two servers.

    Attributes:
        open: Starts it and connects; leaving ends it.
        tool, argument: What runs code, and how it is given.
        code: What it runs.
        extra: The tool's other arguments.
    """

    name: str
    open: Callable[[], AbstractAsyncContextManager[Client]]
    tool: str
    argument: str
    code: str
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(kw_only=True)
class Figures:
    """What a contender made of the questions.

    Attributes:
        samples: Milliseconds by question.
        failures: What went wrong, each thing once.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, why: str) -> None:
        """Count a failure."""
        self.failures[why] = self.failures.get(why, 0) + 1


@asynccontextmanager
async def _open_peer(bench: Bench, command: Sequence[str]) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=without_bridge_settings()
    )
    # The handshake that every server knows: some end at anything else.
    with (bench.directory / "peer.log").open("a") as log:
        async with Client(stdio_client(parameters, errlog=log), mode="legacy") as client:
            yield client


@asynccontextmanager
async def _open_ours(bench: Bench, engine: Engine) -> AsyncIterator[Client]:
    async with open_bridge(bench, engine, servers={"tools": TOOL_SERVER}) as bridge:
        yield bridge.client


async def run_code(client: Client, contender: Contender) -> float:
    """Run code and return the milliseconds.

    Raises:
        BenchmarkError: The server answered with an error, or not in time.
    """
    started = time.perf_counter()
    try:
        with anyio.fail_after(CALL_SECONDS):
            arguments = {**contender.extra, contender.argument: contender.code}
            result = await client.call_tool(contender.tool, arguments)
    except TimeoutError:
        message = f"no answer from {contender.tool} in {CALL_SECONDS:g} s"
        raise BenchmarkError(message) from None
    taken = (time.perf_counter() - started) * 1000
    if result.is_error:
        message = f"{contender.tool} answered with an error: {quoted(result)}"
        raise BenchmarkError(message)
    return taken


def quoted(result: CallToolResult) -> str:
    """Return the beginning of a result's text, on one line."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    return " ".join(" ".join(texts).split())[:MAX_QUOTE] or "it says nothing"


async def check(client: Client, contender: Contender) -> None:
    """See that the tool is there and takes the code.

    Raises:
        BenchmarkError: It is not, or does not, or needs more.
    """
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    if contender.tool not in listed:
        there = ", ".join(sorted(listed)) or "none"
        message = f"{contender.name} has no tool {contender.tool!r}; --tool can be: {there}"
        raise BenchmarkError(message)
    schema = listed[contender.tool].input_schema
    properties = schema.get("properties") or {}
    if properties and contender.argument not in properties:
        there = ", ".join(sorted(properties))
        message = (
            f"{contender.tool} takes no argument {contender.argument!r}; --arg can be: {there}"
        )
        raise BenchmarkError(message)
    given = {contender.argument, *contender.extra}
    more = [name for name in schema.get("required") or () if name not in given]
    if more:
        message = f"{contender.tool} also needs {', '.join(more)}, which this cannot make up"
        raise BenchmarkError(message)


async def ask(bench: Bench, contender: Contender) -> Figures:
    """Put the questions to a contender; what fails is in the figures."""
    figures = Figures()
    starts, paced, back_to_back = QUESTIONS
    async with _noted(figures), _in_time(), contender.open() as client:
        await check(client, contender)
    if figures.failures:
        return figures
    for _ in range(bench.count(*STARTS)):
        if sum(figures.failures.values()) >= MAX_FAILURES:
            return figures
        async with _noted(figures), _in_time():
            started = time.perf_counter()
            async with contender.open() as client:
                await run_code(client, contender)
                taken = (time.perf_counter() - started) * 1000
                figures.samples.setdefault(starts, []).append(taken)
    async with _noted(figures), contender.open() as client:
        act = partial(run_code, client, contender)
        await act()
        await _repeat(act, figures, paced, bench.count(*RUNS), PACE_SECONDS)
        await _repeat(act, figures, back_to_back, bench.count(*RUNS), 0.0)
    return figures


async def _repeat(
    act: Callable[[], Awaitable[float]], figures: Figures, question: str, count: int, pace: float
) -> None:
    failures = 0
    for _ in range(count):
        await anyio.sleep(pace)
        try:
            figures.samples.setdefault(question, []).append(await act())
        except BenchmarkError as error:
            figures.failed(str(error))
            failures += 1
            if failures >= MAX_FAILURES:
                return


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        with anyio.fail_after(START_SECONDS):
            yield
    except TimeoutError:
        message = f"it did not start, answer and end within {START_SECONDS:g} s"
        raise BenchmarkError(message) from None


@asynccontextmanager
async def _noted(figures: Figures) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        # A named boundary: a server that fails is an outcome of the comparison.
        figures.failed(reason(error))


def report(ours: Contender, our: Figures, peer: Contender, their: Figures) -> str:
    """Return the table of the two, and what went wrong."""
    rows = [("p50 (p99) of", ours.name, peer.name, "peer / ours")]
    for question in QUESTIONS:
        mine, its = our.samples.get(question, []), their.samples.get(question, [])
        times = f"{median(its) / median(mine):.1f}" if mine and its else "–"
        rows.append((question, _cell(mine), _cell(its), times))
    lines = columns(rows)
    for contender, figures in ((ours, our), (peer, their)):
        for why, often in figures.failures.items():
            lines.append(f"{contender.name} failed {often} times: {why}")
    return "\n".join(lines)


def _cell(samples: Sequence[float]) -> str:
    if not samples:
        return "–"
    return f"{shown(median(samples), 'ms')} ({shown(quantile(samples, 0.99), 'ms')})"


async def measure(bench: Bench, engine: Engine, asked: argparse.Namespace) -> int:
    """Measure both and print the comparison; 1 when one gave no figure, 2 when it cannot start."""
    try:
        command = shlex.split(asked.peer)
    except ValueError as error:
        print(f"--peer {asked.peer!r} is no command line: {error}.", file=sys.stderr)
        return 2
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else asked.peer
        print(f"--peer: no command {name!r} here; install it or give its path.", file=sys.stderr)
        return 2
    try:
        extra = json.loads(asked.extra or "{}")
    except ValueError as error:
        print(f"--extra {asked.extra!r} is no JSON: {error}.", file=sys.stderr)
        return 2
    if not isinstance(extra, dict):
        print(f"--extra {asked.extra!r} must be an object of arguments.", file=sys.stderr)
        return 2
    code: str = asked.code or DEFAULT_CODE
    ours = Contender(
        name=f"this bridge, {engine.name}",
        open=partial(_open_ours, bench, engine),
        tool="run_python",
        argument="code",
        code=asked.own_code or code,
    )
    peer = Contender(
        name=command[0].rpartition("/")[2],
        open=partial(_open_peer, bench, command),
        tool=asked.tool,
        argument=asked.arg,
        code=code,
        extra=extra,
    )
    found: list[Any] = [await ask(bench, one) for one in (ours, peer)]
    print(report(ours, found[0], peer, found[1]))
    if not found[0].samples:
        return 1
    if not found[1].samples:
        tail = (bench.directory / "peer.log").read_text(errors="replace").splitlines()[-5:]
        print("\n".join(["Its stderr ends with:", *tail]) if tail else "It wrote no stderr.")
        return 1
    return 0
