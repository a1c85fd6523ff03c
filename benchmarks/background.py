"""Clients of one user with five servers: alone, with a bridge each, and with one background bridge.

python -m benchmarks.background [COUNT ...]

A client is the process that an MCP client starts, with all processes below it. Clients come one
after another, open the same project, and use each server once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from benchmarks.bench import LEAN_SERVER, TOOL_SERVER, Bench, BenchmarkError
from benchmarks.bridge_client import BRIDGE, Servers, configure, environment
from benchmarks.engines import Engine, find
from benchmarks.figures import median
from benchmarks.processes import all_pids, below, command, proportional_mb
from benchmarks.results import Measurement, compare_medians
from benchmarks.rows.bulk import FETCH, MEGABYTE, RESULT_MB
from benchmarks.targets import CLIENTS
from bridge.background_instance import directory_of, instances

ALONE, OFF, ON = "alone", "off", "background"
MODES = {ALONE: "clients alone", OFF: "a bridge each", ON: "background bridge"}

CALLS = (12, 3)
PAUSE_SECONDS = 0.5  # Between two runs, so that a sandbox is ready.
SETTLE_SECONDS = 3.0  # Without a new process, after which memory is read.
SETTLED_SECONDS = 60.0

NODE_SERVERS = Path(__file__).parents[1] / "tests/node/node_modules/@modelcontextprotocol"


@dataclass(frozen=True)
class Set:
    """Five servers, a program that uses each, and a call that takes no time."""

    servers: Servers
    use: str
    server: str
    tool: str
    arguments: Mapping[str, Any]

    @property
    def call(self) -> str:
        """A program with one call."""
        return f"await mcp_{self.server}.{self.tool}(**{dict(self.arguments)!r})"


def server_set() -> Set:
    """Return five real servers if they are installed, else five of the benchmark's own."""
    scripts = [
        NODE_SERVERS / f"server-{name}/dist/index.js" for name in ("everything", "filesystem")
    ]
    python = [
        Path(sys.executable).with_name(f"mcp-server-{name}") for name in ("fetch", "git", "time")
    ]
    if all(path.exists() for path in (*scripts, *python)):
        servers = {
            "everything": ("node", str(scripts[0])),
            "files": ("node", str(scripts[1]), "."),
            **{path.name.rpartition("-")[2]: (str(path),) for path in python},
        }
        calls = [
            "everything.echo(message='')",
            "files.list_allowed_directories()",
            "fetch.fetch(url='http://127.0.0.1:9/')",
            "git.git_status(repo_path='.')",
            "time.get_current_time(timezone='UTC')",
        ]
        return Set(servers, _attempt(calls), "everything", "echo", {"message": "x"})
    servers = {f"tools{number}": (*TOOL_SERVER, str(number)) for number in range(5)}
    return Set(servers, _attempt([f"{name}.noop()" for name in servers]), "tools0", "noop", {})


def _attempt(calls: list[str]) -> str:
    # A server that answers with an error has started.
    each = "try:\n    await mcp_{}\nexcept Exception:\n    pass\n"
    return "".join(each.format(call) for call in calls)


