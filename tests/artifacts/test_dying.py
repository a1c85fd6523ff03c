"""A bridge may be killed at any moment, several may use one store, and the disk may be full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]

FULL = """
import sys
from pathlib import Path
from bridge.artifacts.store import RunArtifacts
from bridge.errors import ArtifactStoreError
from tests.artifacts.rig import RUN, check, contents, entries, store

root = Path(sys.argv[1]) / "store"
kept = store(root, total=10**8, run=10**8)
old = RunArtifacts(kept, "me", RUN).add("old", b"old" * 1000)
try:
    RunArtifacts(kept, "me", RUN).add("large", b"l" * 3_000_000)
except ArtifactStoreError as error:
    print(error.code, error.message, error.remedy)
# Also if the disk has room for the content, and none for its entry.
filler = root.parent / "filler"
with filler.open("wb", buffering=0) as file, RunArtifacts(kept, "me", RUN).writer("new") as writer:
    writer.write(b"n" * 1000)
    try:
        while True:
            file.write(b"f" * 4096)
    except OSError:
        pass
    try:
        writer.finish()
    except ArtifactStoreError as error:
        print(error.message)
assert kept.find_all("me") == (old,)
assert contents(root) == entries(root) == {old.digest}
assert kept.read("me", old.uri) == b"old" * 1000
filler.unlink()
check(root)
RunArtifacts(kept, "me", RUN).add("small", b"s" * 500_000)
check(root)
print(len(kept.find_all("me")))
"""


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_bridge_that_is_killed_at_any_step_leaves_nothing_half_written(tmp_path: Path) -> None:
    steps = json.loads(_run(sys.executable, str(HERE / "dying.py"), str(tmp_path)))
    assert steps.keys() == {"first", "evicting", "removing", "tidying"}
    # It was killed in the middle, indeed, and not only before and after.
    assert min(steps.values()) > 3
    assert steps["first"] > 15


def test_on_a_full_disk_nothing_is_lost_and_the_error_says_so(tmp_path: Path) -> None:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    mounts = ("--dev-bind", "/", "/", "--size", "1000000", "--tmpfs", str(tmp_path))
    told = _run(bwrap, *mounts, "--", sys.executable, "-c", FULL, str(tmp_path)).splitlines()
    message = "No artifact can be stored: the disk is full."
    assert told[0].startswith(f"artifact_store {message}")
    assert "artifacts rm" in told[0]
    assert told[1:] == [message, "2"]
