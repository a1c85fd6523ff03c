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

SOCKETS = """
import socket
found = []
for family in (1, 2, 10, 16, 17, 38):
    try:
        socket.socket(family, socket.SOCK_STREAM if family < 16 else socket.SOCK_RAW).close()
        found.append(family)
    except OSError as error:
        found.append(error.strerror)
print(found, bool(socket.getaddrinfo("localhost", 80)))
"""


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
            # An early end loses nothing; it did on a connection shared with the input.
            ends = [await run(commands, ["yes"], ["head", "-c", "4"]) for _ in range(4)]
            fed = await run(commands, ["cat"], ["cat"], stdin="fed")
            late = await run(commands, ["sleep", "60"], ["cat"], timeout=2.0)
        networked = there.settings(
            runtime="container",
            image=engine.image,
            executables=["python3"],
            network=True,
            check_arguments=False,
        )
        async with Commands(networked, {"container": open_runner}) as commands:
            sockets = await run(commands, ["python3", "-c", SOCKETS])
        made = (there.workspace / "out" / "made").stat().st_uid
    assert (seen.reason, seen.exit_code) == ("exit", 7)
    uid = ORDINARY_ID if os.getuid() == 0 else os.getuid()
    assert seen.stdout.splitlines()[:5] == ["hello", "world", "[redacted]", "", str(uid)]
    assert "eth0" not in seen.stdout
    assert seen.isolation is not None
    mandatory = {"no-network", "read-only-root", "no-capabilities", "unprivileged-user", "seccomp"}
    assert mandatory | {"own-seccomp", "masked-proc"} <= set(seen.isolation.verified)
    assert seen.stages[0].stderr.count("\n") == 2, json.dumps(seen.stages[0].stderr)
    assert CANARY not in seen.stdout
    assert made == uid
    assert all(end.stages[0].cut_short for end in ends)
    assert {(end.status, end.stdout) for end in ends} == {("success", "y\ny\n")}
    assert (fed.status, fed.stdout) == ("success", "fed")
    refused = ["Address family not supported by protocol"]
    assert sockets.stdout == f"{refused + [2, 10] + refused * 3} True\n", sockets.error
    assert sockets.isolation is not None
    assert "own-seccomp" in sockets.isolation.verified
    assert "no-network" not in sockets.isolation.layers
    assert late.status == "timeout"
    assert engine.ours() == []
