"""What bubblewrap and the stage are told for a command; and what an executable is made of."""

from __future__ import annotations

import json
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import LaunchError, SandboxError, SettingsError
from bridge.model import Isolation, Limits
from bridge.sandbox import syscalls
from bridge.sandbox.backend import Bind, CommandSpec, Executable, HostFile, LaunchSpec
from bridge.sandbox.process import command, stage
from bridge.sandbox.process.command import unexpected_mounts, verify_command
from bridge.sandbox.process.interpreter import (
    Interpreter,
    compiled_examination,
    find_executables,
    shebang,
)
from bridge.sandbox.process.sandbox import receive_examination
from tests.raised import raises_code
from tests.waiting import PATIENCE_SECONDS

INTERPRETER = Interpreter(
    executable="/opt/py/bin/python3",
    version="3.11.2",
    binds=(Bind(source="/opt/py/bin/python3", inside="/opt/py/bin/python3"),),
    links=(),
    hidden=("/opt/py/lib/site-packages",),
)
AROUND = command.ProcessSurroundings(
    landlock_abi=7, cpus=2, controllers=frozenset({"memory", "pids"}), processes_per_namespace=True
)
DESCRIPTORS = command.Descriptors(info=10, status=11, files=(12, 13, 14))
COMMAND = CommandSpec(
    file="/opt/t/bin/tool",
    cwd="/workspace/sub",
    files=(HostFile(source="/h/.aws/config", inside="/home/sandbox/.aws/config", data=b"x"),),
    writable=("/home/sandbox/.aws/cli",),
    executables=(
        Executable(
            name="tool",
            file="/opt/t/bin/tool",
            executes=("/opt/t/bin/tool", "/lib/loader"),
            needs=("/opt/t/lib",),
            links=(("/opt/t/bin/tool", "/opt/bin/tool"),),
        ),
    ),
    cpu_seconds=60,
    file_bytes=1000,
)
SPEC = LaunchSpec(
    run_id="r",
    argv=("tool", "x"),
    env={"A": "b"},
    limits=Limits(pids=33, open_files=256),
    binds=(
        Bind(source="/srv/ws", inside="/workspace", executable=True),
        Bind(source="/srv/ws/out", inside="/workspace/out", writable=True, executable=True),
    ),
    command=COMMAND,
)


def test_the_filter_for_a_network_refuses_every_other_family() -> None:
    """Whatever the number: the kernel reads the lower half of the register."""
    refusals = [rule for rule in syscalls.NETWORKED_COMMAND if rule.call == "socket"]
    allowed = [
        number
        for number in (*range(1024), 1 << 31, 0xFFFFFFFF, 0xFFFF_0000_0000 | 2)
        if not any(number & rule.mask == rule.value for rule in refusals)
    ]
    assert allowed == [2, 10, 0xFFFF_0000_0000 | 2]


def test_the_stage_is_told_limits_and_what_to_become() -> None:
    plan = command.SandboxLayout(SPEC, INTERPRETER, AROUND).stage_plan([b"filter"])
    for limit in (("CPU", 60, 65), ("FSIZE", 1000, 1000), ("NPROC", 33, 33)):
        assert (f"RLIMIT_{limit[0]}", *limit[1:]) in map(tuple, plan["rlimits"])
    assert (plan["argv"], plan["file"]) == (["tool", "x"], "/opt/t/bin/tool")
    assert plan["cwd"] == "/workspace/sub"


@pytest.mark.parametrize("abi", [7, 0])
def test_nothing_is_tried_that_would_leave_something_or_is_not_claimed(abi: int) -> None:
    around = replace(AROUND, landlock_abi=abi)
    given = command.SandboxLayout(SPEC, INTERPRETER, around).stage_input(
        DESCRIPTORS, (), b"stage", "code"
    )
    wanted = json.loads(marshal.loads(given)[1])["examine"]
    assert "sized-tmpfs-noexec" not in wanted["attempts"]
    assert "no-capabilities" in wanted["attempts"]
    assert wanted["unnamed"] == (INTERPRETER.executable if abi else "")


