"""Where engines are looked for."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.endpoints import (
    EngineEndpoint,
    Surroundings,
    candidates,
    first_listening,
    kind_of,
    machine_endpoint,
)
from tests.fakes.command_line import Scripted
from tests.raised import raises_code


def around(uid: int = 1000, **environ: str) -> Surroundings:
    return Surroundings(environ={"HOME": "/home/u", **environ}, uid=uid, platform="linux")


def urls(endpoints: Sequence[EngineEndpoint]) -> list[str]:
    return [endpoint.url for endpoint in endpoints]


def test_dockers_usual_places_in_order() -> None:
    found = candidates("docker", around(XDG_RUNTIME_DIR="/run/user/1000"))
    assert urls(found) == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/1000/docker.sock",
        "unix:///home/u/.docker/run/docker.sock",
        "unix:///home/u/.docker/desktop/docker.sock",
        "unix:///home/u/.colima/default/docker.sock",
        "unix:///home/u/.orbstack/run/docker.sock",
    ]


def test_podmans_usual_places() -> None:
    found = candidates("podman", around(XDG_RUNTIME_DIR="/tmp/x"))
    assert urls(found) == [
        "unix:///tmp/x/podman/podman.sock",
        "unix:///run/user/1000/podman/podman.sock",
    ]
    assert urls(candidates("podman", around(uid=0))) == ["unix:///run/podman/podman.sock"]


@pytest.mark.parametrize(
    ("kind", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")]
)
def test_a_place_that_is_named_is_the_only_one(kind: str, variable: str) -> None:
    """An explicit wish is never replaced by a guess."""
    environ = {variable: "unix:///tmp/e.sock"}
    named = Surroundings(environ=environ, uid=1000)
    (found,) = candidates("docker" if kind == "docker" else "podman", named)
    assert (found.url, found.origin, found.explicit) == ("unix:///tmp/e.sock", variable, True)
    assert found.socket_path == Path("/tmp/e.sock")


def test_a_configured_podman_gets_a_service_of_its_own() -> None:
    assert candidates("podman", around(CONTAINERS_CONF="/etc/x.conf")) == ()


@pytest.mark.parametrize("url", ["npipe:////./pipe/docker", "nonsense", "tcp://"])
def test_places_that_cannot_be_used_are_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(EngineDownError) as caught:
        candidates("docker", around(DOCKER_HOST=url))
    assert "DOCKER_HOST" in caught.value.message
    assert "unix:///" in caught.value.remedy


def test_tls_as_dockers_own_variables_ask_for_it() -> None:
    verified = around(DOCKER_HOST="tcp://h:2376", DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH="/c")
    (found,) = candidates("docker", verified)
    assert (found.certificates, found.verify) == (Path("/c"), True)
    (found,) = candidates("docker", around(DOCKER_HOST="tcp://h:2376", DOCKER_CERT_PATH="/c"))
    assert (found.certificates, found.verify) == (Path("/c"), False)
    (found,) = candidates("docker", around(DOCKER_HOST="tcp://h:2376", DOCKER_TLS_VERIFY="1"))
    assert found.certificates == Path("/home/u/.docker")
    (found,) = candidates("docker", around(DOCKER_HOST="tcp://h:2375"))
    assert found.certificates is None


def test_the_docker_context_in_use_is_followed(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"colima").hexdigest()
    meta = tmp_path / ".docker/contexts/meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///c.sock"}}}))
    home = {"HOME": str(tmp_path)}
    by_name = Surroundings(environ={**home, "DOCKER_CONTEXT": "colima"}, uid=1)
    assert urls(candidates("docker", by_name)) == ["unix:///c.sock"]
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "colima"}')
    assert urls(candidates("docker", Surroundings(environ=home, uid=1))) == ["unix:///c.sock"]
    default = Surroundings(environ={**home, "DOCKER_CONTEXT": "default"}, uid=1)
    assert urls(candidates("docker", default))[0] == "unix:///var/run/docker.sock"


async def test_the_first_that_listens_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    live = socket.socket(socket.AF_UNIX)
    live.bind(str(tmp_path / "live"))
    live.listen()
    with live:
        names = ("absent", "file", "dead", "live")
        endpoints = [
            EngineEndpoint(url=f"unix://{tmp_path}/{name}", origin="a test") for name in names
        ]
        found = await first_listening(endpoints, engine="docker")
        assert found is not None
        assert found.url.endswith("/live")
        assert await first_listening(endpoints[:3], engine="docker") is None


async def test_a_named_place_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    endpoint = EngineEndpoint(url=f"unix://{tmp_path}/x", origin="DOCKER_HOST", explicit=True)
    with pytest.raises(EngineDownError, match="DOCKER_HOST"):
        await first_listening([endpoint], engine="docker")


async def test_an_executable_is_asked_what_it_is() -> None:
    run = Scripted(CompletedCommand(exit_code=0, stdout="podman version 4.3.1\n"))
    assert await kind_of("/usr/bin/docker", run) == "podman"
    assert run.asked == [["/usr/bin/docker", "--version"]]
    run = Scripted(CompletedCommand(exit_code=0, stdout="Docker version 28.2.2, build e6534b4\n"))
    assert await kind_of("/usr/bin/docker", run) == "docker"


async def test_an_executable_that_is_neither_is_refused() -> None:
    with pytest.raises(EngineDownError, match="neither"):
        await kind_of("/bin/true", Scripted(CompletedCommand(exit_code=0, stdout="")))
    with raises_code("engine_not_found"):
        await kind_of("/no/podman", Scripted(CompletedCommand(exit_code=None, missing=True)))


async def test_the_machines_socket_is_asked_for() -> None:
    run = Scripted(CompletedCommand(exit_code=0, stdout="/var/folders/x/podman-api.sock\n"))
    found = await machine_endpoint("podman", "podman-machine-default", run)
    assert found.url == "unix:///var/folders/x/podman-api.sock"
    assert run.asked[0][-1] == "podman-machine-default"
    with pytest.raises(SandboxError, match="socket"):
        await machine_endpoint("podman", "m", Scripted(CompletedCommand(exit_code=1, stderr="no")))
