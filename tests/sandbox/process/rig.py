"""Programs run in real sandboxes of the process backend, and their controls outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from bridge.model import Limits
from bridge.sandbox.backend import Backend, ExitReport, LaunchSpec, Sandbox
from tests.processes import processes
from tests.waiting import until

ROOT = Path(__file__).parents[3]

LOOKS = 6000
LOOK_SECONDS = 0.01
"""How often and how closely control groups are looked for that are being removed."""

PATIENCE = 120.0
"""For one test, on a machine that does other things too."""

READY = "import os, sys, time\nos.write(1, b'ready\\n')\n"
FOREVER = READY + "while True: time.sleep(3600)\n"

DAEMON = (
    "import os, subprocess, sys\n"
    "if not os.fork():\n"
    "    os.setsid()\n"
    "    if not os.fork():\n"
    "        sleep = 'import time; time.sleep(3600)'\n"
    "        os.execv(sys.executable, [sys.executable, '-c', sleep, {mark!r}])\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "os.write(1, b'ready\\n')\n"
)


BRIDGE = """
import os, sys, anyio
from tests.sandbox.process.rig import DAEMON, FOREVER, spec, wait_ready
{imports}
async def main():
    async with {backend} as backend:
        async with backend.launch(spec({program})) as sandbox:
            await wait_ready(sandbox)
            print(sandbox.id, flush=True)
            await anyio.sleep_forever()
anyio.run(main)
"""


async def kill_bridge(code: str, word: str, directory: Path, mark: str = "") -> int:
    """Kill a bridge that runs a program; return its id once the program's processes are gone."""
    environ = {**os.environ, "TMPDIR": str(directory)}
    argv = [sys.executable, "-c", code, word]
    async with await anyio.open_process(argv, stderr=None, cwd=ROOT, env=environ) as bridge:
        assert bridge.stdout is not None
        child = int(await bridge.stdout.receive())
        await until(lambda: not mark or bool(processes(mark)))
        bridge.kill()
        await bridge.wait()
        await until(lambda: not exists(child) and not (mark and processes(mark)))
    return bridge.pid


def json_by(become: list[str], python: list[str], code: str, environ: dict[str, str]) -> Any:
    done = subprocess.run(
        [*become, *python, "-c", code],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@dataclass(frozen=True, kw_only=True)
class Ran:
    out: str
    err: str
    report: ExitReport


def spec(
    program: str, *, limits: Limits | None = None, env: dict[str, str] | None = None
) -> LaunchSpec:
    return LaunchSpec(
        run_id="test",
        argv=("python3", "-I", "-S", "-c", program),
        env=env or {},
        limits=limits or Limits(),
    )


async def run(backend: Backend, program: str, *, limits: Limits | None = None) -> Ran:
    with anyio.fail_after(PATIENCE):
        async with backend.launch(spec(program, limits=limits)) as sandbox:
            out = await read_all(sandbox)
            report = await sandbox.wait()
            return Ran(out=out.decode(), err=sandbox.diagnostics(), report=report)


async def read_all(sandbox: Sandbox) -> bytes:
    parts = []
    while data := await sandbox.receive():
        parts.append(data)
    return b"".join(parts)


async def wait_ready(sandbox: Sandbox) -> None:
    heard = b""
    while not heard.endswith(b"ready\n"):
        data = await sandbox.receive()
        assert data, sandbox.diagnostics()
        heard += data


def exists(pid: int) -> bool:
    """Whether there is such a process, other than one that only waits to be collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def groups_of(owner: int) -> list[Path]:
    # One that is just going away may be found, and be gone when it is looked into.
    while True:
        with suppress(FileNotFoundError):
            found = Path("/sys/fs/cgroup").rglob(f"mcp-code-bridge_{owner}_*")
            return [path for path in found if path.is_dir()]


def left_groups(bridge: int | None = None) -> list[Path]:
    owner = os.getpid() if bridge is None else bridge
    for _ in range(LOOKS):
        if not groups_of(owner):
            break
        time.sleep(LOOK_SECONDS)
    return groups_of(owner)


def processes_below() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end while its entry is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found
