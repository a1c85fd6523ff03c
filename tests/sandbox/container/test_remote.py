"""Which engine the environment names, and what an ssh:// address becomes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from bridge.errors import EngineDownError
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.endpoints import candidates, podman_connection
from bridge.sandbox.container.remote import names_another_machine, ssh_target
from bridge.sandbox.selection import _admitted
from bridge.settings import Settings
from tests.fakes.command_line import Scripted

SOCKET = Path("/run/u/engine.sock")


@pytest.mark.parametrize(
    ("url", "destination", "port", "socket"),
    [
        ("ssh://big", "big", "", "/var/run/docker.sock"),
        ("ssh://big/", "big", "", "/var/run/docker.sock"),
        ("ssh://me@big.example.org:2222", "me@big.example.org", "2222", "/var/run/docker.sock"),
        ("ssh://me@big:22/run/user/1000/d.sock", "me@big", "22", "/run/user/1000/d.sock"),
        ("ssh://me@[fe80::1]:22/s", "me@fe80::1", "22", "/s"),
    ],
)
def test_an_address_is_read_as_docker_reads_it(
    url: str, destination: str, port: str, socket: str
) -> None:
    target = ssh_target(url, "DOCKER_HOST", "docker")
    assert (target.destination, target.port, target.socket) == (destination, port, socket)
    argv = target.argv(SOCKET)
    assert argv[-2:] == ["--", destination]
    assert f"{SOCKET}:{socket}" in argv
    assert ("-p" in argv) == bool(port)


@pytest.mark.parametrize(
    "url",
    [
        *("ssh://", "ssh://me:secret@big", "ssh://-oProxyCommand=x", "ssh://-big", "ssh://big:x"),
        *("ssh://big/a:b", "ssh://big/%h", "ssh://big/$HOME", "ssh://big/a b", "ssh://a b/c"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(EngineDownError) as caught:
        ssh_target(url, "DOCKER_HOST", "docker")
    assert caught.value.message.startswith("DOCKER_HOST")
    assert "secret" not in str(caught.value)


def test_podman_needs_the_path_of_its_socket() -> None:
    with pytest.raises(EngineDownError, match="CONTAINER_HOST"):
        ssh_target("ssh://me@big", "CONTAINER_HOST", "podman")


def test_a_named_key_is_the_only_one() -> None:
    environ = {"CONTAINER_HOST": "ssh://me@big/s", "CONTAINER_SSHKEY": "/k"}
    [found] = candidates("podman", environ)
    assert found.target is not None
    words = shlex.join(found.target.argv(SOCKET))
    assert "-i /k -o IdentitiesOnly=yes" in words
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no"):
        assert option in words


@pytest.mark.parametrize(
    ("environ", "kinds"),
    [
        ({}, ()),
        ({"DOCKER_HOST": "unix:///run/x.sock"}, ()),
        ({"DOCKER_HOST": "ssh://big"}, ("docker",)),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2375"}, ("docker",)),
        ({"CONTAINER_HOST": "ssh://big/s"}, ("podman",)),
        ({"CONTAINER_CONNECTION": "far", "DOCKER_HOST": "ssh://big"}, ("podman", "docker")),
    ],
)
def test_auto_tries_a_named_engine_of_another_machine_alone(
    environ: dict[str, str], kinds: tuple[str, ...]
) -> None:
    settings = Settings(environ=environ)
    named = tuple(one for one in ("podman", "docker") if names_another_machine(one, environ))
    assert named == kinds
    assert _admitted(settings) == (kinds or ("podman", "docker", "bubblewrap", "seatbelt"))
    # A runtime that the user names is used.
    assert _admitted(Settings(runtime="bubblewrap", environ=environ)) == ("bubblewrap",)


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("tcp://10.0.0.1:2375", True),
        ("http://build.example:2375", True),
        ("tcp://127.0.0.2:2375", False),
        ("tcp://localhost:2375", False),
        ("tcp://[::1]:2375", False),
        ("https://build.example:2376", False),
        ("ssh://build.example", False),
        ("unix:///run/x.sock", False),
    ],
)
def test_plain_tcp_beyond_loopback_is_exposed(url: str, exposed: bool) -> None:
    [found] = candidates("docker", {"DOCKER_HOST": url})
    assert found.exposed is exposed


ROWS = [
    {"Name": "near", "URI": "ssh://core@127.0.0.1:1/s", "IsMachine": True, "Default": False},
    {"Name": "far", "URI": "ssh://me@big/s", "Identity": "/k", "Default": True},
]


@pytest.mark.parametrize(
    ("platform", "name", "url"),
    [
        ("linux", "", ""),
        ("darwin", "", "ssh://me@big/s"),
        ("linux", "far", "ssh://me@big/s"),
        ("linux", "near", "ssh://core@127.0.0.1:1/s"),
    ],
)
async def test_podmans_connection_is_chosen_as_podman_does(
    platform: str, name: str, url: str
) -> None:
    run = Scripted(CompletedCommand(exit_code=0, stdout=json.dumps(ROWS)))
    environ = {"CONTAINER_CONNECTION": name, "HOME": "/nowhere"} if name else {"HOME": "/nowhere"}
    found = await podman_connection("podman", environ, run, platform=platform)
    assert (found.url if found else "") == url


async def test_a_connection_that_podman_lacks_is_an_error() -> None:
    run = Scripted(CompletedCommand(exit_code=0, stdout="null"))
    environ = {"CONTAINER_CONNECTION": "gone"}
    with pytest.raises(EngineDownError, match="no connection gone"):
        await podman_connection("podman", environ, run)
