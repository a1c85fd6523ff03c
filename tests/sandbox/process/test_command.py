"""What bubblewrap and the stage are told, whole."""

from __future__ import annotations

import json
import marshal

from bridge.model import Limits
from bridge.sandbox.backend import Bind, LaunchSpec
from bridge.sandbox.process.command import Descriptors, ProcessSurroundings, SandboxLayout
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
    assert is_golden("bubblewrap", SandboxLayout(SPEC, INTERPRETER, FULL).options(DESCRIPTORS))
    full = SandboxLayout(SPEC, INTERPRETER, FULL).isolation()
    assert is_golden("bubblewrap's layers", [full.backend, sorted(full.layers), full.weaker])


def test_the_stage_runs_first_and_has_the_program_in_its_plan() -> None:
    given = SandboxLayout(SPEC, INTERPRETER, FULL).stage_input(
        DESCRIPTORS, (b"12345678",), b"stage"
    )
    stage, text = marshal.loads(given)
    assert stage == b"stage"
    assert is_golden("the stage's plan", json.loads(text))


def test_what_is_lacking_changes_the_plan_and_is_called_weaker() -> None:
    assert is_golden(
        "the stage's plan with nothing", SandboxLayout(SPEC, INTERPRETER, BARE).stage_plan(())
    )
    bare = SandboxLayout(SPEC, INTERPRETER, BARE).isolation()
    lacking = [text.partition(":")[0] for text in bare.weaker]
    assert is_golden("layers with nothing", [sorted(bare.layers), lacking])
    assert "no groups here" in str(bare.weaker)


def test_another_command_is_executed() -> None:
    spec = LaunchSpec(run_id="r", argv=("python3", "-c", "1"), env={"PWD": "/"}, limits=Limits())
    plan = SandboxLayout(spec, INTERPRETER, FULL).stage_plan(())
    assert (plan["text"], plan["argv"], plan["unset"]) == (None, ["python3", "-c", "1"], [])


def test_old_kernels_count_processes_per_user() -> None:
    assert all(map(counts_processes_per_namespace, ("6.18.44-x", "5.14.0")))
    assert not any(map(counts_processes_per_namespace, ("5.13.9", "4.19.0", "odd")))
