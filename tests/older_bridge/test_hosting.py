"""The bridge as a process on somebody's machine: what it starts, shows to programs, and reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio

from bridge.model import RunRequest
from bridge.runs.program import GRACE_SECONDS
from bridge.sandbox.backend import LaunchSpec, Sandbox
from tests.fakes.backend import FakeBackend
from tests.older_bridge.rig import PATIENCE_SECONDS, TESTS, Place, entry, run_on
from tests.sandbox.process.rig import exists
from tests.upstream.rig import SERVERS, wait_dead
from tests.waiting import until, until_exists

SECRETS = ("secret-env", "secret-argument", "secret-header", "secret-place", "secret-outer")

SMALL_CHARS = 20_000
"""Of a command and its environment; the kernel takes 128 KiB."""

STUBBORN = """
import os, signal, subprocess, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"],
                         start_new_session=True)
Path({path!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
print("started")
while True:
    pass
"""


@dataclass
class Tap(FakeBackend):
    """Keeps all that sandboxes are started with and told."""

    heard: bytearray = field(default_factory=bytearray)
    specs: list[LaunchSpec] = field(default_factory=list)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        self.specs.append(spec)
        async with super().launch(spec) as sandbox:
            yield cast("Sandbox", _Tapped(sandbox, self.heard))


class _Tapped:
    def __init__(self, sandbox: Sandbox, heard: bytearray) -> None:
        self._sandbox = sandbox
        self._heard = heard

    async def send(self, data: bytes) -> None:
        self._heard += data
        await self._sandbox.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


class SlowBackend(FakeBackend):
    """Takes longer to start a sandbox than the program in it may run, as with an image to fetch."""

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        await anyio.sleep(1 + GRACE_SECONDS + 0.2)
        async with super().launch(spec) as sandbox:
            yield sandbox


async def test_when_a_timeout_is_reported_the_sandbox_is_gone(place: Place, tmp_path: Path) -> None:
    """With everything in it, though the program hears no signal and its child left the group."""
    backend, path = FakeBackend(), tmp_path / "pids"
    async with place.engine(backend) as engine:
        with anyio.fail_after(PATIENCE_SECONDS):
            request = RunRequest(code=STUBBORN.format(path=str(path)), timeout=1)
            result = await engine.run(request)
        assert (result.status, result.stdout) == ("timeout", "started\n")
        # Its first process has ended; what the bridge held of it goes while the answer is sent.
        assert not any(map(exists, backend.live))
        await until(lambda: not backend.live)
        for pid in path.read_text().split():
            await wait_dead(int(pid))


async def test_when_a_run_is_cancelled_its_sandbox_goes(place: Place, tmp_path: Path) -> None:
    """Long before its time limit, and the bridge goes on."""
    backend, path = FakeBackend(), tmp_path / "pids"
    async with place.engine(backend) as engine:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                code = STUBBORN.format(path=str(path))
                tasks.start_soon(engine.run, RunRequest(code=code, timeout=100))
                await until_exists(path)
                tasks.cancel_scope.cancel()
            await until(lambda: not backend.live)
            first, child = map(int, path.read_text().split())
            await wait_dead(first)
            # Nobody sweeps up behind a local process that is killed: what left its group stays.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        assert (await run_on(engine, "1 + 1")).result == 2


async def test_starting_a_sandbox_does_not_use_up_the_programs_time(place: Place) -> None:
    """An image may have to be fetched; the limit is the program's own."""
    async with place.engine(SlowBackend()) as engine:
        with anyio.fail_after(PATIENCE_SECONDS):
            result = await engine.run(RunRequest(code="print(1)", timeout=1))
    assert (result.status, result.stdout) == ("success", "1\n")


async def test_a_program_is_told_nothing_of_how_its_servers_are_reached(place: Place) -> None:
    """Not their directories, commands, arguments, environment, addresses or files."""
    (place.project / "secret-place").mkdir()
    local = entry(
        SERVERS / "raw.py",
        "secret-argument",
        env={"TOKEN": "secret-env"},
        cwd=str(place.project / "secret-place"),
    )
    remote = {
        "type": "http",
        "url": "http://127.0.0.1:9/secret-place",
        "headers": {"X": "secret-header"},
    }
    place.configure({"local": local, "remote": remote})
    code = """
import json, os
discovered = runtime.discovered_servers()
everything = [
    await runtime.list_servers(), runtime.discovered_servers(detailed=True),
    runtime.describe_server("local"), runtime.describe_server(discovered[-1]),
    runtime.list_loaded_server_metadata(), runtime.capability_summary(),
    await runtime.query_tool_docs("local", detail="full"), await runtime.list_tools("local"),
    await runtime.search_tool_docs("echo", detail="full"), repr(mcp_local), dict(os.environ),
]
len(json.dumps(everything))
"""
    backend = Tap()
    async with place.engine(backend) as engine:
        result = await run_on(engine, code)
    assert result.result > 1000, result.error
    told = bytes(backend.heard).decode("utf-8", "replace") + repr(backend.specs)
    assert '"echo"' in told
    for secret in (*SECRETS, str(place.home), sys.executable, "127.0.0.1"):
        assert secret not in told, secret


async def test_what_is_said_of_tools_is_no_part_of_a_sandboxs_start(place: Place) -> None:
    """Command lines and environments are small and the same for every run."""
    place.configure(
        {"raw": place.raw(), "crowd": entry(Path(__file__).parent / "crowd.py", "many")}
    )
    backend = Tap()
    async with place.engine(backend) as engine:
        for code in ("print(1)", "mcp_crowd, mcp_raw", "mcp_crowd, mcp_raw"):
            await run_on(engine, code)
    first, *others = ((spec.argv, dict(spec.env)) for spec in backend.specs)
    assert others == [first, first]
    assert len(repr(first)) < SMALL_CHARS
    assert b"Number 149." in backend.heard


async def test_nothing_of_a_run_is_there_in_the_next(place: Place) -> None:
    """No file, no module and no name; least of all code that starts by itself."""
    code = """
import builtins, sys, tempfile
from pathlib import Path
for name in ("leftover.py", "sitecustomize.py", "usercustomize.py", "mcp.py", "out/leftover"):
    Path(name).write_text("print('leftover')\\nleftover = 1\\n")
Path.home().exists()
leftover = builtins.leftover = 1
print(sorted(path.name for path in Path(".").iterdir()))
"""
    look = """
from pathlib import Path
print(sorted(path.name for path in Path(".").iterdir()), end=" ")
print(sorted(Path("out").iterdir()), "leftover" in globals())
import leftover
"""
    async with place.engine() as engine:
        assert "leftover.py" in (await run_on(engine, code)).stdout
        result = await run_on(engine, look)
    # `out`, where it may leave files, is there and empty.
    assert result.stdout == "['out'] [] False\n"
    assert "ModuleNotFoundError" in result.error


def test_a_setting_that_does_not_parse_is_a_sentence_and_not_a_crash(place: Place) -> None:
    """It names the variable; importing the package never fails for it."""
    name, value = "MCP_BRIDGE_RUNTIME_IDLE_TIMEOUT", "soon"
    program = "import sys, bridge.server.app; from bridge.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "servers"],
        env=place.environ(PYTHONPATH=str(TESTS.parent), **{name: value}),
        cwd=place.project,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2, done.stderr
    assert name in done.stderr
    assert repr(value) in done.stderr
    assert "Traceback" not in done.stderr
