"""Servers that lose their sessions in random ways, for an hour. Run it with `make soak-sessions`.

It ends with 1 when a call is stuck, when one that was done is repeated, when the call after a loss
fails, when memory grows, or when a process, a descriptor or a thread is left at the end.
SOAK_SECONDS and SOAK_SEED set the duration and the seed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from bridge.errors import UpstreamError
from bridge.model import Transport
from bridge.upstream.pool import Pool
from tests.soak.host import PAGE_MIB, descendants
from tests.upstream.odd_web import Answer, OddWeb, error
from tests.upstream.rig import Rig
from tests.upstream.test_lost_sessions import HTML, SPELLINGS

SESSIONS = 200
SERVERS: tuple[Transport, ...] = ("http", "http", "http", "http", "sse", "sse")
CALL_SECONDS = 30.0  # A call that takes this long is stuck.
PAUSE_SECONDS = 0.2  # Longest time between two calls of a server.
RSS_SLACK_MIB = 16.0

DONE = {
    "502 after the call": Answer(502, HTML, "text/html"),
    "504 after the call": Answer(504),
    "500 session after the call": Answer(500, error(-32603, "Session not found")),
    "400 text after the call": Answer(400, "No transport found for sessionId", "text/plain"),
    "stream without an answer": Answer(200, "", "text/event-stream"),
}
"""What a call gets that the server has acted on."""


class LosingWeb(OddWeb):
    """A server that counts how often it acted on each call, and loses its sessions."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.acted: Counter[int] = Counter()
        self.next: Answer | None = None
        self.ways: Counter[str] = Counter()
        self._streams: list[Any] = []

    def answer(self, session: str, message: Mapping[str, Any]) -> tuple[Answer, str]:
        if message["method"] == "tools/call" and session in self.sessions:
            self.acted[message["params"]["arguments"]["n"]] += 1
            if self.next is not None:
                found, self.next = self.next, None
                self.lose()
                return found, ""
        self.received.clear()
        return super().answer(session, message)

    def lose(self) -> None:
        """Forget all sessions; their streams stay open."""
        self._streams += self.sessions.values()
        self.sessions.clear()

    def lose_somehow(self, chance: random.Random) -> None:
        """Lose the sessions in one of the ways."""
        spellings = [name for name in SPELLINGS if self.transport == "http" or name[:3] != "200"]
        way = chance.choice(spellings)
        self.lost = SPELLINGS[way]
        if self.transport == "http" and chance.random() < 0.3:
            way = chance.choice(list(DONE))
            self.next = DONE[way]
        else:
            self.lose()
            if chance.random() < 0.5:
                way += ", stream ends"
                self.end_streams()
        self.ways[f"{self.transport} {way}"] += 1

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.put("")
        self._streams.clear()


