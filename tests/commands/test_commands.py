"""`run_command` in bubblewrap: what commands see, what they may do, how pipelines end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from typing import Any

import anyio
import pytest

from bridge.commands.runner import Commands
from bridge.errors import AuditError, InvalidRequestError, LaunchError, SettingsError
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.redaction_shapes import mask
from bridge.model import CommandRequest
from bridge.sandbox.backend import Backend
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from tests.audit_rig import records
from tests.commands.command_rig import (
    CANARY,
    FILE_SECRET,
    ORDINARY_ID,
    SECRET,
    Place,
    listener,
    run,
    run_peek,
)
from tests.contract.rig import ordinary_user, usable_python
from tests.processes import processes
from tests.raised import raises_code
from tests.waiting import until

TOOLS = ["cat", "false", "grep", "head", "sleep", "sort", "tail", "wc", "yes"]


@pytest.mark.guarantee("command-grants")
async def test_a_command_sees_what_its_profile_grants_and_nothing_else(there: Place) -> None:
    aws = there.home / ".aws"
    environ = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1", "PLAIN": "shown"}
    outside: dict[str, list[Any]] = {
        "read": [
            str(there.root / "outside.txt"),
            str(there.home / ".ssh-canary"),
            str(aws / "credentials"),
            str(aws / "other-canary"),
            "leads-out",
            "/etc/shadow" if os.getuid() == 0 else "/etc/passwd",
        ],
        "list": [str(there.root), str(there.home), "/usr/bin", "/etc/ssl"],
        "write": [str(there.root / "made"), "made"],
        "execute": ["/usr/bin/id", "/usr/bin/env"],
        "families": [1, 2, 10, 16],
    }
    inside: dict[str, list[Any]] = {
        "read": ["a.txt", "/home/sandbox/.aws/config"],
        "list": ["/home/sandbox", "/home/sandbox/.aws"],
        "write": ["out/made", "/tmp/made", "/home/sandbox/.aws/cli/made"],
        "families": [1],
    }
    settings = there.settings(
        environ, env=["PLAIN"], write=["out"], credentials={"kind": "aws", "source": "both"}
    )
    with listener() as port:
        asked = {key: [*inside.get(key, []), *items] for key, items in outside.items()}
        readonly = ["/home/sandbox/.aws/config", "/home/sandbox/x", "a.txt", "/usr/lib/x", "/x"]
        asked["write"] += readonly
        seen = await run_peek(settings, {**asked, "connect": port})
        control = there.outside({**outside, "connect": port}, {"CANARY": CANARY})
    _check_denials(outside, seen, control)
    assert not [
        item for key in inside for item in inside[key] if not _did_work(seen[key][str(item)])
    ]
    assert not any(_did_work(seen["write"][path]) for path in readonly)
    assert control["connect"] is True
    assert seen["connect"] is not True
    assert control["env"]["CANARY"] == CANARY
    assert set(seen["env"]) == {
        *("HOME", "LANG", "PATH", "TMPDIR", "TZ", "PLAIN", "MALLOC_ARENA_MAX"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    }
    assert seen["env"]["AWS_SECRET_ACCESS_KEY"] == "[redacted: AWS_SECRET_ACCESS_KEY]"
    assert seen["digests"]["AWS_SECRET_ACCESS_KEY"] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert sorted(seen["list"]["/home/sandbox/.aws"]) == ["cli", "config", "credentials"]
    assert seen["cwd"] == "/workspace"
    assert len(seen["pids"]) <= 4
    assert CANARY not in str(seen)
    made = there.workspace / "out" / "made"
    assert made.stat().st_uid == (ORDINARY_ID if os.getuid() == 0 else os.getuid())


def _check_denials(
    outside: dict[str, list[Any]], seen: dict[str, Any], control: dict[str, Any]
) -> None:
    # A socket of the local family goes nowhere; /etc/passwd is another file inside.
    harmless = (("families", 1), ("read", "/etc/passwd"))
    for key, item in ((key, item) for key, items in outside.items() for item in items):
        assert _did_work(control[key][str(item)]), f"no control: {key} {item}"
        if (key, item) not in harmless:
            assert not _did_work(seen[key][str(item)]), (key, item, seen[key][str(item)])


def _did_work(came: object) -> bool:
    return came is not None and not (isinstance(came, str) and "Error" in came.partition(":")[0])


@pytest.mark.guarantee("command-secrets")
async def test_secrets_do_not_show_wherever_a_command_puts_them(there: Place) -> None:
    settings = there.settings(
        {"TOKEN": SECRET},
        executables=["cat", "sort"],
        secrets=["TOKEN"],
        credentials={"kind": "aws", "source": "files"},
        check_arguments=False,
    )
    async with Commands(settings) as commands:
        path = "/home/sandbox/.aws/credentials"
        result = await run(commands, ["cat", path, "/proc/self/environ", f"/no/{SECRET}"])
    shown = result.stdout + result.stages[0].stderr + str(result.stages) + result.summary
    assert "aws_secret_access_key = [redacted: .aws/credentials]" in result.stdout
    assert "TOKEN=[redacted: TOKEN]" in result.stdout
    assert "/no/[redacted: TOKEN]" in result.stages[0].stderr
    # A profile without `check_arguments` blames no argument.
    assert result.error == result.summary
    assert SECRET not in shown
    assert FILE_SECRET not in shown


@pytest.mark.guarantee("command-executables")
async def test_only_the_executables_named_can_be_executed(there: Place) -> None:
    shutil.copy("/usr/bin/true", there.workspace / "brought")
    asked = {"execute": ["./brought", "/usr/bin/true"]}
    seen = await run_peek(there.settings(), asked)
    named = await run_peek(there.settings(executables=["peek", "true"]), asked)
    assert there.outside(asked, {})["execute"] == {"./brought": True, "/usr/bin/true": True}
    assert "PermissionError" in seen["execute"]["./brought"]
    assert "FileNotFoundError" in seen["execute"]["/usr/bin/true"]
    assert named["execute"]["/usr/bin/true"] is True
    assert "PermissionError" in named["execute"]["./brought"]


@pytest.mark.guarantee("command-sockets")
async def test_a_network_is_the_internet_s_families_only_and_is_told(there: Place) -> None:
    families = [1, 2, 10, 16, 17, 38, 40]
    with listener() as port:
        asked = {"connect": port, "families": families, "names": ["localhost"]}
        async with Commands(there.settings(network=True)) as commands:
            seen = await run_peek(commands, asked)
            result = await run(commands, ["peek"], stdin="{}")
    assert seen["connect"] is True
    assert seen["names"] == {"localhost": True}
    allowed = [int(number) for number, came in seen["families"].items() if came is True]
    assert allowed == [2, 10]
    control = there.outside({"families": [1, 16]}, {})
    assert control["families"] == {"1": True, "16": True}
    assert result.isolation is not None
    assert "no-network" not in result.isolation.layers
    assert any(text.startswith("no network:") for text in result.isolation.weaker)


@pytest.mark.parametrize("argument", ["../outside.txt", "/etc/shadow", "leads-out", "--x=~/y"])
async def test_an_argument_that_leads_out_leads_nowhere_and_is_named(
    there: Place, argument: str
) -> None:
    result = await run(there.settings(executables=["cat"]), ["cat", argument])
    assert CANARY not in result.stdout
    assert (result.exit_code, argument in result.error.split("status 1.")[1]) == (1, True)


async def test_stages_stream_into_each_other_and_an_early_end_is_no_failure(there: Place) -> None:
    async with Commands(there.settings(executables=TOOLS)) as commands:
        result = await run(commands, ["yes"], ["cat"], ["head", "-c", "10"])
    assert (result.status, result.stdout) == ("success", "y\n" * 5)
    assert [stage.signal for stage in result.stages] == [signal.SIGPIPE, signal.SIGPIPE, None]
    assert [stage.cut_short for stage in result.stages] == [True, True, False]
    assert result.isolation is not None
    # Control groups cannot be seen from inside, and a kernel may have no Landlock.
    unseen = set(result.isolation.layers) - set(result.isolation.verified)
    assert unseen <= {"memory-limit", "pids-limit", "cpu-limit"}
    assert {"no-network", "own-seccomp", "granted-paths-only"} <= set(result.isolation.verified)


@pytest.mark.guarantee("command-grants")
async def test_a_command_whose_sandbox_is_seen_to_hold_more_is_never_started(there: Place) -> None:
    stray = there.root / "tools" / "bwrap"
    real = shutil.which("bwrap")
    stray.write_text(f'#!/bin/sh\nexec {real} --ro-bind {there.home} /stray "$@"\n')
    stray.chmod(0o755)

    async def open_runner(settings: Settings, profile: CommandProfile) -> Backend:
        return BubblewrapBackend(environ=settings.environ, bwrap=str(stray))

    settings = there.settings(write=["out"])
    asked = json.dumps({"write": ["out/made"]})
    made = there.workspace / "out" / "made"
    async with Commands(settings, open_runner) as commands:
        with raises_code("isolation_broken", match="granted-paths-only"):
            await run(commands, ["peek"], stdin=asked)
    assert not made.exists()
    await run(settings, ["peek"], stdin=asked)
    assert made.exists()


@pytest.mark.guarantee("command-ends")
async def test_output_without_end_is_bounded_and_counted(there: Place) -> None:
    size = 1_000_000_000
    settings = there.settings(executables=TOOLS, output_bytes=4096, check_arguments=False)
    result = await run(settings, ["head", "-c", str(size), "/dev/zero"])
    assert result.status == "success"
    assert result.truncated == {"stdout": size - 4096}
    assert len(result.stdout) < 5000


async def test_where_commands_may_write_stages_run_in_turn_and_stop_at_a_failure(
    there: Place,
) -> None:
    settings = there.settings(executables=[*TOOLS, "tee"], write=["out"])
    async with Commands(settings) as commands:
        passed = await run(
            commands, ["head", "-c", "300000", "/dev/zero"], ["tee", "out/a"], ["wc", "-c"]
        )
        failed = await run(commands, ["cat", "missing.txt"], ["tee", "out/b"], ["cat"])
        with pytest.raises(InvalidRequestError, match="Stage 1 wrote more than 67,108,864 bytes"):
            await run(commands, ["yes"], ["tee", "out/c"])
    assert (passed.status, passed.stdout.strip()) == ("success", "300000")
    assert "stage 1 of 3 (`cat missing.txt`) exited with status 1" in failed.summary
    assert [stage.not_started for stage in failed.stages] == [False, True, True]
    assert [path.name for path in (there.workspace / "out").iterdir()] == ["a"]


async def test_a_call_sets_the_variables_that_its_profile_lists_and_no_others(there: Place) -> None:
    settings = there.settings({"TONE": "low"}, env=["TONE"], call_env=["TONE", "KEY"])
    async with Commands(settings) as commands:
        result = await run(commands, ["peek"], stdin="{}", env={"TONE": "high"})
        with pytest.raises(InvalidRequestError, match="may not set 'PATH'.*allows TONE, KEY"):
            await run(commands, ["peek"], env={"PATH": "/"})
    seen = json.loads(result.stdout)["env"]
    assert (seen["TONE"], "KEY" in seen) == ("high", False)


@pytest.mark.slow
@pytest.mark.guarantee("command-ends")
async def test_one_deadline_ends_all_stages_and_leaves_nothing(there: Place) -> None:
    mark = f"987654.{os.getpid()}25"
    async with Commands(there.settings(executables=TOOLS)) as commands:
        stages = [["sleep", mark], ["sleep", mark], ["cat"]]
        result = await run(commands, *stages, timeout=1.0)
        assert (result.status, result.reason) == ("timeout", "timeout")
        assert "stage 1 of 3" in result.summary
        assert not processes(mark)
        early = await run(commands, ["tail", "-f", "a.txt"], ["cat"], timeout=4.0)
    assert early.status == "timeout"
    assert early.stdout == "hello\nworld\n"


@pytest.mark.guarantee("command-ends")
async def test_a_cancelled_command_leaves_nothing(there: Place) -> None:
    mark = f"987654.{os.getpid()}5"
    async with Commands(there.settings(executables=TOOLS)) as commands:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, commands, ["sleep", mark], ["sleep", mark])
            await until(
                lambda: sum(line.startswith("sleep") for line in processes(mark).values()) == 2
            )
            tasks.cancel_scope.cancel()
        assert not processes(mark)
        result = await run(commands, ["cat"], stdin="next")
    assert result.stdout == "next"


@pytest.mark.guarantee("command-ends")
@pytest.mark.parametrize(
    ("table", "code", "told"),
    [
        ({"memory": "64m"}, "x = bytearray(400 << 20); print(len(x))", "memory"),
        ({"file_size": "1m"}, "open('/tmp/f', 'wb').write(bytes(2 << 20))", "too large"),
        ({"processes": 4}, "import os\nfor _ in range(20): os.fork()", "Resource temporarily"),
        ({"open_files": 16}, "fs = [open('/dev/null') for _ in range(30)]", "Too many open files"),
    ],
)
async def test_a_stage_that_passes_a_limit_fails_by_it(
    there: Place, table: dict[str, Any], code: str, told: str
) -> None:
    python: dict[str, Any] = {"executables": ["/usr/bin/python3"], "check_arguments": False}
    result = await run(there.settings(**python, **table), ["python3", "-c", code])
    assert result.status == "error"
    assert told in result.summary.lower() + result.stages[0].stderr
    if "processes" not in table:
        control = await run(there.settings(**python, memory="1g"), ["python3", "-c", code])
        assert control.status == "success"


@pytest.mark.guarantee("command-grants")
async def test_without_bubblewrap_or_with_an_oci_runtime_nothing_runs(there: Place) -> None:
    with raises_code("engine_not_found", match="bubblewrap"):
        await run(there.settings({"PATH": str(there.peek.parent)}), ["peek"])
    settings = replace(there.settings(), oci_runtime="runsc")
    with pytest.raises(SettingsError, match='bubblewrap cannot use runsc.*runtime = "container"'):
        await run(settings, ["peek"])


@pytest.mark.skipif(os.getuid() != 0, reason="whose the workspace is matters to root only")
async def test_a_bridge_of_root_s_never_runs_commands_as_root(there: Place) -> None:
    there.workspace.joinpath("out").chmod(0o700)
    async with Commands(there.settings(write=["out"])) as commands:
        await run_peek(commands, {"write": ["out/x"]})
        assert (there.workspace / "out" / "x").stat().st_uid == ORDINARY_ID
    os.chown(there.workspace, 0, 0)
    with pytest.raises(LaunchError) as refused:
        await run(there.settings(write=["out"]), ["peek"])
    assert "65534" in str(refused.value)
    assert "Give the workspace to an ordinary user" in refused.value.remedy


SCRIPT = """
import dataclasses, json, os, anyio
from pathlib import Path
from bridge.commands.runner import Commands
from tests.commands.command_rig import run_peek, place

