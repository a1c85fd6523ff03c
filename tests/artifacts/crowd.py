"""Several bridges that use one store at once: `crowd.py DIRECTORY`. A program of its own: it forks.

Each keeps, lists, reads and removes, while there is room for a few of them only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bridge.artifacts import ArtifactStore
from bridge.errors import UnknownArtifactError
from bridge.store import Store
from bridge.store.schema import databases
from tests.artifacts.rig import check

BRIDGES = 4
ROUNDS = 40


def _use(root: Path, number: int) -> None:
    kept = ArtifactStore(Store(root), total_bytes=20_000, run_bytes=20_000, days=1, now=time.time)
    for turn in range(ROUNDS):
        # Half of it is what others keep, too.
        data = f"{turn % 7 if turn % 2 else (turn, number)}".encode() * 200
        made = kept.of_run("me", f"run{number}").add(f"{number}-{turn}", data)
        for artifact in (made, *kept.listed("me")[:3]):
            try:
                assert len(kept.read("me", artifact.uri)) == artifact.size
            except UnknownArtifactError:
                # Another one has made room: the entry is gone before its content is.
                assert artifact not in kept.listed("me")
        if turn % 10 == number:
            kept.remove("me", kept.listed("me")[0].uri)
        if turn % 13 == number:
            kept.tidy()


def _child(root: Path, number: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        databases.forget(close=False)
        _use(root, number)
    except UnknownArtifactError:
        # To be removed by two is to be removed.
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    children = [_child(where, number) for number in range(BRIDGES)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    check(where)
    sys.exit(int(any(statuses)))
