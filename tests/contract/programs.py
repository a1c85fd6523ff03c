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


def spec(program: str, *, limits: Limits | None = None) -> LaunchSpec:
    return LaunchSpec(
        run_id="contract",
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


@asynccontextmanager
async def ready(rig: Rig, program: str = FOREVER) -> AsyncIterator[Sandbox]:
    async with rig.backend.launch(spec(program)) as sandbox:
        assert await read_exactly(sandbox, 6) == b"ready\n"
        yield sandbox


async def echoes(backend: ContainerBackend) -> Sandbox:
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


STANDARD_LIBRARY = """
import asyncio, bz2, concurrent.futures, ctypes, decimal, lzma, mmap, multiprocessing, os, pathlib
import shutil, socket, sqlite3, ssl, subprocess, sys, tempfile, threading, uuid
from multiprocessing import shared_memory

said = subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True)
assert said.stdout == "7\\n", said
fork = multiprocessing.get_context("fork")
assert fork.Pool(2).map(abs, [-1, 2]) == [1, 2]
with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
    assert list(pool.map(abs, [-3])) == [3]
threads = [threading.Thread(target=uuid.uuid4) for _ in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
memory = shared_memory.SharedMemory(create=True, size=1000)
memory.close()
memory.unlink()
mmap.mmap(-1, 4096).close()
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(8)", stdout=-1)
    return (await process.communicate())[0]
assert await child() == b"8\\n"
with tempfile.TemporaryFile() as file:
    file.write(b"x")
assert sqlite3.connect("/workspace/x.db").execute("select 1").fetchall() == [(1,)]
pathlib.Path("/workspace/a").write_text("x")
shutil.move(shutil.copy("/workspace/a", "/tmp/b"), "/workspace/c")
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: number + 1)
assert callback(1) == 2
socket.socketpair()
sorted(os.listdir("/workspace"))
"""
"""What ordinary programs need of a system, for a whole run of `run_python`: it must work under
every filter."""