def test_an_executable_is_found_with_its_interpreter_and_environment(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib").mkdir()
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (environment / "bin" / "python").symlink_to("/usr/bin/env")
    script = environment / "bin" / "tool"
    script.write_text(f"#!{environment}/bin/python -I\n")
    script.chmod(0o755)
    (tmp_path / "tool").symlink_to(script)
    [found] = find_executables(["tool"], str(tmp_path), home="/nowhere", place="p")
    real = str(Path("/usr/bin/env").resolve())
    assert found.file == str(script)
    assert found.executes[:2] == (str(script), real)
    assert {str(environment / "lib"), str(environment / "pyvenv.cfg")} <= set(found.needs)
    assert (real, str(environment / "bin" / "python")) in found.links
    # What holds the home is never shown for it.
    [other] = find_executables(["tool"], str(tmp_path), home=str(tmp_path / "x"), place="p")
    assert str(tmp_path) not in other.needs
    with pytest.raises(SettingsError):
        find_executables(["missing"], str(tmp_path), home="/nowhere", place="p")


def test_what_is_no_script_has_no_interpreter() -> None:
    assert shebang(b"#!/usr/bin/env -S python3 -I\nx") == ["/usr/bin/env", "-S", "python3", "-I"]
    assert shebang(b"\x7fELF") == []
    assert shebang(b"") == []


PLACES = {"/": False, "/usr/lib": False, "/workspace": False, "/workspace/out": True, "/proc": True}
ISOLATION = Isolation(
    backend="bubblewrap",
    layers=("granted-paths-only", "named-executables-only", "sized-tmpfs-noexec", "memory-limit"),
)
FACTS: dict[str, Any] = {
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": False}},
    "mount_table": [["/", True], ["/workspace", True]],
    "denials": {"named-executables-only": "EACCES", "sized-tmpfs-noexec": "allowed"},
}


def test_a_mount_that_was_not_asked_for_or_can_be_written_to_is_a_stray() -> None:
    below = "/usr/lib/mounted\\040here"
    for place in ("/", "/workspace", below):
        assert not unexpected_mounts([[place, True]], PLACES)
    for place in ("/workspace/out", "/workspace/out/below", "/proc/acpi"):
        assert not unexpected_mounts([[place, False]], PLACES)
    for place in ("/", "/workspace", "/workspace/outer", below):
        assert unexpected_mounts([[place, False]], PLACES)
    assert unexpected_mounts([["/srv", True]], PLACES)
    assert unexpected_mounts([], PLACES) is None


def test_what_is_seen_is_verified_and_what_cannot_be_seen_is_not() -> None:
    seen = {**FACTS, "denials": {"named-executables-only": "EACCES"}}
    made = verify_command(ISOLATION, PLACES, seen)
    assert made.layers == ISOLATION.layers
    assert made.verified == ISOLATION.layers[:3]


@pytest.mark.parametrize(
    ("seen", "layer"),
    [
        ({"mount_table": [["/", True], ["/srv", True]]}, "granted-paths-only"),
        ({"mount_table": [["/workspace", False]]}, "granted-paths-only"),
        ({"denials": {"named-executables-only": "allowed"}}, "named-executables-only"),
    ],
)
def test_what_may_not_be_ends_it(seen: Mapping[str, Any], layer: str) -> None:
    with raises_code("isolation_broken", match=layer):
        verify_command(ISOLATION, PLACES, {**FACTS, **seen})


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        os.close(end)


async def test_leave_is_given_after_the_judgement_only(pipes: tuple[int, int, int, int]) -> None:
    status, told, waits, permission = pipes
    os.set_blocking(waits, False)
    os.write(told, json.dumps({"pid": 2}).encode() + b"\nok")

    def judge(facts: Mapping[str, Any]) -> Isolation:
        assert facts == {"pid": 2}
        with pytest.raises(BlockingIOError):
            os.read(waits, 2)
        return ISOLATION

    with anyio.fail_after(PATIENCE_SECONDS):
        assert await receive_examination(status, permission, judge) == (ISOLATION, b"ok")
    assert os.read(waits, 10) == b"go"


@pytest.mark.parametrize("said", [b"no object\n", b"[1]\n", b"x" * 60_000 + b"\n"])
async def test_an_answer_that_is_none_gets_no_leave(
    pipes: tuple[int, int, int, int], said: bytes
) -> None:
    status, told, waits, permission = pipes
    os.set_blocking(waits, False)
    os.write(told, said)

    def refuse(facts: Mapping[str, Any]) -> Isolation:
        raise SandboxError("no", code="isolation_broken")

    with anyio.fail_after(PATIENCE_SECONDS):
        with pytest.raises(LaunchError):
            await receive_examination(status, permission, refuse)
        os.write(told, b"{}\n")
        with raises_code("isolation_broken"):
            await receive_examination(status, permission, refuse)
    with pytest.raises(BlockingIOError):
        os.read(waits, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="there is a mount table")
@pytest.mark.parametrize("answer", [b"go", b"g", b""])
def test_the_stage_continues_with_leave_only(
    pipes: tuple[int, int, int, int], answer: bytes
) -> None:
    status, told, waits, permission = pipes
    wanted = {"code": compiled_examination(sys.executable), "attempts": [], "unnamed": ""}
    os.write(permission, answer)
    os.close(permission)
    os.dup2(status, permission)  # for the fixture to close
    ours = {**wanted, "permission": os.dup(waits)}
    if answer == stage.PERMISSION:
        stage.await_permission(ours, told)
    else:
        with pytest.raises(OSError, match="no permission"):
            stage.await_permission(ours, told)
    facts = json.loads(os.read(status, 1 << 20))
    assert "/" in [place for place, _ in facts["mount_table"]]
    assert facts["denials"] == {}
