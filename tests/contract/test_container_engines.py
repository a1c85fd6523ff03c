"""What only a real engine shows: its own service, its OCI runtimes, its dead peers, its users."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.sandbox.ownership import OWNER_LABEL
from tests.contract.programs import ECHO, echoes, on, spec
from tests.contract.rig import Engine, EngineSet
from tests.raised import raises_code
from tests.waiting import until


async def test_images_are_reached_over_the_same_connection(
    real_engine: str, engines: EngineSet, tmp_path: Path
) -> None:
    engine = engines.get(real_engine)
    async with on(replace(engine, image=""), tmp_path) as backend:
        with raises_code("image_missing"):
            await echoes(backend)
        images = await backend.images()
        assert await images.inspect(engine.image) is not None
        backend.image = engine.image
        await echoes(backend)


DEAD_BRIDGE = """
import os, sys, anyio
from pathlib import Path
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.container.backend import ContainerBackend
async def main():
    engine, image, runtime_dir, program = sys.argv[1:]
    backend = ContainerBackend(
        engine, image=image, runtime_dir=Path(runtime_dir), environ=dict(os.environ)
    )
    argv = ("python3", "-I", "-S", "-c", program)
    spec = LaunchSpec(run_id="dead", argv=argv, env={}, limits=Limits())
    async with backend, backend.launch(spec) as sandbox:
        await sandbox.receive()
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@contextmanager
def dead_bridge(engine: Engine, runtime_dir: Path, program: str) -> Iterator[str]:
    bridge = subprocess.Popen(
        [sys.executable, "-c", DEAD_BRIDGE]
        + [engine.command, engine.image, str(runtime_dir), program],
        env=dict(engine.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bridge.stdout is not None
    with bridge.stdout:
        container = bridge.stdout.readline().strip()
        bridge.kill()
        bridge.wait()
    assert container, "the other bridge did not start a sandbox"
    try:
        yield container
    finally:
        engine.remove_container(container)


def exists(engine: Engine, container: str) -> bool:
    with engine.outside() as client:
        found = client.containers(all=True, filters={"id": container})
    return bool(found)


async def test_a_dead_bridges_sandbox_is_reaped_and_others_are_not(
    real_engine: str, engines: EngineSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.get(real_engine)
    program = "import os\nos.write(1, b'ready')\nwhile True: pass"
    foreign = {"Image": engine.image, "Entrypoint": ["python3"], "Labels": {OWNER_LABEL: "x"}}
    with engine.outside() as client:
        create: Callable[..., dict[str, str]] = client.create_container_from_config
        stranger = create(foreign)["Id"]
        try:
            with dead_bridge(engine, tmp_path / "dead", program) as left:
                assert exists(engine, left)
                async with (
                    on(engine, tmp_path / "run") as backend,
                    backend.launch(spec(ECHO)) as mine,
                ):
                    # Another bridge on the same engine may have done it, or be about to.
                    await backend.reap()
                    await until(lambda: not exists(engine, left))
                    assert exists(engine, stranger)
                    await mine.send(b"alive")
                    assert await mine.receive() == b"alive"
        finally:
            client.remove_container(stranger, force=True)
    # What others left is nothing to bother a program's user with.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
