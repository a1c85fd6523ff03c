"""Where engines are looked for."""

from __future__ import annotations

import hashlib
import json
import shlex
import socket
import threading
from pathlib import Path

import pytest

from bridge.errors import EngineDownError
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import connect
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.connection import kind_of
from bridge.sandbox.container.endpoints import (
    EngineEndpoint,
    EngineKind,
    candidates,
    names_another_machine,
    podman_connection,
    ssh_target,
)
from bridge.sandbox.selection import _allowed_backends
from bridge.settings import Settings
from tests.fakes.command_line import Scripted
from tests.raised import raises_code


def around(**environ: str) -> dict[str, str]:
    return {"HOME": "/home/u", **environ}


def urls(kind: EngineKind, environ: dict[str, str], uid: int = 1000) -> list[str]:
    return [endpoint.url for endpoint in candidates(kind, environ, uid=uid)]


def test_the_usual_places_in_order() -> None:
    assert urls("docker", around(XDG_RUNTIME_DIR="/run/user/1000")) == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/1000/docker.sock",
        "unix:///home/u/.docker/run/docker.sock",
        "unix:///home/u/.docker/desktop/docker.sock",
        "unix:///home/u/.colima/default/docker.sock",
        "unix:///home/u/.orbstack/run/docker.sock",
    ]

    assert urls("podman", around(XDG_RUNTIME_DIR="/tmp/x")) == [
        "unix:///tmp/x/podman/podman.sock",
        "unix:///run/user/1000/podman/podman.sock",
    ]
    assert urls("podman", around(), uid=0) == ["unix:///run/podman/podman.sock"]
    # A configured podman gets a service of its own.
    assert urls("podman", around(CONTAINERS_CONF="/etc/x.conf")) == []


@pytest.mark.parametrize(
    ("kind", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")]
)
def test_a_place_that_is_named_is_the_only_one(kind: EngineKind, variable: str) -> None:
    environ = {variable: "unix:///tmp/e.sock"}
    (found,) = candidates(kind, environ)
    assert (found.url, found.origin, found.explicit) == ("unix:///tmp/e.sock", variable, True)
    assert found.socket_path == Path("/tmp/e.sock")


@pytest.mark.parametrize("url", ["npipe:////./pipe/docker", "nonsense", "tcp://"])
def test_places_that_cannot_be_used_are_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(EngineDownError) as caught:
        candidates("docker", around(DOCKER_HOST=url))
    assert "DOCKER_HOST" in caught.value.message
    assert "unix:///" in caught.value.remedy


@pytest.mark.parametrize(
    ("environ", "certificates", "verify"),
    [
        ({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/c"}, Path("/c"), True),
        ({"DOCKER_CERT_PATH": "/c"}, Path("/c"), False),
        ({"DOCKER_TLS_VERIFY": "1"}, Path("/home/u/.docker"), True),
        ({}, None, True),
    ],
)
def test_tls_as_dockers_own_variables_ask_for_it(
    environ: dict[str, str], certificates: Path | None, verify: bool
) -> None:
    (found,) = candidates("docker", around(DOCKER_HOST="tcp://h:2376", **environ))
    assert (found.certificates, found.verify) == (certificates, verify)


def test_the_docker_context_in_use_is_followed(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"colima").hexdigest()
    meta = tmp_path / ".docker/contexts/meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///c.sock"}}}))
    home = {"HOME": str(tmp_path)}
    by_name = {**home, "DOCKER_CONTEXT": "colima"}
    assert urls("docker", by_name) == ["unix:///c.sock"]
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "colima"}')
    assert urls("docker", home) == ["unix:///c.sock"]
    default = {**home, "DOCKER_CONTEXT": "default"}
    assert urls("docker", default)[0] == "unix:///var/run/docker.sock"


async def _refusal(url: str) -> EngineDownError:
    endpoint = EngineEndpoint(url=url, origin="DOCKER_HOST", explicit=True)
    with pytest.raises(EngineDownError) as caught:
        await connect(endpoint, asked="docker")
    return caught.value


def _answer(live: socket.socket, said: bytes) -> None:
    near, _ = live.accept()
    with near:
        near.recv(4096)
        near.sendall(said)


async def test_only_a_place_where_no_one_listens_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(tmp_path / "live"))
        live.listen()
        for name in ("absent", "file", "dead", "file/below"):
            error = await _refusal(f"unix://{tmp_path}/{name}")
            assert faults.is_absent(error), name
            assert f"{tmp_path}/{name}, DOCKER_HOST" in error.message
        for said in (b"hello\r\n", b"", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"):
            threading.Thread(target=_answer, args=(live, said)).start()
            assert not faults.is_absent(await _refusal(f"unix://{tmp_path}/live"))


async def test_a_port_where_no_one_listens_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = await _refusal(f"tcp://127.0.0.1:{unused.getsockname()[1]}")
    assert "DOCKER_HOST" in error.message
    assert "DOCKER_HOST" in error.remedy


async def test_an_executable_is_asked_what_it_is() -> None:
    run = Scripted(CompletedCommand(exit_code=0, stdout="podman version 4.3.1\n"))
    assert await kind_of("/usr/bin/docker", run) == "podman"
    assert run.asked == [["/usr/bin/docker", "--version"]]
    run = Scripted(CompletedCommand(exit_code=0, stdout="Docker version 28.2.2, build e6534b4\n"))
    assert await kind_of("/usr/bin/docker", run) == "docker"
    with pytest.raises(EngineDownError, match="neither"):
        await kind_of("/bin/true", Scripted(CompletedCommand(exit_code=0, stdout="")))
    with raises_code("engine_not_found"):
        await kind_of("/no/podman", Scripted(CompletedCommand(exit_code=None, missing=True)))


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


def test_podman_needs_the_path_of_its_socket_and_a_named_key_is_the_only_one() -> None:
    with pytest.raises(EngineDownError, match="CONTAINER_HOST"):
        ssh_target("ssh://me@big", "CONTAINER_HOST", "podman")
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
    assert _allowed_backends(settings) == (kinds or ("podman", "docker", "bubblewrap", "seatbelt"))
    # A runtime that the user names is used.
    assert _allowed_backends(Settings(runtime="bubblewrap", environ=environ)) == ("bubblewrap",)


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
    with pytest.raises(EngineDownError, match="no connection gone"):
        await podman_connection("podman", {"CONTAINER_CONNECTION": "gone"}, run)
