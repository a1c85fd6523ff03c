"""`run_command` in containers: the profile's image, its paths, and nothing else of the host."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.commands.runner import Commands
from bridge.sandbox.backend import Backend
from bridge.sandbox.container.backend import ContainerBackend
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from tests.commands.command_rig import CANARY, ORDINARY_ID, SECRET, place, run
from tests.contract.rig import Engine, EngineShelf, on_engines

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

REACH = """
import socket, sys
for way in ("connect", "datagram"):
    try:
        if way == "connect":
            socket.socket(socket.AF_UNIX).connect(sys.argv[1])
        else:
            socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        print("ESCAPED", way)
    except OSError as error:
        print("denied", way)
pair = socket.socketpair()
pair[0].send(b"x")
print(pair[1].recv(1))
"""


ENGINES = on_engines("podman", "docker")


Open = Callable[[Settings, CommandProfile], Awaitable[Backend]]


def opener(engine: Engine, runtime_dir: Path) -> Open:
    """Open the engine for commands, whatever the settings say."""

    async def open_runner(settings: Settings, profile: CommandProfile) -> Backend:
        return ContainerBackend(
            engine.command, image="", runtime_dir=runtime_dir, environ=engine.environ
        )

    return open_runner


@pytest.mark.guarantee("command-grants")
@ENGINES
async def test_commands_run_in_the_profiles_image(
    name: str, engines: EngineShelf, tmp_path: Path
) -> None:
    engine = engines.get(name)
    open_runner = opener(engine, tmp_path / "run")
    with place() as there, anyio.fail_after(PATIENCE):
        profile = {
            "runtime": "container",
            "image": engine.image,
            "executables": ["cat", "head", "sh", "sleep", "yes"],
            "secrets": ["TOKEN"],
            "check_arguments": False,
        }
        writing = there.settings({"TOKEN": SECRET}, **profile, write=["out"])
        async with Commands(writing, open_runner) as commands:
            look = LOOK.format(outside=there.root / "outside.txt")
            seen = await run(commands, ["sh", "-c", look])
        # Where stages may write, one follows another.
        async with Commands(there.settings({"TOKEN": SECRET}, **profile), open_runner) as commands:
            # An early end loses nothing; it did on a connection shared with the input.
            ends = [await run(commands, ["yes"], ["head", "-c", "4"]) for _ in range(4)]
            fed = await run(commands, ["cat"], ["cat"], stdin="fed")
            late = await run(commands, ["sleep", "60"], ["cat"], timeout=2.0)
        made = (there.workspace / "out" / "made").stat().st_uid
    assert (seen.reason, seen.exit_code) == ("exit", 7)
    uid = ORDINARY_ID if os.getuid() == 0 else os.getuid()
    assert seen.stdout.splitlines()[:5] == ["hello", "world", "[redacted: TOKEN]", "", str(uid)]
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
    assert late.status == "timeout"
    assert engine.ours() == []


@pytest.mark.guarantee("command-sockets")
@ENGINES
async def test_commands_have_the_sockets_of_their_grant_and_no_way_to_the_hosts(
    name: str, engines: EngineShelf, tmp_path: Path
) -> None:
    """With a network the internet's families; without one, pairs that speak with no one else."""
    engine = engines.get(name)
    open_runner = opener(engine, tmp_path / "run")
    with place() as there, anyio.fail_after(PATIENCE):
        profile: dict[str, Any] = {
            "runtime": "container",
            "image": engine.image,
            "executables": ["python3"],
            "check_arguments": False,
        }
        async with Commands(there.settings(**profile, network=True), open_runner) as commands:
            sockets = await run(commands, ["python3", "-c", SOCKETS])
        listening = there.workspace / "host.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(listening))
            listener.listen(8)
            listening.chmod(0o777)
            async with Commands(there.settings(**profile), open_runner) as commands:
                inside = ["python3", "-c", REACH, "/workspace/host.sock"]
                reached = await run(commands, inside)
            control = await anyio.run_process([sys.executable, "-c", REACH, str(listening)])
    refused = ["Address family not supported by protocol"]
    assert sockets.stdout == f"{refused + [2, 10] + refused * 3} True\n", sockets.error
    assert sockets.isolation is not None
    assert "own-seccomp" in sockets.isolation.verified
    assert "no-network" not in sockets.isolation.layers
    assert control.stdout == b"ESCAPED connect\nESCAPED datagram\nb'x'\n"
    assert reached.stdout == "denied connect\ndenied datagram\nb'x'\n", reached.error
    assert engine.ours() == []
