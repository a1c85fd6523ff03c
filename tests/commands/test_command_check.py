"""What `doctor` tells of command profiles, and of the profile in force."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bridge.cli.doctor import doctor
from bridge.commands.plan import CommandCheck, check_commands
from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.sandbox.backend import Probe
from bridge.sandbox.selection import select_for_profile, with_profile_remedy
from bridge.settings.commands import parse_commands
from tests.commands.command_rig import SECRET, Place
from tests.raised import raises_code

FINE = Probe(backend="bubblewrap", ok=True, summary="fine")
BROKEN = Probe(backend="bubblewrap", ok=False, summary="Not there.", remedy="Install it.")
CONTAINER: dict[str, Any] = {
    "runtime": "container",
    "image": "localhost/none:1",
    "executables": ["jq"],
}


def _check(there: Place, *probes: Probe, **table: Any) -> CommandCheck:
    settings = there.settings({"SET": SECRET}, **table)
    [check] = check_commands(settings, probes)
    return check


def test_a_profile_that_can_be_used_is_told_with_what_it_runs(there: Place) -> None:
    check = _check(there, FINE, executables=["peek", "/bin/cat"], secrets=["SET", "UNSET"])
    assert check.ok
    assert check.summary == f"peek, cat in bubblewrap, workspace {there.workspace}"
    assert check.notes == ("not set, so not passed on: UNSET",)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"executables": ["no-such-tool"]}, "'no-such-tool' is not on this machine"),
        ({"workspace": "/no/such/place"}, "does not exist"),
        ({"write": ["/etc"]}, "a directory of the system"),
        ({"env": [], "secrets": ["SHORT"]}, "cannot be kept out of output"),
    ],
)
def test_a_profile_that_cannot_be_used_is_told_with_the_error_of_a_command(
    there: Place, table: dict[str, Any], told: str
) -> None:
    settings = there.settings({"SHORT": "x"})
    fine = {"executables": ["cat"], "workspace": str(there.workspace)}
    tables: dict[str, Any] = {"bad": {**fine, **table}, "good": fine}
    settings = replace(settings, commands=parse_commands(tables, "commands"))
    bad, good = check_commands(settings, [FINE])
    assert (bad.ok, good.ok) == (False, True)
    assert told in bad.summary


def test_a_profile_is_no_better_than_what_it_runs_in(there: Place) -> None:
    check = _check(there, BROKEN)
    assert (check.ok, check.remedy) == (False, "Install it.")
    assert "bubblewrap: Not there." in check.summary
    untried = _check(there)
    assert untried.ok
    assert "was not tried" in untried.notes[0]
    engine = replace(BROKEN, backend="podman")
    assert not _check(there, FINE, engine, **CONTAINER).ok
    assert _check(there, engine, replace(FINE, backend="docker"), **CONTAINER).ok


async def test_doctor_prints_profiles_and_does_not_fail_for_a_broken_one(
    there: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = there.settings(executables=["no-such-tool"])
    settings = replace(settings, runtime="bubblewrap", profile="strict", strict=True)
    assert await doctor(settings) == 0
    text = capsys.readouterr().out
    assert "profile: strict: 5 s, 128 MiB, 0.5 CPUs, guard enforce, listed servers only\n" in text
    assert "commands: tool: FAIL: commands.tool: the executable 'no-such-tool'" in text
    settings = replace(settings, commands=there.settings().commands)
    assert await doctor(settings, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(check["name"], check["ok"]) for check in document["commands"]] == [("tool", True)]
    assert document["profile"]["memory_bytes"] == 128 << 20


def test_the_remedy_for_a_profile_s_image_is_about_that_image(there: Place) -> None:
    profile = there.settings(**CONTAINER).commands["tool"]
    for code in ("image_missing", "image_pull_failed"):
        error = with_profile_remedy(SandboxError("no", code=code), profile)
        assert error.code == code
        assert error.remedy == (
            "Pull or build localhost/none:1 with the engine, or correct commands.tool.image."
        )
    broken = LaunchError("no", remedy="Run `mcp-code-bridge image build`.")
    launch = with_profile_remedy(broken, profile)
    assert "Name executables that localhost/none:1 has" in launch.remedy
    for other in (EngineDownError("x"), LaunchError("x")):
        assert with_profile_remedy(other, profile) is other


async def test_without_an_engine_the_error_is_about_engines(there: Place) -> None:
    none = f"unix://{there.root}/none.sock"
    environ = {"PATH": str(there.root), "DOCKER_HOST": none, "CONTAINER_HOST": none}
    settings = there.settings(environ, **CONTAINER)
    with raises_code("no_sandbox", match="doctor"):
        await select_for_profile(settings, settings.commands["tool"])
