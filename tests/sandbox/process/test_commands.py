"""What bubblewrap and the stage are told for a command; and what an executable is made of."""

from __future__ import annotations

import json
import marshal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SettingsError
from bridge.model import Limits
from bridge.sandbox import syscalls
from bridge.sandbox.backend import Bind, CommandSpec, Executable, HostFile, LaunchSpec
from bridge.sandbox.process import command
from bridge.sandbox.process.command import Descriptors, ProcessSurroundings
from bridge.sandbox.process.executables import find_executables, shebang
from bridge.sandbox.process.interpreter import Interpreter

INTERPRETER = Interpreter(
    executable="/opt/py/bin/python3",
    version="3.11.2",
    binds=(Bind(source="/opt/py/bin/python3", inside="/opt/py/bin/python3"),),
    links=(),
    hidden=("/opt/py/lib/site-packages",),
)
AROUND = ProcessSurroundings(
    landlock_abi=7, cpus=2, controllers=frozenset({"memory", "pids"}), processes_per_namespace=True
)
DESCRIPTORS = Descriptors(info=10, status=11, files=(12, 13, 14))
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


def _plan(spec: LaunchSpec = SPEC) -> dict[str, Any]:
    return command.stage_plan(spec, INTERPRETER, AROUND, [b"filter"])


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
    plan = _plan()
    limits = {name: (soft, hard) for name, soft, hard in plan["rlimits"]}
    assert limits["RLIMIT_CPU"] == (60, 65)
    assert limits["RLIMIT_FSIZE"] == (1000, 1000)
    assert limits["RLIMIT_NPROC"] == (33, 33)
    assert (plan["argv"], plan["file"], plan["cwd"]) == (
        ["tool", "x"],
        "/opt/t/bin/tool",
        "/workspace/sub",
    )


@pytest.mark.parametrize("abi", [7, 0])
def test_nothing_is_tried_that_would_leave_something_or_is_not_claimed(abi: int) -> None:
    """Executing what is not named would start it, where nothing forbids that."""
    around = replace(AROUND, landlock_abi=abi)
    given = command.stage_input(SPEC, INTERPRETER, around, DESCRIPTORS, (), b"stage", "code")
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
