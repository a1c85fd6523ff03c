"""Bridges that serve HTTP as one service: real processes, and a balancer in front of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2

from tests.e2e.rig import BRIDGE
from tests.postgresql import url_for
from tests.waiting import until

KEEPER = Path(__file__).parents[1] / "fakes" / "servers" / "keeper.py"


@dataclass
class Bridge:
    """One `serve --http` that runs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listening(self) -> None:
        pattern = re.compile(r"Serving http://127\.0\.0\.1:(\d+)/mcp")
        await until(lambda: bool(pattern.search(self.log.read_text())) or self.ended)
        found = pattern.search(self.log.read_text())
        assert found is not None, self.log.read_text()
        self.port = int(found[1])

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    async def ready(self) -> dict[str, Any]:
        """Return what it says of its readiness, with the status."""
        # Without the certificates that it would read each time: that takes 35 ms, and many ask.
        async with httpx2.AsyncClient(verify=False) as web:
            answer = await web.get(f"{self.url}/readyz")
        return {"status": answer.status_code, **answer.json()}

    async def until_ready(self, status: int = 200) -> dict[str, Any]:
        """Wait until it takes runs, or until it takes none; return what it says then."""
        while (told := await self.ready())["status"] != status:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        return told

    async def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        await until(lambda: self.ended)


@dataclass
class Fleet:
    """Bridges that share a state directory, or a store on a server.

    Attributes:
        kept: What the MCP server behind all of them writes to.
    """

    home: Path
    settings: dict[str, str] = field(default_factory=dict)
    bridges: dict[str, Bridge] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        entry = {"command": sys.executable, "args": [str(KEEPER), str(self.kept)]}
        (self.home / ".claude.json").write_text(json.dumps({"mcpServers": {"keeper": entry}}))

    @property
    def apart(self) -> bool:
        """Whether each has a state directory of its own, since the store is on a server."""
        return "MCP_BRIDGE_STORE" in self.settings

    @property
    def kept(self) -> Path:
        return self.home / "kept"

    def writes(self) -> Counter[str]:
        return Counter(self.kept.read_text().split() if self.kept.exists() else ())

    async def start(self, name: str) -> Bridge:
        bridge = self._spawn(name)
        await bridge.listening()
        await bridge.until_ready()
        self.bridges[name] = bridge
        return bridge

    def _spawn(self, name: str) -> Bridge:
        log = self.home / f"{name}-{len(list(self.home.glob('*.log')))}.log"
        environ = {
            **os.environ,
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state" / (name if self.apart else "")),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "MCP_BRIDGE_RUNTIME": "bubblewrap",
            "MCP_BRIDGE_WARM": "1",
            "MCP_BRIDGE_REPLICA": name,
            **self.settings,
        }
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [str(BRIDGE), "serve", "--http", "127.0.0.1:0", "--no-token"],
                cwd=self.home,
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )
        self.processes.append(process)
        return Bridge(name, process, log)

    def records(self) -> list[dict[str, Any]]:
        found = []
        for file in sorted((self.home / "state").rglob("audit/*.jsonl")):
            found += [json.loads(line) for line in file.read_text().splitlines()]
        return found

    def outcomes(self) -> Counter[str]:
        """Return how many ends each run that began has in the audit logs."""
        ends: Counter[str] = Counter()
        for record in self.records():
            if record["kind"] in ("run", "apply"):
                ends[record["run"]] += 0
            elif record["kind"] == "end":
                ends[record["run"]] += 1
        return ends

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def fleet(home: Path, *names: str, **settings: str) -> AsyncIterator[Fleet]:
    if (store := url_for(home)) is not None:
        settings["MCP_BRIDGE_STORE"] = store.text
    made = Fleet(home, settings)
    try:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(made.start, name)
        yield made
    finally:
        made.stop()


@asynccontextmanager
async def balanced(replicas: Fleet) -> AsyncIterator[str]:
    """Send each request to the next replica that is ready; yield the URL of it all.

    A request that a replica breaks off is broken off: whether it may be made again is its client's
    to say.
    """
    turn = 0

    async def pick() -> Bridge:
        nonlocal turn
        while True:
            bridges = list(replicas.bridges.values())
            for _ in bridges:
                turn += 1
                bridge = bridges[turn % len(bridges)]
                with suppress(httpx2.TransportError):
                    if bridge.port and (await bridge.ready())["status"] == 200:
                        return bridge
            await anyio.sleep(0.05)

    async def serve(client: anyio.abc.SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream, OSError):
            async with client:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await client.receive()
                bridge = await pick()
                address = f"Host: 127.0.0.1:{bridge.port}\r\nConnection: close".encode()
                head = re.sub(rb"(?im)^connection:[^\r]*\r\n", b"", head, count=1)
                head = re.sub(rb"(?im)^host:[^\r]*", address, head, count=1)
                async with await anyio.connect_tcp("127.0.0.1", bridge.port) as server:
                    await server.send(head)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(copy, client, server, tasks.cancel_scope)
                        tasks.start_soon(copy, server, client, tasks.cancel_scope)

    async def copy(
        source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, over: anyio.CancelScope
    ) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            async for data in source:
                await sink.send(data)
        over.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}/mcp"
        tasks.cancel_scope.cancel()
