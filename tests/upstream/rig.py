"""Real servers for the upstream tests, and their surviving processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.model import ProtocolMode, ServerSettings, ServerSpec, Source, Transport
from bridge.upstream.pool import Pool
from bridge.upstream.process import parse_stat
from tests.waiting import until

SERVERS = Path(__file__).parents[1] / "fakes" / "servers"
PACKAGES = Path(__file__).parents[1] / "node" / "node_modules" / "@modelcontextprotocol"
EVERYTHING = PACKAGES / "server-everything" / "dist" / "index.js"


def with_protocol(protocol: ProtocolMode) -> dict[str, ServerSettings]:
    """Return settings with this protocol for the server "server"."""
    return {"server": ServerSettings(protocol=protocol)}


class Rig:
    """Makes definitions of servers, and pools with their files in one test's directory."""

    def __init__(self, directory: Path, era: ProtocolMode = "auto") -> None:
        self._era = era
        self.directory = directory
        self.log_dir = directory / "logs"
        self.pid_file = directory / "pids"
        self._web: subprocess.Popen[bytes] | None = None
        self.environ = {**os.environ, "PID_FILE": str(self.pid_file)}

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def spec(self, *argv: str, name: str = "server", **fields: Any) -> ServerSpec:
        fields |= {"command": argv[0], "args": argv[1:]}
        source = Source(client="Test", scope="user", path="/tmp/servers.json", key=name)
        return ServerSpec(name=name, transport="stdio", source=source, **fields)

    def raw(self, *modes: str, **fields: Any) -> ServerSpec:
        return self.spec(sys.executable, str(SERVERS / "raw.py"), ",".join(modes), **fields)

    def toolbox(self, **fields: Any) -> ServerSpec:
        return self.spec(sys.executable, str(SERVERS / "toolbox.py"), "stdio", **fields)

    def remote(self, url: str, transport: Transport = "http", **fields: Any) -> ServerSpec:
        source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
        return ServerSpec(name="server", transport=transport, source=source, url=url, **fields)

    def pool(self, *specs: ServerSpec, **options: Any) -> Pool:
        options.setdefault("server_settings", with_protocol(self._era))
        return Pool(specs, log_dir=self.log_dir, environ=self.environ, **options)

    def log(self, name: str = "server") -> str:
        return (self.log_dir / f"{name}.log").read_text("utf-8")

    def pids(self) -> list[int]:
        if not self.pid_file.exists():
            return []
        return [int(pid) for pid in self.pid_file.read_text().split()]

    def survivors(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]

    def kill_web(self) -> None:
        if self._web is not None:
            self._web.kill()

    @contextmanager
    def web(self, kind: str, *, port: int = 0, server: str = "toolbox.py") -> Iterator[str]:
        process = subprocess.Popen(
            [sys.executable, str(SERVERS / server), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.environ, "PORT": str(port)},
        )
        with process:
            self._web = process
            try:
                if process.stdout is None:
                    raise AssertionError
                line = process.stdout.readline()
                yield f"http://127.0.0.1:{int(line)}/mcp"
            finally:
                process.kill()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        entry = parse_stat(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return entry is not None and entry.state not in "ZX"


async def wait_file(path: str) -> None:
    await until(lambda: Path(path).exists() and Path(path).stat().st_size > 0)


async def wait_dead(pid: int) -> None:
    await until(lambda: not is_alive(pid))
