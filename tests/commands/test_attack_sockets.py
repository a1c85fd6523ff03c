"""Commands against sockets: of the host in a granted path, and ports opened beside `bind`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bridge.commands.runner import Commands
from tests.commands.command_rig import SYSTEM_PYTHON, Place, run

ATTACKS = """
import json, os, socket, sys
HERE, ABSTRACT = sys.argv[1:]
def connect(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(path)
def send(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.sendto(b'escaped', path)
def pair(path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b'escaped', path)
def listen(family, protocol=0, bound=False):
    with socket.socket(family, socket.SOCK_STREAM, protocol) as made:
        if bound:
            made.bind(('', 0))
        made.listen()
def usual():
    ours, theirs = socket.socketpair()
    ours.sendall(b'x')
    return theirs.recv(1)
found = {}
for name, attack in {
    'a stream': lambda: connect(HERE + '/stream'),
    'datagrams': lambda: send(HERE + '/datagrams'),
    'one end of a pair': lambda: pair(HERE + '/datagrams'),
    'a name without a file': lambda: pair('\\0' + ABSTRACT),
    'listen unbound': lambda: listen(socket.AF_INET),
    'listen unbound on IPv6': lambda: listen(socket.AF_INET6),
    'listen by another protocol': lambda: listen(socket.AF_INET, 262, bound=True),
    'own pair': usual,
}.items():
    try:
        attack()
        found[name] = 'ESCAPED'
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""

MAY_BE_LACKING = ("listen unbound on IPv6", "listen by another protocol")
"""Where the tests run."""


@contextmanager
def sockets(there: Place) -> Iterator[tuple[socket.socket, str]]:
    """Listen in the workspace, and at a name without a file; give what takes datagrams."""
    abstract = f"mcp-code-bridge-test-{os.getpid()}"
    local, kinds = socket.AF_UNIX, (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    with (
        socket.socket(local, kinds[0]) as stream,
        socket.socket(local, kinds[1]) as datagrams,
        socket.socket(local, kinds[1]) as nameless,
    ):
        for made, name in ((stream, "stream"), (datagrams, "datagrams")):
            made.bind(str(there.workspace / name))
            (there.workspace / name).chmod(0o777)
        nameless.bind(f"\0{abstract}")
        stream.listen()
        nameless.setblocking(False)
        yield nameless, abstract


@pytest.mark.guarantee("command-sockets")
@pytest.mark.parametrize("network", [False, True])
async def test_no_socket_of_the_host_is_reached_and_no_port_opened(
    there: Place, network: bool
) -> None:
    with sockets(there) as (nameless, abstract):
        words = [SYSTEM_PYTHON, "-c", ATTACKS, str(there.workspace), abstract]
        done = subprocess.run(words, capture_output=True, check=True)  # noqa: ASYNC221
        outside = json.loads(done.stdout)
        expected = {name for name in outside if name not in MAY_BE_LACKING}
        assert {outside[name] for name in expected} == {"ESCAPED"}, f"void: {outside}"
        assert nameless.recv(100) == b"escaped"
        table: dict[str, Any] = {
            "executables": [SYSTEM_PYTHON],
            "network": network,
            "check_arguments": False,
        }
        async with Commands(there.settings(**table)) as commands:
            inside = ["python3", "-c", ATTACKS, "/workspace", abstract]
            result = await run(commands, inside)
        assert result.status == "success", (result.error, result.stages)
        found = json.loads(result.stdout)
        assert found.pop("own pair") == "ESCAPED"
        assert {name: said for name, said in found.items() if said == "ESCAPED"} == {}
        with pytest.raises(BlockingIOError):
            nameless.recv(100)
