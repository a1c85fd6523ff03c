"""The cluster of this process as the contract suite sees an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.from_thread
import pytest

from bridge.sandbox.backend import Sandbox
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.settings.kubernetes import Kubernetes
from tests.contract.conftest import rig
from tests.contract.rig import Engine, Rig, open_descriptors, rig_on
from tests.fakes.api_server import ApiServer
from tests.sandbox.kubernetes.rig import kubeconfig

__all__ = ["rig"]


@dataclass(frozen=True, kw_only=True)
class ClusterEngine(Engine):
    server: ApiServer = field(repr=False)

    def ours(self) -> list[str]:
        return self.server.pods

    def kill_from_outside(self, sandbox: Sandbox) -> None:
        anyio.from_thread.run_sync(self.server.kill, sandbox.id)

    def remove_from_outside(self, sandbox: Sandbox) -> None:
        anyio.from_thread.run_sync(self.server.remove, sandbox.id)


@dataclass
class OneEngine:
    engine: Engine

    def get(self, name: str) -> Engine:
        return self.engine


@pytest.fixture(scope="session")
def engine() -> str:
    return "kubernetes"


@pytest.fixture(scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OneEngine]:
    async with ApiServer().serving() as server:
        config = kubeconfig(server, tmp_path_factory.mktemp("cluster"))
        open_backend = partial(KubernetesBackend, Kubernetes(kubeconfig=config), environ={})
        made = ClusterEngine(
            name="kubernetes", applies_limits=False, open_backend=open_backend, server=server
        )
        yield OneEngine(made)


@pytest.fixture(scope="module")
async def shared_rig(
    engines: OneEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """Give a backend on the cluster, open for all of a module's tests."""
    before = open_descriptors()
    async with rig_on(engines.get(""), Path(tmp_path_factory.mktemp("rig"))) as made:
        yield made
    assert open_descriptors() <= before + 8, "sockets or pipes were left open"
