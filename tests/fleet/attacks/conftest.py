"""An engine on the cluster, for the attacks that every other backend meets in tests/security."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from bridge.settings import Settings, load
from scripts.fleet.cluster import Cluster
from scripts.fleet.running import RUNTIME_IMAGE
from tests.fleet.engine import engine_on
from tests.fleet.rig import NAMESPACE
from tests.security.rig import CANARY, MEMORY, PIDS, Arena, arena_on
from tests.security.targets import planted

CONFIG = f"""
runtime = "kubernetes"
[kubernetes]
namespace = "{NAMESPACE}"
image = "{RUNTIME_IMAGE}"
pull_policy = "Never"
"""


def settings_in(home: Path, kubeconfig: Path) -> Settings:
    """Return the settings of a bridge that runs programs on the cluster."""
    config = home / "config.toml"
    config.write_text(CONFIG)
    environ = {
        **os.environ,
        "CANARY_TOKEN": CANARY,
        "HOME": str(home),
        "KUBECONFIG": str(kubeconfig),
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
    }
    return load({"warm": "1", "memory": f"{MEMORY}m", "pids": str(PIDS)}, environ)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, object]]:
    """Plant what a sandbox may not reach: the nodes are this machine."""
    with planted(tmp_path_factory.mktemp("host")) as found:
        yield found


@pytest.fixture(scope="module")
async def arena(
    cluster: Cluster,
    kubeconfig: Path,
    host: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Arena]:
    """Give an engine on the cluster, open for all of a module's tests."""
    home = tmp_path_factory.mktemp("kubernetes")
    listed = engine_on(cluster, kubeconfig).ours
    async with arena_on("kubernetes", settings_in(home, kubeconfig), home, listed=listed) as made:
        yield made
