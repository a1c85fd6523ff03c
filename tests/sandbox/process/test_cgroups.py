"""Control groups: where they can be, whose they are, what is written."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from bridge.background_instance import process_start
from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.ownership import Owner, current_owner
from bridge.sandbox.process.cgroups import (
    CgroupParent,
    SandboxCgroups,
    candidate_parents,
    group_name,
    group_owner,
    make_group,
    missing_controllers,
    oom_kills,
    reap,
    scope_cgroups,
    scope_command,
    settings,
)
from tests.raised import raises_code
from tests.sandbox.golden import is_golden

OWNER = Owner(pid=42, start="12345", namespace="4026531836", boot="0f-1e", host="0123456789abcdef")

HYBRID_OWN = "9:name=systemd:/\n8:pids:/\n4:memory:/some/where\n1:cpu,cpuacct:/\n0::/\n"
HYBRID_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED_OWN = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n"
UNIFIED_MOUNTS = (
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec - cgroup2 cgroup2 rw,nsdelegate\n"
)


def test_version_one_has_a_place_for_each_controller() -> None:
    parents = candidate_parents(HYBRID_OWN, HYBRID_MOUNTS)
    found = {parent.directory: {*parent.controllers} for parent in parents if not parent.unified}
    assert found == {
        "/sys/fs/cgroup/pids": {"pids"},
        "/sys/fs/cgroup/memory/some/where": {"memory"},
        "/sys/fs/cgroup/cpu": {"cpu"},
    }


def test_version_two_is_tried_upwards() -> None:
    found = [place.directory for place in candidate_parents(UNIFIED_OWN, UNIFIED_MOUNTS)]
    root = "/sys/fs/cgroup"
    user = f"{root}/user.slice/user-1000.slice/user@1000.service"
    assert found[:3] == [f"{user}/app.slice/term.scope", f"{user}/app.slice", user]
    assert found[-1] == root


def test_a_group_that_is_mounted_from_further_down_is_found_and_nonsense_is_not() -> None:
    own = "4:memory:/docker/abc/inner\n"
    mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    [inner] = candidate_parents(own, mounts)
    assert inner.directory == "/sys/fs/cgroup/memory/inner"
    assert candidate_parents("", "") == ()
    assert candidate_parents("garbage\n4:memory:/x\n", "garbage\n") == ()


def test_a_name_says_whose_the_group_is() -> None:
    name = group_name(OWNER, "abcd")
    assert group_owner(name) == OWNER
    outside = replace(OWNER, namespace="")
    assert group_owner(group_name(outside, "x")) == outside
    assert len(name) < 255
    for other in ("user.slice", "mcp-code-bridge", "mcp-code-bridge_x_1_2_3_4_5"):
        assert group_owner(other) is None


def test_both_versions_and_systemd_are_told_the_same_limits() -> None:
    limits = Limits(memory_bytes=64 * MEBIBYTE, pids=10, cpus=0.5)
    for unified in (False, True):
        told = [settings(limits, name, unified=unified) for name in ("memory", "pids", "cpu")]
        assert is_golden(f"control groups of version {1 + unified}", told)
    assert settings(Limits(), "cpu", unified=True) == []
    assert is_golden("a scope of systemd's", scope_command("systemd-run", limits, "unit"))
    group = scope_cgroups("0::/user.slice/x.scope\n", UNIFIED_MOUNTS)
    assert group is not None
    assert group.counter == Path("/sys/fs/cgroup/user.slice/x.scope/memory.events")


def test_kills_are_counted_in_both_versions_and_missing_controllers_are_named() -> None:
    assert oom_kills("low 0\nhigh 0\noom 3\noom_kill 2\noom_group_kill 0\n") == 2
    assert oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n") == 1
    assert oom_kills("oom_kill_disable 0\nunder_oom 0\n") is None

    assert missing_controllers(["memory", "pids", "cpu"], root=True) == ""
    assert "cpu" in missing_controllers(["memory", "pids"], root=True)
    assert "delegated" in missing_controllers([], root=False)


def test_a_limit_that_cannot_be_set_leaves_no_group(tmp_path: Path) -> None:
    # An ordinary directory has no `memory.max` to write to.
    parent = CgroupParent(directory=str(tmp_path), controllers=frozenset({"memory"}), unified=True)
    with raises_code("cgroup"):
        make_group((parent,), OWNER, Limits())
    assert list(tmp_path.iterdir()) == []


def test_only_dead_bridges_groups_are_removed(tmp_path: Path) -> None:
    parent = CgroupParent(directory=str(tmp_path), controllers=frozenset({"pids"}), unified=True)
    own = current_owner()
    dead = replace(own, start="1")
    alive = replace(own, pid=os.getppid(), start=process_start(os.getppid()))
    kept = {group_name(own, "own"), group_name(alive, "a"), "stranger"}
    for name in (*kept, group_name(dead, "a"), group_name(dead, "b")):
        (tmp_path / name).mkdir()
    assert reap((parent,), own) == 2
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_process_enters_its_groups_before_it_becomes_the_command_or_does_not(
    tmp_path: Path,
) -> None:
    entries = tmp_path / "tasks", tmp_path / "procs"
    for file in entries:
        file.touch()
    words = [*SandboxCgroups(entries=entries).entry_command(), "/bin/echo", "a  b"]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"a  b\n"
    assert [file.read_text() for file in entries] == ["0\n", "0\n"]
    none = tmp_path / "none" / "tasks"
    words = [*SandboxCgroups(entries=(*entries, none)).entry_command(), "/bin/echo"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (71, b"")
