"""Two hosts, and a backend on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bridge.sandbox.ssh.backend import SshBackend
from tests.ssh_rig import Fleet, fleet
from tests.waiting import until


@pytest.fixture
def hosts() -> Iterator[Fleet]:
    """Two hosts, a and b."""
    with fleet() as made:
        yield made


@pytest.fixture
async def backend(hosts: Fleet, tmp_path: Path) -> AsyncIterator[SshBackend]:
    """A backend on both; at the end nothing of it is left here or there."""
    settings = hosts.settings(tmp_path, slots=2)
    async with SshBackend(settings) as made:
        yield made
    # Where the connection was broken, the host removes them by itself.
    await until(lambda: [host.containers() for host in hosts.hosts] == [[], []])
    assert list((settings.state_dir / "run").glob("ssh-*")) == []
