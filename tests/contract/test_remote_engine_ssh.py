"""Engines behind a real SSH server: how they are named, and what a lost connection does."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import EngineDownError, SettingsError
from bridge.model import HostKernel, RunRequest
from bridge.runs import open_engine
from bridge.sandbox.backend import Bind, CommandSpec
from bridge.sandbox.container import backend as module
from bridge.sandbox.container.backend import ContainerBackend
from bridge.settings import Settings, load
from tests.contract.programs import ECHO, echoes, on, spec
from tests.contract.rig import Engine, EngineSet
from tests.engine_rig import ListFinder, workshop
from tests.processes import processes
from tests.sandbox.process.rig import exists
from tests.ssh_rig import SshServer, ssh_server
from tests.waiting import until, until_exists

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.docker,
    # The SDK forgets sockets that could not connect, until they are collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def server() -> Iterator[SshServer]:
    with ssh_server() as started:
        yield started


@pytest.fixture
def docker(engines: EngineSet) -> Engine:
    return engines.get("docker")


@pytest.fixture
async def far(server: SshServer, docker: Engine, tmp_path: Path) -> AsyncIterator[ContainerBackend]:
    """Give a backend on docker behind the SSH server."""
    environ = {**server.environ, "DOCKER_HOST": address(docker)}
    async with opened(docker, environ, tmp_path) as backend:
        yield backend


def address(engine: Engine) -> str:
    return f"ssh://there{engine.url.removeprefix('unix://')}"


@asynccontextmanager
async def opened(
    engine: Engine, environ: Mapping[str, str], directory: Path
) -> AsyncIterator[ContainerBackend]:
    async with on(replace(engine, environ=environ), directory / "run") as backend:
        yield backend
    assert not list((directory / "run").glob("ssh-*"))


def forwards(directory: Path) -> list[int]:
    return [number for number, line in processes(f" {directory}").items() if " -L " in line]


@pytest.mark.podman
@pytest.mark.parametrize("named", ["by name", "by default"])
async def test_podmans_own_connection_is_forwarded(
    server: SshServer, engines: EngineSet, tmp_path: Path, named: str
) -> None:
    podman = engines.get("podman")
    conf = tmp_path / "containers.conf"
    conf.write_text(
        f"[engine]\nremote = {'true' if named == 'by default' else 'false'}\n"
        'active_service = "far"\n[engine.service_destinations.far]\n'
        f'uri = "{address(podman)}"\nidentity = "{server.directory}/key"\n'
    )
    environ = {**server.environ, "CONTAINERS_CONF": str(conf)}
    if named == "by name":
        environ["CONTAINER_CONNECTION"] = "far"
    async with opened(podman, environ, tmp_path) as backend:
        await echoes(backend)
        assert (await backend.probe()).details["found at"].startswith("podman's connection")


async def test_one_forward_serves_all_and_is_started_again_when_it_ended(
    server: SshServer, far: ContainerBackend, tmp_path: Path
) -> None:
    async with far.launch(spec(ECHO)), far.launch(spec(ECHO)):
        [first] = forwards(tmp_path)
    os.kill(first, signal.SIGKILL)
    await until(lambda: not exists(first))
    await echoes(far)
    [second] = forwards(tmp_path)
    server.cut()
    await until(lambda: not exists(second))
    await echoes(far)
    await far.aclose()
    assert forwards(tmp_path) == []


async def test_a_machine_that_is_off_is_a_problem_until_it_is_back(
    server: SshServer, far: ContainerBackend, tmp_path: Path
) -> None:
    assert await far.problem() == ""
    server.stop()
    await until(lambda: not forwards(tmp_path))
    assert "there cannot be reached over SSH" in await far.problem()
    server.start()
    assert await far.problem() == ""


async def test_a_host_key_that_changed_is_refused(server: SshServer, far: ContainerBackend) -> None:
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(EngineDownError, match=r"another host key.*ssh-keygen -R"):
        await echoes(far)


async def test_what_is_of_this_machine_is_refused(
    far: ContainerBackend, docker: Engine, tmp_path: Path
) -> None:
    await check_refusal(far, docker.image, tmp_path)


async def test_so_it_is_by_an_engine_whose_containers_see_another_boot(
    docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": str(tmp_path), "DOCKER_HOST": docker.url}
    async with opened(docker, environ, tmp_path) as backend:
        bind = Bind(source=str(tmp_path), inside="/data/x")
        async with backend.launch(replace(spec(ECHO), binds=(bind,))):
            pass
    monkeypatch.setattr(module, "this_kernel", lambda: HostKernel(boot_id="another"))
    async with opened(docker, environ, tmp_path) as backend:
        await check_refusal(backend, docker.image, tmp_path)


async def check_refusal(backend: ContainerBackend, image: str, directory: Path) -> None:
    bind = Bind(source=str(directory), inside="/data/x", writable=True)
    command = CommandSpec(cwd="/workspace", cpu_seconds=5, file_bytes=1 << 20, image=image)
    for refusal in ({"binds": (bind,)}, {"command": command}):
        with pytest.raises(SettingsError, match="runs on another machine"):
            async with backend.launch(replace(spec(ECHO), **refusal)):
                pass
    await echoes(backend)


def settings(server: SshServer, engine: Engine, home: Path, **more: str) -> Settings:
    run = home / "r"
    run.mkdir(mode=0o700, exist_ok=True)
    environ = {
        **server.environ,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(run),
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "DOCKER_HOST": address(engine),
    }
    return load({"warm": "0", "image": engine.image, **more}, environ)


async def test_a_lost_connection_ends_the_run_and_what_ran_there(
    server: SshServer, docker: Engine, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    code = (
        "print('so far', flush=True)\n"
        f"await mcp_work_shop.slow(started={str(begun)!r}, cancelled={str(tmp_path / 'c')!r})"
    )
    results = []

    async def run() -> None:
        results.append(await engine.run(RunRequest(code=code, timeout=60)))

    chosen = settings(server, docker, tmp_path, runtime="docker")
    async with open_engine(chosen, finder=ListFinder(workshop())) as engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until_exists(begun)
            begun.unlink()
            server.cut()
        [result] = results
        assert (result.status, result.stdout) == ("error", "so far\n"), result
        assert result.usage.tool_calls == 1
        assert not begun.exists()
        assert (await engine.run(RunRequest(code="40 + 2"))).result == 42
        await until(lambda: docker.ours() == [])
        print(result.summary, result.code, result.reason)
