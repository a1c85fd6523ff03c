"""Two bridges on the cluster as one service, with a real PostgreSQL, while one of them is killed.

The same load as tests/e2e/test_replicas.py puts on bubblewrap.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from scripts.fleet.cluster import Cluster
from tests.e2e.test_replicas import killed_under_load
from tests.fleet.engine import backend_on
from tests.fleet.rig import pod_names, settings_in
from tests.postgresql import Server

RUNS = int(os.environ.get("MCP_FLEET_RUNS", "500"))

SECONDS_BETWEEN = 4.0
"""Between one replica's readiness and the death of the next."""

PATIENCE = 1800.0


async def test_five_hundred_runs_that_write_end_once_while_replicas_are_killed(
    cluster: Cluster, kubeconfig: Path, postgresql: Server, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path, kubeconfig)
    names = ("KUBECONFIG", "MCP_BRIDGE_CONFIG")
    environ = {name: settings.environ[name] for name in names}
    with anyio.fail_after(PATIENCE):
        await killed_under_load(
            tmp_path, RUNS, SECONDS_BETWEEN, MCP_BRIDGE_RUNTIME="kubernetes", **environ
        )
        # Those of a replica that was killed last: its lease has to run out.
        async with backend_on(kubeconfig) as backend:
            while pod_names(cluster):
                await backend.reap()
                await anyio.sleep(1)
