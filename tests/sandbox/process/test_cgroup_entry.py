"""Processes that begin their life in a control group, since who starts them is in there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.errors import CgroupError
from bridge.model import Limits
from bridge.sandbox.ownership import Owner
from bridge.sandbox.process.cgroups import CgroupParent, CgroupParents, SandboxCgroups, make_group

OWNER = Owner(pid=42, start="1", namespace="1", boot="0f-1e", host="0123456789abcdef")


@pytest.fixture
def launcher() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as made:
        yield made


def hierarchy(path: Path) -> CgroupParents:
    """Lay out two hierarchies of version 1, in which a group has its list of threads at once."""
    places = []
    for name in ("pids", "memory"):
        (path / name).mkdir()
        (path / name / "tasks").write_text("")
        places.append(
            CgroupParent(
                directory=str(path / name),
                controllers=frozenset(),
                unified=False,
                threads_may_enter=True,
            )
        )
    return CgroupParents(parents=tuple(places))


def filled(cgroup_parents: CgroupParents, launcher: ThreadPoolExecutor) -> SandboxCgroups:
    """Make a group there, as the kernel would fill it."""
    group = make_group(cgroup_parents, OWNER, Limits())
    for directory in group.directories:
        (directory / "tasks").write_text("")
    group.launcher = launcher
    return group


def quickly() -> subprocess.Popen[bytes]:
    """Start something that stays until it is ended."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_a_process_is_started_by_a_thread_that_is_in_the_groups(
    tmp_path: Path, launcher: ThreadPoolExecutor
) -> None:
    group = filled(hierarchy(tmp_path), launcher)
    homes = [tmp_path / name / "tasks" for name in ("pids", "memory")]
    seen: list[list[str]] = []

    def start() -> subprocess.Popen[bytes]:
        lists = [*(path / "tasks" for path in group.directories), *homes]
        seen.append([path.read_text() for path in lists])
        return quickly()

    with group.spawn(start) as process:
        process.kill()
    assert seen == [["0", "0", "", ""]]
    assert [home.read_text() for home in homes] == ["0", "0"]
    assert group.unentered == ()


def test_without_a_thread_for_it_processes_are_moved(tmp_path: Path) -> None:
    """And where a thread alone cannot be moved, as in version 2."""
    group = make_group(hierarchy(tmp_path), OWNER, Limits())
    assert group.unentered == group.directories
    for directory in group.directories:
        (directory / "cgroup.procs").write_text("")
    with group.spawn(quickly) as process:
        group.enter(7)
        process.kill()
    for directory in group.directories:
        assert (directory / "cgroup.procs").read_text() == "7"


def test_nothing_is_started_outside_of_a_group_that_cannot_be_entered(
    tmp_path: Path, launcher: ThreadPoolExecutor
) -> None:
    group = filled(hierarchy(tmp_path), launcher)
    (group.directories[1] / "tasks").unlink()
    with pytest.raises(CgroupError, match="Cannot enter"):
        group.spawn(lambda: pytest.fail("started"))
    assert (tmp_path / "pids" / "tasks").read_text() == "0"


def test_what_cannot_be_started_is_told_as_it_is(
    tmp_path: Path, launcher: ThreadPoolExecutor
) -> None:
    group = filled(hierarchy(tmp_path), launcher)
    with pytest.raises(FileNotFoundError):
        group.spawn(lambda: subprocess.Popen(["/not/there"]))
    assert (tmp_path / "memory" / "tasks").read_text() == "0"


def test_a_thread_that_cannot_come_home_ends_what_it_started(
    tmp_path: Path, launcher: ThreadPoolExecutor
) -> None:
    """Nobody would get to know of it."""
    group = filled(hierarchy(tmp_path), launcher)
    (tmp_path / "pids" / "tasks").unlink()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(quickly())
        return started[0]

    with pytest.raises(CgroupError, match="Cannot leave"):
        group.spawn(start)
    with started[0] as process:
        assert process.returncode is not None


def test_the_bridge_itself_is_never_killed_with_a_group(
    tmp_path: Path, launcher: ThreadPoolExecutor
) -> None:
    """Were one of its threads stuck in there, it would stand on the list."""
    group = filled(hierarchy(tmp_path), launcher)
    with quickly() as process:
        for directory in group.directories:
            (directory / "cgroup.procs").write_text(f"{os.getpid()}\n{process.pid}\n")
        # They are ordinary directories, which are not removed with files in them.
        assert not group.remove()
        assert process.wait(60) == -9
