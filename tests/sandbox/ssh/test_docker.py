"""docker on a host: no service of the bridge's own, and no time limit that docker would keep."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import docker
import pytest

from bridge.sandbox.ssh.backend import SshBackend
from tests.contract.programs import BUSY, read_exactly, spec
from tests.ssh_rig import fleet
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.ssh]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_cut_connection_ends_a_busy_program_on_docker_too(tmp_path: Path) -> None:
    """The host removes what the connection had."""
    with fleet(1, own_storage=False, engine="docker") as hosts:
        url = os.environ["DOCKER_HOST"]
        client = docker.APIClient(base_url=url, version="1.41", timeout=60)
        try:
            async with SshBackend(hosts.settings(tmp_path)) as backend:
                probe = await backend.probe()
                assert probe.ok, probe
                assert probe.details["a"].startswith("docker ")
                with anyio.fail_after(90):
                    async with backend.launch(spec(BUSY)) as sandbox:
                        await read_exactly(sandbox, 6)
                        alone = {"id": sandbox.id}
                        assert client.containers(all=True, filters=alone)
                        hosts.hosts[0].signal_connections(signal.SIGKILL)
                        await until(lambda: not client.containers(all=True, filters=alone))
        finally:
            client.close()
