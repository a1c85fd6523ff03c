"""The engine's own limit: create, start, wait, remove, through its API and nothing of the bridge's.

Owns the podman service that it needs, where podman has none listening.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import docker
from docker.errors import DockerException

from benchmarks.bench import BenchmarkError
from benchmarks.engines import Engine

SERVICE_SECONDS = 30
"""For podman's service to listen, and for one container to be done with."""

POLL_SECONDS = 0.02


@asynccontextmanager
async def api_run(engine: Engine, directory: Path) -> AsyncIterator[Callable[[], object]]:
    """Yield a function that runs `python3 -c 1` in a new container and removes it.

    It may be called from several threads; each has its connection, as each of the bridge's has.

    Raises:
        BenchmarkError: The engine's API cannot be reached.
    """
    async with _address(engine, directory) as address:
        local = threading.local()

        def client() -> docker.APIClient:
            if not hasattr(local, "client"):
                local.client = docker.APIClient(base_url=address, timeout=SERVICE_SECONDS)
            found: docker.APIClient = local.client
            return found

        def run() -> None:
            api = client()
            settings = api.create_host_config(network_mode="none")
            made = api.create_container(engine.image, ["python3", "-c", "1"], host_config=settings)
            api.start(made["Id"])
            api.wait(made["Id"])
            api.remove_container(made["Id"])

        try:
            await anyio.to_thread.run_sync(run)
        except (DockerException, OSError) as error:
            message = f"{engine.name}'s API does not run a container: {error}"
            raise BenchmarkError(message) from error
        yield run


@asynccontextmanager
async def _address(engine: Engine, directory: Path) -> AsyncIterator[str]:
    if engine.name == "docker":
        yield os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        return
    socket = directory / "podman.sock"
    address = f"unix://{socket}"
    with _service(engine.name, address) as service:
        try:
            with anyio.move_on_after(SERVICE_SECONDS):
                # podman has no other way to say that it is ready.
                while not socket.exists() and service.poll() is None:  # noqa: ASYNC110
                    await anyio.sleep(POLL_SECONDS)
            if not socket.exists():
                message = "`podman system service` does not listen; see what it says by hand."
                raise BenchmarkError(message)
            yield address
        finally:
            service.terminate()


def _service(podman: str, address: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [podman, "system", "service", "--time=0", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
