"""An engine on the cluster, for the attacks that every other backend meets in tests/security."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from scripts.fleet.cluster import Cluster
from tests.fleet.engine import engine_on
from tests.fleet.rig import settings_in
from tests.security.conftest import host
from tests.security.rig import MEMORY, PIDS, Arena, arena_on

__all__ = ["host"]


@pytest.fixture(scope="module")
async def arena(
    cluster: Cluster,
    kubeconfig: Path,
    host: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Arena]:
    home = tmp_path_factory.mktemp("kubernetes")
    settings = settings_in(home, kubeconfig, warm=1, memory=f"{MEMORY}m", pids=str(PIDS))
    listed = engine_on(cluster, kubeconfig).ours
    async with arena_on("kubernetes", settings, home, listed=listed) as made:
        yield made
