"""Exceptions of the docker SDK, of requests and of sockets become our errors."""

from __future__ import annotations

import docker.errors
import pytest
import requests
import requests.exceptions
import urllib3.exceptions

from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.sandbox.container import faults


def connection_error(cause: OSError) -> docker.errors.DockerException:
    protocol = urllib3.exceptions.ProtocolError("Connection aborted.", cause)
    wrapped = requests.exceptions.ConnectionError(protocol)
    return docker.errors.DockerException(
        f"Error while fetching server API version: {wrapped}", wrapped
    )


def test_a_socket_that_refuses_this_user_says_how_to_be_let_in() -> None:
    error = connection_error(PermissionError(13, "Permission denied"))
    found = faults.from_exception(error, doing="answer a ping", engine="docker")
    assert (type(found), found.code) == (SandboxError, "engine_permission")
    assert "group `docker`" in found.remedy
    assert "rootless podman" in found.remedy
    found = faults.from_exception(error, doing="answer a ping", engine="podman")
    assert "CONTAINER_HOST" in found.remedy


@pytest.mark.parametrize(
    "cause",
    [FileNotFoundError(2, "No such file or directory"), ConnectionRefusedError(111, "refused")],
)
def test_a_socket_nobody_listens_on_is_an_engine_that_is_down(cause: OSError) -> None:
    found = faults.from_exception(connection_error(cause), doing="answer", engine="docker")
    assert type(found) is EngineDownError
    assert "systemctl start docker" in found.remedy
    assert str(cause.strerror) in found.message


def test_no_answer_in_time_is_an_engine_that_is_down() -> None:
    error = requests.exceptions.ReadTimeout("Read timed out. (read timeout=60)")
    found = faults.from_exception(error, doing="create a container", engine="docker")
    assert type(found) is EngineDownError
    assert "in time" in found.message


def test_our_own_errors_pass_through() -> None:
    ours = LaunchError("no")
    assert faults.from_exception(ours, doing="x", engine="docker") is ours


def answer(status: int, explanation: str, kind: type[docker.errors.APIError]) -> BaseException:
    response = requests.Response()
    response.status_code = status
    return kind("refused", response=response, explanation=explanation)


@pytest.mark.parametrize(
    ("status", "said", "gone", "idle"),
    [
        (404, "No such container: nosuchthing", True, False),
        (404, 'no container with name or ID "nosuchthing" found: no such container', True, False),
        (409, "Cannot kill container: e793: Container e793 is not running", False, True),
        (
            500,
            "can only kill running containers. e30b is in state created: container state improper",
            False,
            True,
        ),
        (500, "something else", False, False),
    ],
)
def test_refusals_that_mean_there_is_nothing_to_do(
    status: int, said: str, gone: bool, idle: bool
) -> None:
    error = answer(status, said, docker.errors.APIError)
    assert (faults.is_gone(error), faults.is_not_running(error)) == (gone, idle)


def test_a_missing_image_is_not_a_container_that_is_gone() -> None:
    assert not faults.is_gone(answer(404, "No such image", docker.errors.ImageNotFound))
