"""podman's service brought by the bridge, and the OCI runtimes it is started with."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from tests.contract.programs import ECHO, echoes, on, spec
from tests.contract.rig import EngineSet, extend_configuration, own_service
from tests.processes import processes
from tests.raised import raises_code
from tests.sandbox.process.rig import read_all

pytestmark = pytest.mark.podman

CLEANING_SECONDS = 18
"""Less than podman's patience with its own cleaning up, which is 20 seconds."""


# The SDK forgets to close a socket that could not connect, and Python says so when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_service_that_dies_is_started_again(engines: EngineSet, tmp_path: Path) -> None:
    engine = own_service(engines.get("podman"))
    async with on(engine, tmp_path) as backend:
        await echoes(backend)
        async with backend.launch(spec(ECHO)) as sandbox:
            for pid in processes(f"unix://{tmp_path}/podman-"):
                os.kill(pid, signal.SIGKILL)
            with suppress(BridgeError):
                await read_all(sandbox)
        await echoes(backend)
    assert engine.ours() == []
    gc.collect()


async def test_a_kill_does_not_wait_for_podmans_cleaning_up(
    engines: EngineSet, tmp_path: Path
) -> None:
    given = tmp_path / "containers.conf"
    conf = extend_configuration("CONTAINERS_CONF", given)
    engine = own_service(engines.get("podman"), CONTAINERS_CONF=conf)
    async with on(engine, tmp_path) as backend:
        await echoes(backend)
        async with backend.launch(spec(ECHO)) as sandbox:
            given.unlink()
            with anyio.fail_after(CLEANING_SECONDS):
                await sandbox.kill()
                assert (await sandbox.wait()).signal == signal.SIGKILL
    assert engine.ours() == []


async def test_a_named_oci_runtime_is_used_or_refused(engines: EngineSet, tmp_path: Path) -> None:
    engine = own_service(engines.get("podman"))
    async with on(engine, tmp_path, oci_runtime="runc") as backend:
        assert (await echoes(backend)).isolation.oci_runtime == "runc"
    async with on(engine, tmp_path, oci_runtime="no-such-runtime") as backend:
        with raises_code("oci_runtime_broken", match="no-such-runtime"):
            await echoes(backend)
        assert (await backend.probe()).error_code == "oci_runtime_broken"
    named = engines.get("podman")
    async with on(named, tmp_path, oci_runtime="runsc") as backend:
        with raises_code("oci_runtime_broken", match="runsc"):
            await echoes(backend)


async def test_a_default_runtime_that_does_not_work_is_explained(
    engines: EngineSet, tmp_path: Path
) -> None:
    # A crun that refuses the host's cgroups.
    broken = tmp_path / "crun"
    broken.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version*) echo "crun version 1.8.1"; exit 0;; esac\n'
        'echo "cgroups in hybrid mode not supported, drop all controllers from cgroupv2" >&2\n'
        "exit 1\n"
    )
    broken.chmod(0o755)
    conf = tmp_path / "containers.conf"
    conf.write_text(
        '[engine]\nruntime = "crun"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        f'[engine.runtimes]\ncrun = ["{broken}"]\n'
    )
    engine = own_service(engines.get("podman"), CONTAINERS_CONF=str(conf))
    async with on(engine, tmp_path / "run") as backend:
        with raises_code("cgroup") as caught:
            await echoes(backend)
    assert "MCP_BRIDGE_OCI_RUNTIME=runc" in caught.value.remedy
    async with on(engine, tmp_path / "run", oci_runtime="runc") as backend:
        assert (await echoes(backend)).isolation.oci_runtime == "runc"
    assert engine.ours() == []


class CountingRunner(SystemRunner):
    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env=env)
        self.told: list[Sequence[str]] = []

    async def __call__(self, argv: Sequence[str], **options: Any) -> CompletedCommand:
        self.told.append(tuple(argv))
        return await super().__call__(argv, **options)


async def test_a_run_on_podman_starts_no_podman_command(engines: EngineSet, tmp_path: Path) -> None:
    engine = engines.get("podman")
    # Without the tests' own service, so that the bridge starts one as it does for a user.
    environ = {name: text for name, text in engine.environ.items() if name != "CONTAINER_HOST"}
    runner = CountingRunner(environ)
    backend = ContainerBackend(
        "podman", image=engine.image, runtime_dir=tmp_path / "run", environ=environ, run=runner
    )
    told: list[int] = []
    async with backend:
        for _ in range(3):
            async with backend.launch(spec("pass")) as sandbox:
                assert (await sandbox.wait()).exit_code == 0
            told.append(len(runner.told))
    assert len(set(told)) == 1, runner.told
    assert not [argv for argv in runner.told if "machine" in argv]
