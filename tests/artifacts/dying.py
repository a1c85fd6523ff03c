"""Kills a bridge at each step of a change to a store, and checks the store each time.

A program of its own, since it forks: `dying.py DIRECTORY` prints the number of steps of each way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, event

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.store.schema import databases
from tests.artifacts.rig import OTHER_RUN, RUN, check, store

STEPS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "fcntl.flock", "os.chmod")
"""Audit events of changes to files. A statement to the database is a step too."""

OLD, SAME = b"old" * 1000, b"same" * 1000


def _first(kept: ArtifactStore) -> None:
    with RunArtifacts(kept, "me", RUN).writer("new") as writer:
        writer.write(b"half")
        writer.write(b"whole")
        writer.finish()


WAYS: dict[str, tuple[Callable[[ArtifactStore], object], int]] = {
    "first": (_first, 100_000),
    "evicting": (lambda kept: RunArtifacts(kept, "me", RUN).add("large", b"l" * 5500), 10_000),
    "removing": (lambda kept: kept.remove("me", kept.find_all("me", OTHER_RUN)[0].uri), 100_000),
    "tidying": (lambda kept: kept.tidy(), 5_000),
}


def _prepare(root: Path) -> set[str]:
    kept = store(root, total=100_000)
    run = RunArtifacts(kept, "me", OTHER_RUN)
    made = [run.add("old", OLD), run.add("same", SAME)]
    RunArtifacts(kept, "you", OTHER_RUN).add("yours", SAME)
    databases.forget()
    return {artifact.uri for artifact in made}


def _die_at(number: int, root: Path, way: Callable[[ArtifactStore], object], total: int) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = number
    databases.forget(close=False)

    def step(*_: object) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        if name in STEPS:
            step()

    kept = store(root, total=total, run=total)
    sys.addaudithook(hook)
    for said in ("before_cursor_execute", "commit"):
        event.listen(Engine, said, step)
    way(kept)
    os._exit(0)


def _try(directory: Path, name: str) -> int:
    way, total = WAYS[name]
    prepared = directory / name
    before = _prepare(prepared)
    for number in range(1000):
        root = directory / f"{name}-{number}"
        shutil.copytree(prepared, root)
        status = _die_at(number, root, way, total)
        assert status in (0, -signal.SIGKILL), (name, number, status)
        kept = store(root, total=100_000)
        listed = {artifact.uri for artifact in kept.find_all("me")}
        if name == "first":
            # Nothing that was there is lost, and at most one is new.
            assert before <= listed, (name, number)
            assert len(listed) <= len(before) + 1, (name, number)
        check(root)
        again = RunArtifacts(kept, "me", RUN).add("next", b"next")
        assert kept.read("me", again.uri) == b"next"
        check(root)
        if status == 0:
            return number
    raise AssertionError(name)


if __name__ == "__main__":
    print(json.dumps({name: _try(Path(sys.argv[1]), name) for name in WAYS}))