async def main():
    with place() as there:
        asked = {
            "read": ["a.txt", "/home/sandbox/.aws/credentials", str(there.root / "outside.txt")],
            "write": ["out/made", "made"],
        }
        control = there.outside({"read": asked["read"][2:], "write": ["made"]}, {})
        credentials = {"kind": "aws", "source": "files"}
        settings = there.settings(write=["out"], credentials=credentials)
        seen = await run_peek(settings, asked)
        owner = (there.workspace / "out" / "made").stat().st_uid
        print(json.dumps({"uid": os.getuid(), "owner": owner, "seen": seen, "control": control}))

anyio.run(main)
"""


@pytest.mark.rootless
def test_an_ordinary_user_s_commands_write_as_that_user() -> None:
    with ordinary_user() as (become, environ, _):
        python = usable_python(become, environ)
        done = subprocess.run(
            [*become, *python, "-c", SCRIPT],
            env=environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["uid"] != 0
    assert told["owner"] == told["uid"]
    read = list(told["seen"]["read"].values())
    assert read[0] == "hello\nworld\n"
    assert "[redacted: " in read[1]
    assert "FileNotFoundError" in read[2]
    assert told["seen"]["write"]["out/made"] is True
    assert "OSError" in told["seen"]["write"]["made"]
    assert list(told["control"]["read"].values()) == [CANARY]
    assert told["control"]["write"] == {"made": True}


async def test_a_command_is_on_record_from_its_beginning_to_its_end(there: Place) -> None:
    settings = there.settings(
        {"TOKEN": SECRET}, executables=["cat"], secrets=["TOKEN"], check_arguments=False
    )
    log = AuditLog(there.root / "audit")
    words = ["cat", f"/no/{SECRET}", "--password", "hunter-2-hunter"]
    async with Commands(settings, audit_of=lambda run, _: RunAudit(log, run)) as commands:
        result = await commands.run(
            CommandRequest(profile="tool", stages=(tuple(words),)),
            principal="somebody",
            client="harness 2",
        )
    begun, ended = records(there.root / "audit")
    assert (begun["kind"], begun["run"]) == ("command", result.run_id)
    assert (begun["principal"], begun["profile"]) == ("somebody", "tool")
    assert begun["clientSays"] == "harness 2"
    masked = mask("hunter-2-hunter")
    assert begun["stages"] == [["cat", "/no/[redacted: TOKEN]", "--password", masked]]
    digest = hashlib.sha256(json.dumps([words], separators=(",", ":")).encode()).hexdigest()
    assert begun["digest"] == f"sha256:{digest}"
    assert (ended["kind"], ended["run"], ended["status"]) == ("end", result.run_id, result.status)
    assert ended["exitCode"] == result.exit_code == 1


async def test_a_command_that_cannot_be_recorded_does_not_run(there: Place) -> None:
    (there.root / "audit").write_text("in the way of the directory")
    log = AuditLog(there.root / "audit")
    async with Commands(there.settings(), audit_of=lambda run, _: RunAudit(log, run)) as commands:
        with pytest.raises(AuditError):
            await run_peek(commands, {"write": ["out/never"]})
    assert not (there.workspace / "out" / "never").exists()
