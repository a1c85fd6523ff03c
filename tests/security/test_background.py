"""A background bridge's socket and its clients' environments: other users, sandboxes, clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.background_instance import directory_of
from bridge.sandbox.process import landlock
from bridge.settings import load, private_places
from tests.background.conftest import user
from tests.background.rig import Person

__all__ = ["user"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc, uses bubblewrap")

TOKEN = f"ghp_{'xY7zW2' * 6}"
OTHER = f"ghp_{'mN4kL9' * 6}"

ECHO = """
import sys
said = str(await mcp_keeper.show_environment(name="GITHUB_TOKEN"))
print(said, said[:20], len(said))
"""

REACH = """
import json, os, socket
def connect():
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(PLACE + ".sock")
attempts = {
    "connect": connect,
    "list": lambda: os.listdir(os.path.dirname(PLACE)),
    "record": lambda: open(PLACE + ".json").read(),
    "lock": lambda: os.close(os.open(PLACE + ".lock", os.O_RDWR)),
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "REACHED"
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""


def open_to_all(user: Person) -> str:
    """Remove all that protects the bridge's files but the sandbox; return their common start."""
    [instance] = user.instances()
    user.home.chmod(0o755)
    (user.home / "run").chmod(0o755)
    Path(instance.directory).chmod(0o777)
    for path in (instance.socket, instance.lock, instance.record):
        Path(path).chmod(0o666)
    return instance.socket.removesuffix(".sock")


@pytest.mark.guarantee("background-bridge", "weaker-tier")
@pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")
@pytest.mark.skipif(os.getuid() != 0, reason="the control runs as the user of programs")
def test_a_program_of_the_bridge_itself_does_not_reach_it_in_the_weakest_sandbox(
    user: Person,
) -> None:
    user.variables["MCP_BRIDGE_RUNTIME"] = "landlock"
    with user.client() as client:
        client.initialize()
        program = f"PLACE = {open_to_all(user)!r}\n{REACH}"
        outside = subprocess.run(
            ["python3", "-c", program], user=65534, capture_output=True, text=True, check=True
        )
        assert set(json.loads(outside.stdout).values()) == {"REACHED"}
        inside = client.run(program)
        assert '"connect"' in inside, inside
        assert "REACHED" not in inside


@pytest.mark.guarantee("background-bridge")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_process_gets_no_answer_though_the_modes_let_it_in(user: Person) -> None:
    with user.client() as client:
        client.initialize()
        [number] = user.bridges()
        program = (
            "import socket\n"
            "there = socket.socket(socket.AF_UNIX)\n"
            f"there.connect({open_to_all(user) + '.sock'!r})\n"
            "try:\n"
            "    there.sendall(b'{\"stop\": true}\\n')\n"
            "    print(there.recv(1000))\n"
            "except ConnectionError:\n"
            "    print(b'')\n"
        )
        command = ["python3", "-c", program]
        done = subprocess.run(command, user=65534, capture_output=True, text=True, check=True)
        assert done.stdout == "b''\n"
        assert "5" in client.run("print(2 + 3)")
        os.kill(number, 0)  # It still runs.


@pytest.mark.guarantee("background-bridge", "directories")
@pytest.mark.parametrize("kind", ["runtime", "state", "long"])
def test_no_directory_of_programs_may_hold_the_bridges_socket(tmp_path: Path, kind: str) -> None:
    runtime = {"runtime": tmp_path, "state": Path(), "long": tmp_path / ("d" * 100)}[kind]
    if kind == "long":
        runtime.mkdir()
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(runtime)}
    directory = Path(directory_of(environ))
    private = private_places(load({}, environ))
    assert any(directory.is_relative_to(each) for each in private), (directory, private)


@pytest.mark.guarantee("client-environments")
def test_a_shared_servers_echo_of_the_environment_is_masked_for_each_client(user: Person) -> None:
    user.add_servers("keeper")
    with user.client(GITHUB_TOKEN=TOKEN) as one, user.client(GITHUB_TOKEN=TOKEN) as two:
        for client in (one, two):
            said = client.initialize().run(ECHO)
            assert "[redacted" in said
            assert TOKEN[:12] not in said
        assert len(user.processes()) == 1


@pytest.mark.guarantee("client-environments")
def test_no_value_of_a_client_reaches_another_ones_servers_or_a_file(user: Person) -> None:
    user.add_servers("keeper")
    user.variables |= {"MCP_BRIDGE_LOG_LEVEL": "DEBUG"}
    with user.client(GITHUB_TOKEN=TOKEN) as one, user.client(GITHUB_TOKEN=OTHER) as two:
        for client in (one, two):
            client.initialize().run(ECHO)
        with user.client() as three:
            three.initialize().run(ECHO)
        tokens = sorted(
            variable
            for number in user.processes()
            for variable in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
            if variable.startswith(b"GITHUB_TOKEN")
        )
        assert tokens == sorted(f"GITHUB_TOKEN={each}".encode() for each in (TOKEN, OTHER))
        status = user.command("background", "status", "--json").stdout
    written = [path for path in user.home.rglob("*") if path.is_file()]
    assert len(written) > 3
    for text in (status.encode(), *(path.read_bytes() for path in written)):
        assert TOKEN.encode() not in text
        assert OTHER.encode() not in text
