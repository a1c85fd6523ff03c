"""The guest's own view of its isolation, and its harmless probes of the sandbox."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.guest import isolation_facts
from bridge.guest.isolation_facts import ALLOWED, ATTEMPTS, denials

HOSTS: dict[str, tuple[Mapping[str, str], dict[str, Any], int]] = {
    "unified, own namespace": (
        {
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/memory.max": "536870912\n",
            "/sys/fs/cgroup/pids.max": "128\n",
            "/sys/fs/cgroup/cpu.max": "50000 100000\n",
            "/sys/fs/cgroup/memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n",
        },
        {"memory_limit_bytes": 536870912, "pids_limit": 128, "cpu_limit": 0.5},
        1,
    ),
    "unified, a limit above": (
        {
            "/proc/self/cgroup": "0::/machine/libpod-1/container\n",
            "/sys/fs/cgroup/machine/libpod-1/container/memory.max": "max\n",
            "/sys/fs/cgroup/machine/libpod-1/memory.max": "1000000\n",
            "/sys/fs/cgroup/machine/memory.max": "max\n",
            "/sys/fs/cgroup/machine/libpod-1/container/pids.max": "max\n",
            "/sys/fs/cgroup/machine/libpod-1/container/cpu.max": "max 100000\n",
        },
        {"memory_limit_bytes": 1000000, "pids_limit": None, "cpu_limit": None},
        0,
    ),
    "legacy, the host's paths": (
        {
            "/proc/self/cgroup": "9:pids:/docker/1\n4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n",
            "/sys/fs/cgroup/pids/pids.max": "64\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 3\n",
        },
        {"memory_limit_bytes": 134217728, "pids_limit": 64, "cpu_limit": None},
        3,
    ),
    "legacy, unlimited": (
        {
            "/proc/self/cgroup": "4:memory:/\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        {"memory_limit_bytes": None},
        0,
    ),
    "no files": ({}, {}, 0),
    "nonsense": ({"/proc/self/cgroup": "nonsense\n::::\n"}, {}, 0),
}


@pytest.mark.parametrize(("files", "limits", "kills"), HOSTS.values(), ids=HOSTS)
def test_limits_are_found_wherever_the_system_keeps_them(
    files: Mapping[str, str], limits: dict[str, Any], kills: int
) -> None:
    def read(path: str) -> str:
        return files.get(path, "")

    assert isolation_facts.cgroup_limits(read) == limits
    assert isolation_facts.oom_kills(read) == kills


NET_DEV = """Inter-|   Receive                |  Transmit
 face |bytes    packets errs drop |bytes    packets errs drop
    lo:       0       0    0    0        0       0    0    0
eth0:12345 1 0 0 99 1 0 0
"""


def refuse() -> list[tuple[int, str]]:
    raise PermissionError


@pytest.mark.parametrize(
    ("text", "listed", "names"),
    [
        (NET_DEV, refuse, ["eth0", "lo"]),
        ("", lambda: [(2, "eth0"), (1, "lo")], ["eth0", "lo"]),
        ("", refuse, None),
    ],
)
def test_interfaces_come_from_a_file_or_from_netlink(
    text: str, listed: Any, names: list[str] | None
) -> None:
    assert isolation_facts.interfaces(lambda _: text, listed) == names


def test_the_number_of_seccomp_filters_is_told_where_the_kernel_tells_it() -> None:
    text = "Name:\tpython3\nSeccomp:\t2\nSeccomp_filters:\t3\n"
    assert isolation_facts.status_facts(text) == {"seccomp": 2, "seccomp_filters": 3}
    assert isolation_facts.status_facts("Seccomp:\t0\n") == {"seccomp": 0}


def test_what_engines_hide_is_hidden_behind_nothing(tmp_path: Path) -> None:
    empty, full, file = tmp_path / "empty", tmp_path / "full", tmp_path / "full/kcore"
    empty.mkdir()
    full.mkdir()
    file.write_text("secret")
    hidden = (str(empty), "/dev/null", str(tmp_path / "absent"))
    masked = {"unmasked": [], "settings_read_only": False}
    assert isolation_facts.masks(hidden, str(tmp_path)) == masked
    paths = (*hidden, str(full), str(file))
    assert isolation_facts.masks(paths, str(tmp_path / "absent")) == {"unmasked": [*paths[3:]]}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")
def test_facts_of_this_process_are_plain_data() -> None:
    assert isolation_facts.namespaces()["ipc"].startswith("ipc:[")
    facts = isolation_facts.isolation_facts()
    assert facts["boot_id"]
    assert isinstance(facts["root_read_only"], bool)
    assert facts["interfaces"] == sorted(facts["interfaces"])


GVISOR_MOUNTS = """8 8 0:8 / / ro  - 9p none ro,trans=fd
9 8 0:9 / /tmp rw,noexec  - tmpfs none rw,mode=1777,size=67108864
10 8 0:10 / /workspace rw  - tmpfs none rw
11 8 0:11 / /workspace ro,noexec,nosuid,nodev  - tmpfs none rw
12 8 0:12 / /odd\\040name rw  - tmpfs none ro
"""
"""gVisor's own layout: no optional fields, and a space more than Linux writes."""


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/", {"ro"}),
        ("/tmp", {"rw", "noexec"}),
        ("/workspace", {"ro", "noexec", "nosuid", "nodev"}),
        ("/elsewhere", set()),
    ],
)
def test_a_mount_has_the_options_of_what_was_mounted_last(path: str, options: set[str]) -> None:
    assert isolation_facts.mount_options(path, lambda _: GVISOR_MOUNTS) == options


def traces() -> object:
    return (
        os.getresuid(),
        os.getgroups(),
        sorted(Path("/dev/fd").iterdir()),
        sorted(Path("/tmp").glob(".denied*")),
        sorted(Path("/").iterdir()),
    )


def test_attempts_leave_nothing_behind() -> None:
    before = traces()
    found = denials()
    assert traces() == before
    assert set(found) <= set(ATTEMPTS)
    assert set(found.values()) <= {ALLOWED, *errno.errorcode.values()}


def test_without_a_sandbox_attempts_are_let_through() -> None:
    found = denials()
    assert found["no-network"] in (ALLOWED, "ENETUNREACH")
    assert found["own-seccomp"] == ALLOWED
    assert found["landlock"] == ALLOWED
    if os.getuid() == 0:
        assert found["no-capabilities"] == found["unprivileged-user"] == ALLOWED
        assert found["read-only-root"] == ALLOWED


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (OSError(errno.EROFS, "read-only"), "EROFS"),
        (OSError(12345, "unheard of"), "12345"),
        (AttributeError("memfd_create"), None),
        (OSError("no number"), None),
    ],
)
def test_an_answer_is_an_errors_name_or_left_out(error: Exception, answer: str | None) -> None:
    def attempt() -> None:
        raise error

    found = denials({"layer": attempt})
    assert found == ({} if answer is None else {"layer": answer})


FORMER_ROOT = """
import os
from bridge.guest.isolation_facts import unprivileged_user
os.setresuid(65534, 65534, 0)
unprivileged_user()
print(*os.getresuid())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave itself a way back")
def test_who_can_become_root_does_not_stay_it() -> None:
    argv = [sys.executable, "-c", FORMER_ROOT]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert said.stdout == "65534 65534 0\n"
