"""Programs that the contract suite runs in sandboxes, and how it talks to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Sandbox
from bridge.sandbox.container.backend import ContainerBackend
from tests.contract.rig import Engine, Rig

ECHO = """
import os
while data := os.read(0, 1 << 16):
    while data:
        data = data[os.write(1, data):]
"""

READY_THEN = "import os, sys, time\nos.write(1, b'ready\\n')\n"
FOREVER = READY_THEN + "\nwhile True: time.sleep(3600)\n"
BUSY = READY_THEN + "\nwhile True: pass\n"


def spec(program: str, *, run_id: str = "contract", limits: Limits | None = None) -> LaunchSpec:
    return LaunchSpec(
        run_id=run_id,
        argv=("python3", "-I", "-S", "-c", program),
        env={"GREETING": "hello"},
        limits=limits or Limits(),
    )


async def read_exactly(sandbox: Sandbox, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        data = await sandbox.receive()
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


async def read_all(sandbox: Sandbox) -> bytes:
    parts = []
    while data := await sandbox.receive():
        parts.append(data)
    return b"".join(parts)


@asynccontextmanager
async def ready(rig: Rig, program: str = FOREVER) -> AsyncIterator[Sandbox]:
    """Launch a program and wait until it says that it runs."""
    async with rig.backend.launch(spec(program)) as sandbox:
        assert await read_exactly(sandbox, 6) == b"ready\n"
        yield sandbox


async def echoes(backend: ContainerBackend) -> Sandbox:
    """Launch once and see that it works."""
    async with backend.launch(spec(ECHO)) as sandbox:
        await sandbox.send(b"x")
        assert await sandbox.receive() == b"x"
        return sandbox


@asynccontextmanager
async def on(
    engine: Engine, runtime_dir: Path, *, oci_runtime: str | None = None
) -> AsyncIterator[ContainerBackend]:
    async with ContainerBackend(
        engine.command,
        image=engine.image,
        runtime_dir=runtime_dir,
        environ=engine.environ,
        oci_runtime=oci_runtime,
    ) as backend:
        yield backend
