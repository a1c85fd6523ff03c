"""Start the test cluster, run a command with its KUBECONFIG, end it.

scripts/fleet/run .venv/bin/python -m scripts.fleet [COMMAND [ARGUMENT...]]

Without a command: a shell.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from scripts.fleet.running import prepared, running_cluster


def main() -> int:
    """Run the command line described in the module's docstring."""
    begun = time.monotonic()
    with running_cluster() as cluster:
        nodes = ", ".join(cluster.ready_nodes())
        print(f"fleet: ready in {time.monotonic() - begun:.1f} s: {nodes}", file=sys.stderr)
        path = f"{prepared('MCP_FLEET_PROGRAMS')}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.admin)}
        return subprocess.run(sys.argv[1:] or ["bash"], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