class Peer:
    """A server's process or a bridge's front, spoken to over its pipes."""

    def __init__(self, words: tuple[str, ...], home: Path, environ: Mapping[str, str]) -> None:
        self._numbers = itertools.count(1)
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=home / "project",
            env=environ,
        )

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a request's result.

        Raises:
            BenchmarkError: It was refused, or the process has ended.
        """
        assert self.process.stdout is not None
        number = next(self._numbers)
        self.send(id=number, method=method, params=params)
        while line := self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                if "error" in message or message["result"].get("isError"):
                    raise BenchmarkError(f"{method} failed: {str(message)[:300]}")
                return dict(message["result"])
        raise BenchmarkError(f"{self.process.args!r} has ended.")

    def initialize(self) -> None:
        client = {"name": "benchmark", "version": "1"}
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
        self.send(method="notifications/initialized")

    def measure_time(self, tool: str, **arguments: Any) -> float:
        """Call a tool and return the milliseconds."""
        started = time.perf_counter()
        self.ask("tools/call", name=tool, arguments=arguments)
        return (time.perf_counter() - started) * 1000

    def run(self, code: str, **arguments: Any) -> float:
        """Run a program and return the milliseconds."""
        return self.measure_time("run_python", code=code, **arguments)

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        """Close its input and wait until it has ended."""
        self.end_input()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.process.wait()


class Clients:
    """Clients of one user, in one mode."""

    def __init__(self, mode: str, home: Path, engine: Engine, servers: Set) -> None:
        self.mode, self.home, self._servers = mode, home, servers
        self.environ = environment(
            home, engine, {"MCP_BRIDGE_BACKGROUND": "on" if mode == ON else "off"}
        )
        self._peers: list[list[Peer]] = []

    def add(self) -> float:
        """Start a client and return the milliseconds until it has all tools."""
        started = time.perf_counter()
        commands = [*self._servers.servers.values()] if self.mode == ALONE else [BRIDGE]
        peers = [Peer(tuple(words), self.home, self.environ) for words in commands]
        self._peers.append(peers)
        for peer in peers:
            peer.initialize()
        for peer in peers:
            peer.ask("tools/list")
        return (time.perf_counter() - started) * 1000

    def remove(self) -> None:
        """End the last client."""
        for peer in self._peers.pop():
            peer.close()

    def use(self) -> None:
        """Let the last client use each server, so that each has started."""
        if self.mode != ALONE:
            self.last.run(self._servers.use, timeout=60)

    @property
    def last(self) -> Peer:
        return self._peers[-1][0]

    def call(self) -> float:
        """Return the milliseconds of the last client's call."""
        if self.mode == ALONE:
            return self.last.measure_time(self._servers.tool, **self._servers.arguments)
        return self.last.run(self._servers.call)

    def processes(self) -> set[int]:
        """Return what the clients have started, and the background bridge's processes."""
        roots = {peer.process.pid for peers in self._peers for peer in peers} | self.bridges()
        pids = all_pids()
        return roots.union(*(below(pids, root) for root in roots))

    def bridges(self) -> set[int]:
        """Return the background bridges."""
        found = (each.process() for each in instances(directory_of(self.environ)))
        return {number for number in found if number is not None}

    def wait_quiet(self) -> set[int]:
        """Return the processes once none has come or gone for a while."""
        until = time.monotonic() + SETTLED_SECONDS
        before, since = self.processes(), time.monotonic()
        while time.monotonic() < min(until, since + SETTLE_SECONDS):
            time.sleep(0.2)
            if (now := self.processes()) != before:
                before, since = now, time.monotonic()
        return before

    def servers_of(self, pids: set[int]) -> int:
        """Return how many of the processes are servers."""
        marks = {words[min(1, len(words) - 1)] for words in self._servers.servers.values()}
        return sum(any(mark in command(pid) for mark in marks) for pid in pids)

    def close(self) -> None:
        """End all clients at once, then the background bridge."""
        peers = [peer for each in self._peers for peer in each]
        for peer in peers:
            peer.end_input()
        for peer in peers:
            peer.close()
        bridges = self.bridges()
        for number in bridges:
            os.kill(number, signal.SIGTERM)
        until = time.monotonic() + SETTLED_SECONDS
        while any(map(command, bridges)) and time.monotonic() < until:
            time.sleep(0.05)


@contextmanager
def clients(bench: Bench, mode: str, engine: Engine, servers: Set) -> Iterator[Clients]:
    """Yield a user's clients in one mode; at the end none of their processes is left."""
    home = bench.place()
    configure(home, servers.servers)
    user = Clients(mode, home, engine, servers)
    try:
        yield user
    finally:
        user.close()


@dataclass(frozen=True)
class Cell:
    """What clients in one mode cost.

    Attributes:
        megabytes: Proportional memory of all processes.
        first: Milliseconds from a client's start until it has all tools; median of the last five.
        call: Milliseconds of the last client's call, the median.
    """

    mode: str
    count: int
    processes: int
    servers: int
    megabytes: float
    first: float
    call: float


def measure(bench: Bench, engine: Engine, count: int, mode: str) -> Cell:
    """Start clients one after another, and measure all of them and the last."""
    servers = server_set()
    with clients(bench, mode, engine, servers) as user:
        starts, calls = [], []
        for _ in range(count):
            starts.append(user.add())
            user.use()
        for _ in range(bench.count(*CALLS)):
            time.sleep(PAUSE_SECONDS)
            calls.append(user.call())
        pids = user.wait_quiet()
        return Cell(
            mode=mode,
            count=count,
            processes=len(pids),
            servers=user.servers_of(pids),
            megabytes=sum(map(proportional_mb, pids)),
            first=median(starts[-5:]),
            call=median(calls),
        )


async def side_by_side(bench: Bench, engine: Engine, *, count: int) -> list[Measurement]:
    """Measure so many clients in each mode."""
    cells = [await anyio.to_thread.run_sync(measure, bench, engine, count, mode) for mode in MODES]
    return [
        Measurement(
            row=f"clients-{count}",
            engine=MODES[cell.mode],
            figure=cell.megabytes,
            detail=f"{cell.processes} processes, {cell.servers} of them servers; all tools after "
            f"{cell.first:,.0f} ms; a call takes {cell.call:.1f} ms",
        )
        for cell in cells
    ]


