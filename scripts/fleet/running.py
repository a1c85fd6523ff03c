"""The test cluster as a context, on what `scripts/fleet/run` has prepared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.fleet.cluster import PAUSE_IMAGE, Cluster
from scripts.fleet.images import configuration, write_archive, write_single_file_archive
from scripts.image import ROOT, changes, image_key

KEPT_LOGS = ROOT / ".state" / "fleet-logs"
RUNTIME_IMAGE = "localhost/mcp-code-bridge-runtime:slim"


def prepared(name: str) -> Path:
    """Return the path that `scripts/fleet/run` gives in an environment variable.

    Raises:
        RuntimeError: It is not set.
    """
    value = os.environ.get(name)
    if not value:
        message = f"{name} is not set; the cluster runs inside of scripts/fleet/run"
        raise RuntimeError(message)
    return Path(value)


@contextmanager
def running_cluster(*, nodes: int = 2) -> Iterator[Cluster]:
    """Start a cluster that has the runtime image on each node, and end it."""
    directory = prepared("MCP_FLEET_DIRECTORY")
    programs = prepared("MCP_FLEET_PROGRAMS")
    images = directory / "images"
    images.mkdir(exist_ok=True)
    runtime, pause = images / "runtime.tar", images / "pause.tar"
    instructions = changes("slim", image_key("slim"))
    rootfs = (prepared("MCP_FLEET_ROOTFS"),)
    write_archive(runtime, RUNTIME_IMAGE, rootfs, configuration(instructions))
    write_single_file_archive(pause, PAUSE_IMAGE, programs / "pause")
    cluster = Cluster(programs, directory / "cluster", nodes=nodes)
    try:
        cluster.start((pause, runtime))
        yield cluster
    finally:
        cluster.stop()
        # The log of the servers outlives the namespaces and explains failures.
        shutil.rmtree(KEPT_LOGS, ignore_errors=True)
        shutil.copytree(cluster.logs, KEPT_LOGS)