class Soak:
    """The callers of all servers, and what they saw."""

    def __init__(self, pool: Pool, webs: Mapping[str, LosingWeb], seed: int) -> None:
        self._pool = pool
        self._webs = webs
        self._chance = random.Random(seed)
        self._losses: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self.ended = False
        self.calls: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.rss: list[float] = []
        self.slowest = 0.0
        self.killed = 0

    async def call(self, name: str) -> None:
        """Call a server until the end; a call may fail only after a loss."""
        web, number = self._webs.get(name), 0
        while not self.ended:
            number += 1
            losses, began = self._losses[name], anyio.current_time()
            try:
                with anyio.fail_after(CALL_SECONDS + 10):
                    await self._pool.call_tool(
                        name, "echo", {"n": number, "text": "x"}, timeout=CALL_SECONDS
                    )
            except TimeoutError:
                self.complaints.append(f"{name}: call {number} is stuck")
            except UpstreamError as failure:
                self.calls["failed"] += 1
                self._failures[name] -= 1
                if self._failures[name] < 0:
                    self.complaints.append(f"{name}: call {number} failed without cause: {failure}")
            else:
                self.calls["answered"] += 1
                if losses == self._losses[name] and (web is None or web.next is None):
                    self._failures[name] = 0
                if web is not None and web.acted[number] != 1:
                    self.complaints.append(f"{name}: call {number}: {web.acted[number]} times")
            seconds = anyio.current_time() - began
            self.slowest = max(self.slowest, seconds)
            if seconds >= CALL_SECONDS:
                self.complaints.append(f"{name}: call {number} took {seconds:.0f} s")
            await anyio.sleep(self._chance.uniform(0, PAUSE_SECONDS))

    async def lose(self, seconds: float) -> None:
        """Lose all sessions over a time, and look at the memory meanwhile."""
        for number in range(SESSIONS):
            await anyio.sleep(self._chance.uniform(0, 2 * seconds / SESSIONS))
            name = self._chance.choice([*self._webs, "stdio"])
            self._losses[name] += 1
            # The call that shows the loss, and before it one that a gateway has answered.
            self._failures[name] += 2
            if name != "stdio":
                self._webs[name].lose_somehow(self._chance)
            elif pid := self._pool.state(name).pid:
                self.killed += 1
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if number % 10 == 9:
                self.rss.append(rss())
        await anyio.sleep(2)
        self.ended = True

    def check(self) -> None:
        """Complain of calls that were done twice, and of memory that grew."""
        for name, web in self._webs.items():
            twice = [number for number, count in web.acted.items() if count > 1]
            if twice:
                self.complaints.append(f"{name} acted more than once on the calls {twice[:10]}")
        quarter = max(1, len(self.rss) // 4)
        grown = min(self.rss[-quarter:]) - min(self.rss[:quarter])
        if grown > RSS_SLACK_MIB:
            self.complaints.append(f"memory grew by {grown:.1f} MiB")


def rss() -> float:
    """Return the memory of this process in MiB, without what waits for collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


def state() -> dict[str, object]:
    """Return what has to be as before at the end."""
    gc.collect()
    return {
        "processes": descendants(),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "servers' threads": sum("process_request" in each.name for each in threading.enumerate()),
    }


async def soak(seconds: float, seed: int) -> int:
    """Lose the sessions; print what was seen, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="mcb-soak-") as directory, ExitStack() as stack:
        rig = Rig(Path(directory))
        webs = {f"{kind}{number}": LosingWeb(kind) for number, kind in enumerate(SERVERS)}
        for web in webs.values():
            stack.enter_context(web.serve())
        specs = [
            replace(rig.remote(web.url, web.transport), name=name) for name, web in webs.items()
        ]
        before = state()
        async with rig.pool(*specs, replace(rig.raw(), name="stdio")) as pool:
            run = Soak(pool, webs, seed)
            async with anyio.create_task_group() as tasks:
                for name in (*webs, "stdio"):
                    tasks.start_soon(run.call, name)
                await run.lose(seconds)
        for web in webs.values():
            web.lose()
            web.end_streams()
        after = state()
        for _ in range(100):
            if after == before:
                break
            await anyio.sleep(0.2)
            after = state()
        run.complaints += [
            f"{key}: {before[key]}, {after[key]}" for key in before if before[key] != after[key]
        ]
        run.check()
    ways = sum((web.ways for web in webs.values()), Counter[str]())
    print(json.dumps(dict(sorted(ways.items())), indent=1))
    print(f"{sum(ways.values())} sessions lost, {run.killed} processes killed", dict(run.calls))
    print(
        f"slowest call {run.slowest:.1f} s; RSS {run.rss[0]:.1f} to {run.rss[-1]:.1f} MiB; {after}"
    )
    print("complaints", *(run.complaints or ["none"]), sep="\n  ")
    return bool(run.complaints)


def main() -> int:
    seconds = float(os.environ.get("SOAK_SECONDS") or 3600)
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(2**32))
    print(f"seed {seed}: {SESSIONS} losses in about {seconds:g} s", flush=True)
    return anyio.run(soak, seconds, seed)


if __name__ == "__main__":
    sys.exit(main())