FURTHER = (10, 3)

STARTS = (12, 3)
COLD_STARTS = (5, 1)
IMPORT = (sys.executable, "-c", "import mcp.server")

CACHES = Path("/proc/sys/vm/drop_caches")


async def further(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure what a further client of a background bridge costs, and how soon it has its tools."""
    return await anyio.to_thread.run_sync(_further, bench, engine)


def _further(bench: Bench, engine: Engine) -> list[Measurement]:
    servers = server_set()
    more = bench.count(*FURTHER)
    with clients(bench, ON, engine, servers) as user:
        user.add()
        user.use()
        before = user.wait_quiet()
        memory = sum(map(proportional_mb, before))
        warm = _starts(user, bench.count(*STARTS), cold=False)
        cold = _starts(user, bench.count(*COLD_STARTS), cold=True)
        for _ in range(more):
            user.add()
            user.use()
        after = user.wait_quiet()
        memory = (sum(map(proportional_mb, after)) - memory) / more
        started = user.servers_of(after) - user.servers_of(before)
    return [
        Measurement(row="client-memory", figure=memory, detail=f"of {more} clients"),
        Measurement(row="client-servers", figure=started / more),
        warm,
        cold,
    ]


def _starts(user: Clients, count: int, *, cold: bool) -> Measurement:
    """Compare clients that come and go with imports of the SDK, by turns."""
    row = "tools-list-cold" if cold else "tools-list"
    answers, imports = [], []
    if cold and not os.access(CACHES, os.W_OK):
        return Measurement(row=row, unavailable=f"only root may write to {CACHES}")
    for _ in range(count):
        _drop_caches(cold)
        answers.append(user.add())
        user.remove()
        _drop_caches(cold)
        started = time.perf_counter()
        subprocess.run(IMPORT, check=True)
        imports.append((time.perf_counter() - started) * 1000)
    return compare_modes(row, answers, imports)


def _drop_caches(cold: bool) -> None:
    if cold:
        os.sync()
        CACHES.write_text("3")


def compare_modes(row: str, figures: list[float], floors: list[float]) -> Measurement:
    return compare_medians(
        row, figures, floors, detail=f"fastest {min(figures):.1f} and {min(floors):.1f} ms"
    )


CLIENT_CALLS = (60, 5)
RESULTS = (7, 1)


async def through(bench: Bench, engine: Engine) -> list[Measurement]:
    """Compare calls and large results of a background bridge with those of a bridge each."""
    return await anyio.to_thread.run_sync(_through, bench, engine)


def _through(bench: Bench, engine: Engine) -> list[Measurement]:
    several = server_set()
    large = FETCH.format(sizes=[RESULT_MB * MEGABYTE])
    servers = replace(several, servers={**several.servers, "lean": LEAN_SERVER})
    calls: dict[str, list[float]] = {ON: [], OFF: []}
    results: dict[str, list[float]] = {ON: [], OFF: []}
    with clients(bench, ON, engine, servers) as shared, clients(bench, OFF, engine, servers) as own:
        users = (shared, own)
        for user in users:
            user.add()
            user.use()
            user.last.run(large, timeout=120)
        for number in range(bench.count(*CLIENT_CALLS)):
            for user in users[:: 1 if number % 2 else -1]:
                time.sleep(PAUSE_SECONDS)
                calls[user.mode].append(user.call())
        for number in range(bench.count(*RESULTS)):
            for user in users[:: 1 if number % 2 else -1]:
                time.sleep(PAUSE_SECONDS)
                results[user.mode].append(user.last.run(large, timeout=120))
    return [
        compare_modes("client-call", calls[ON], calls[OFF]),
        compare_modes("client-result", results[ON], results[OFF]),
    ]


HEAD = "| clients | | processes | of them servers | memory (PSS) | until all tools | a call |"


def line(cell: Cell) -> str:
    """Return a cell as a line of a table for a document."""
    return (
        f"| {cell.count} | {MODES[cell.mode]} | {cell.processes} | {cell.servers} "
        f"| {cell.megabytes:,.0f} MB | {cell.first:,.0f} ms | {cell.call:.1f} ms |"
    )


def main(words: list[str]) -> int:
    """Print the table for so many clients, row by row."""
    engine = find("bubblewrap")
    if isinstance(engine, str):
        print(engine, file=sys.stderr)
        return 2
    counts = [int(word) for word in words] or CLIENTS
    with tempfile.TemporaryDirectory(prefix="mcb.", dir="/tmp") as directory:
        bench = Bench(directory=Path(directory))
        print(f"{HEAD}\n|{'---|' * 7}", flush=True)
        for count in counts:
            for mode in MODES:
                print(line(measure(bench, engine, count, mode)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
