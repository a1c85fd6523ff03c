"""The benchmark on the test cluster: a process of its own in the cluster's namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import BenchmarkError
from benchmarks.results import Results, load

REPOSITORY = Path(__file__).parents[1]
RUN = REPOSITORY / "scripts" / "fleet" / "run"
NOT_BUILT = "its programs are not built here; `make bench-fleet` builds them, in four minutes"


def is_inside() -> bool:
    """Tell whether this process is in the namespaces of the cluster."""
    return bool(os.environ.get("MCP_FLEET_DIRECTORY"))


def is_built() -> bool:
    """Tell whether the cluster's programs were built before."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return any(caches.glob("mcp-code-bridge/kubernetes-*/kubelet"))


def measured(directory: Path, *, quick: bool, only: Sequence[str] | None) -> Results:
    """Start the cluster, measure in its namespaces, and return the results.

    Raises:
        BenchmarkError: It cannot be started.
        ResultsError: It ended without results.
    """
    path = directory / "kubernetes.json"
    argv = [str(RUN), sys.executable, "-m", "benchmarks", "--engine", "kubernetes"]
    argv += ["--results", str(path), *(["--quick"] if quick else [])]
    argv += [word for row in only or () for word in ("--only", row)]
    with _copied_errors(argv) as lines:
        last = "it says nothing"
        for last in lines:
            print(f"  {last}", file=sys.stderr, flush=True)
    if not path.exists():
        raise BenchmarkError(last.strip())
    return load(path)


@contextmanager
def _copied_errors(argv: Sequence[str]) -> Iterator[Iterator[str]]:
    """Run a command and give the lines that it writes to stderr."""
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        yield (line.rstrip("\n") for line in process.stderr)
