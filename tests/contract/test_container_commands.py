"""`run_command` in containers: the profile's image, its paths, and nothing else of the host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from bridge.engine.command_backends import Runner
from bridge.engine.commands import Commands
from bridge.sandbox.container.backend import ContainerBackend
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from tests.contract.rig import EngineShelf
from tests.engine.command_rig import CANARY, ORDINARY_ID, SECRET, place, run

PATIENCE = 120
LOOK = (
    "cat a.txt; echo x > out/made; echo x > made; cat {outside}; echo $TOKEN; echo $CANARY; "
    "id -u; ls /proc/sys/net/ipv4/conf; exit 7"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("podman", marks=pytest.mark.podman),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
async def test_commands_run_in_the_profiles_image(
    name: str, engines: EngineShelf, tmp_path: Path
) -> None:
    """With the same mounts, redaction, streaming and deadline as without an engine."""
    engine = engines.get(name)

    async def open_runner(settings: Settings, profile: CommandProfile) -> Runner:
        return ContainerBackend(
            engine.command, image="", runtime_dir=tmp_path / "run", environ=engine.environ
        )

    with place() as there, anyio.fail_after(PATIENCE):
        settings = there.settings(
            {"TOKEN": SECRET},
            runtime="container",
            image=engine.image,
            executables=["cat", "head", "sh", "sleep", "yes"],
            secrets=["TOKEN"],
            write=["out"],
            check_arguments=False,
        )
        async with Commands(settings, {"container": open_runner}) as commands:
            look = LOOK.format(outside=there.root / "outside.txt")
            seen = await run(commands, ["sh", "-c", look])
            streamed = await run(commands, ["yes"], ["head", "-c", "4"])
            fed = await run(commands, ["cat"], ["cat"], stdin="fed")
            late = await run(commands, ["sleep", "60"], ["cat"], timeout=2.0)
        made = (there.workspace / "out" / "made").stat().st_uid
    assert (seen.reason, seen.exit_code) == ("exit", 7)
    uid = ORDINARY_ID if os.getuid() == 0 else os.getuid()
    assert seen.stdout.splitlines()[:5] == ["hello", "world", "[redacted]", "", str(uid)]
    assert "eth0" not in seen.stdout
    assert seen.stages[0].stderr.count("\n") == 2, json.dumps(seen.stages[0].stderr)
    assert CANARY not in seen.stdout
    assert made == uid
    assert streamed.stages[0].cut_short
    if name == "podman":
        # What it may have lost is not called a success.
        assert (streamed.status, streamed.reason) == ("error", "engine")
    else:
        assert (streamed.status, streamed.stdout) == ("success", "y\ny\n")
    assert (fed.status, fed.stdout) == ("success", "fed")
    assert late.status == "timeout"
    assert engine.ours() == []
