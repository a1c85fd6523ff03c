"""What bubblewrap and the stage are told, whole."""

from __future__ import annotations

import json
import marshal

import pytest

from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.backend import Bind, LaunchSpec
from bridge.sandbox.process.command import (
    Descriptors,
    ProcessSurroundings,
    isolation,
    options,
    stage_input,
    stage_plan,
)
from bridge.sandbox.process.host import counts_processes_per_namespace
from bridge.sandbox.process.interpreter import Interpreter
from tests.sandbox.golden import is_golden

INTERPRETER = Interpreter(
    executable="/usr/bin/python3.11",
    version="3.11.2",
    binds=(
        Bind(source="/usr/bin/python3.11", inside="/usr/bin/python3.11"),
        Bind(source="/usr/lib/python3.11", inside="/usr/lib/python3.11"),
        Bind(source="/usr/lib/libz.so.1.2", inside="/usr/lib/libz.so.1"),
    ),
    links=(("/usr/bin/python3.11", "/usr/bin/python3"), ("usr/lib", "/lib")),
    hidden=("/usr/lib/python3.11/site-packages",),
    packages=("/srv/packages",),
)
DESCRIPTORS = Descriptors(info=10, status=11, files=(12, 13))
FULL = ProcessSurroundings(
    landlock_abi=7,
    cpus=2,
    masked=(("/proc/kcore", False), ("/proc/scsi", True)),
    controllers=frozenset({"memory", "pids", "cpu"}),
)
BARE = ProcessSurroundings(
    landlock_abi=0, cpus=2, limits_elsewhere="no groups here", processes_per_namespace=False
)
SPEC = LaunchSpec(
    run_id="r",
    argv=("python3", "-I", "-S", "-c", "print(1)"),
    env={"B": "2", "A": "1"},
    limits=Limits(cpus=1.0),
)


def test_bubblewraps_options_are_these() -> None:
    """A snapshot: each change of it is a change of the isolation, and is to be seen in review."""
    assert is_golden("bubblewrap", options(SPEC, INTERPRETER, FULL, DESCRIPTORS))
    full = isolation(SPEC, FULL)
    assert is_golden("bubblewrap's layers", [full.backend, sorted(full.layers), full.weaker])


def test_the_stage_runs_first_and_knows_what_to_do() -> None:
    """With the program in its plan, since both run in one interpreter."""
    given = stage_input(SPEC, INTERPRETER, FULL, DESCRIPTORS, (b"12345678",), b"stage")
    stage, text = marshal.loads(given)
    plan = json.loads(text)
    assert stage == b"stage"
    assert plan["status"] == 11
    assert plan["text"] == "print(1)"
    assert plan["packages"] == ["/srv/packages"]
    assert plan["unset"] == ["PWD"]
    assert plan["filters"] == ["MTIzNDU2Nzg="]
    assert plan["mounts"] == [
        ["/tmp", f"size={64 * MEBIBYTE},nr_inodes=16384,mode=1777"],
        ["/workspace", f"size={128 * MEBIBYTE},nr_inodes=16384,mode=1777"],
        ["/dev/shm", f"size={16 * MEBIBYTE},nr_inodes=16384,mode=1777"],
    ]


def test_another_command_is_executed() -> None:
    spec = LaunchSpec(run_id="r", argv=("python3", "-c", "1"), env={"PWD": "/"}, limits=Limits())
    plan = stage_plan(spec, INTERPRETER, FULL, ())
    assert (plan["text"], plan["argv"], plan["unset"]) == (None, ["python3", "-c", "1"], [])


def test_no_limit_counts_reserved_addresses_as_memory() -> None:
    limits = {
        around: {
            name: soft for name, soft, _ in stage_plan(SPEC, INTERPRETER, around, ())["rlimits"]
        }
        for around in (FULL, BARE)
    }
    assert not {"RLIMIT_AS", "RLIMIT_DATA"} & limits[FULL].keys()
    assert "RLIMIT_AS" not in limits[BARE]
    assert limits[BARE]["RLIMIT_DATA"] == 3072 * MEBIBYTE
    assert limits[FULL]["RLIMIT_NPROC"] == 128
    assert limits[BARE]["RLIMIT_NPROC"] == 4096
    for found in limits.values():
        assert found["RLIMIT_CORE"] == 0
        assert found["RLIMIT_CPU"] == 70
        assert found["RLIMIT_FSIZE"] == 128 * MEBIBYTE
        assert found["RLIMIT_NOFILE"] == 512


def test_without_landlock_no_rules_are_made() -> None:
    assert stage_plan(SPEC, INTERPRETER, BARE, ())["landlock"] is None
    rules = dict(stage_plan(SPEC, INTERPRETER, FULL, ())["landlock"]["rules"])
    assert "/" not in rules
    assert {"/tmp", "/workspace", "/dev/shm", "/proc", "/etc", "/dev/null"} <= set(rules)


def test_what_is_lacking_is_called_weaker() -> None:
    found = isolation(SPEC, BARE)
    assert not {"landlock", "memory-limit", "pids-limit", "cpu-limit"} & set(found.layers)
    told = "\n".join(found.weaker)
    for word in ("landlock:", "memory limit:", "pids limit:", "cpu limit:", "no groups here"):
        assert word in told


@pytest.mark.parametrize(
    ("release", "counts"),
    [("6.18.44-x", True), ("5.14.0", True), ("5.13.9", False), ("4.19.0", False), ("odd", False)],
)
def test_old_kernels_count_processes_per_user(release: str, counts: bool) -> None:
    assert counts_processes_per_namespace(release) is counts
