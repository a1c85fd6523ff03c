"""`run_command` in containers: the profile's image, its paths, and nothing else of the host."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.commands.runner import Commands
from bridge.sandbox.backend import Backend
from bridge.sandbox.container.backend import ContainerBackend
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from tests.commands.command_rig import CANARY, ORDINARY_ID, SECRET, Place, place, run
from tests.contract.rig import Engine, EngineSet, on_engines

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


@dataclass
class Bench:
    engine: Engine
    runtime_dir: Path
    there: Place

    def commands(self, *executables: str, **table: Any) -> Commands:
        """Commands in containers of the engine, whatever the settings say."""
        own = {"runtime": "container", "image": self.engine.image, "check_arguments": False}
        given = {**own, "executables": [*executables], **table}
        return Commands(self.there.settings({"TOKEN": SECRET}, **given), self._open_backend)

    async def _open_backend(self, settings: Settings, profile: CommandProfile) -> Backend:
        return ContainerBackend(
            self.engine.command, image="", runtime_dir=self.runtime_dir, environ=self.engine.environ
        )


@pytest.fixture
def bench(name: str, engines: EngineSet, tmp_path: Path) -> Iterator[Bench]:
    with place() as there:
        yield Bench(engines.get(name), tmp_path / "run", there)
    assert engines.get(name).ours() == []


@pytest.mark.guarantee("command-grants")
@ENGINES
async def test_commands_run_in_the_profiles_image(bench: Bench) -> None:
    async with bench.commands("cat", "sh", secrets=["TOKEN"], write=["out"]) as commands:
        look = LOOK.format(outside=bench.there.root / "outside.txt")
        seen = await run(commands, ["sh", "-c", look])
    # Where stages may write, one follows another.
    async with bench.commands("cat", "head", "sleep", "yes") as commands:
        # An early end loses nothing; it did on a connection shared with the input.
        ends = [await run(commands, ["yes"], ["head", "-c", "4"]) for _ in range(4)]
        fed = await run(commands, ["cat"], ["cat"], stdin="fed")
        late = await run(commands, ["sleep", "60"], ["cat"], timeout=2.0)
    made = (bench.there.workspace / "out" / "made").stat().st_uid
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


@pytest.mark.guarantee("command-sockets")
@ENGINES
async def test_commands_have_the_sockets_of_their_grant_and_no_way_to_the_hosts(
    bench: Bench,
) -> None:
    async with bench.commands("python3", network=True) as commands:
        sockets = await run(commands, ["python3", "-c", SOCKETS])
    listening = bench.there.workspace / "host.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(listening))
        listener.listen(8)
        listening.chmod(0o777)
        async with bench.commands("python3") as commands:
            reached = await run(commands, ["python3", "-c", REACH, "/workspace/host.sock"])
        control = await anyio.run_process([sys.executable, "-c", REACH, str(listening)])
    refused = ["Address family not supported by protocol"]
    assert sockets.stdout == f"{refused + [2, 10] + refused * 3} True\n", sockets.error
    assert sockets.isolation is not None
    assert "own-seccomp" in sockets.isolation.verified
    assert "no-network" not in sockets.isolation.layers
    assert control.stdout == b"ESCAPED connect\nESCAPED datagram\nb'x'\n"
    assert reached.stdout == "denied connect\ndenied datagram\nb'x'\n", reached.error
