"""Exceptions of the docker SDK, of requests and of sockets become our errors."""

from __future__ import annotations

import re

import docker.errors
import pytest
import requests
import requests.exceptions
import urllib3.exceptions

from bridge.errors import LaunchError
from bridge.sandbox.container import faults


def connection_error(cause: OSError) -> docker.errors.DockerException:
    protocol = urllib3.exceptions.ProtocolError("Connection aborted.", cause)
    wrapped = requests.exceptions.ConnectionError(protocol)
    return docker.errors.DockerException(
        f"Error while fetching server API version: {wrapped}", wrapped
    )


REFUSED = connection_error(PermissionError(13, "Permission denied"))


@pytest.mark.parametrize(
    ("error", "engine", "code", "said"),
    [
        (REFUSED, "docker", "engine_permission", "group `docker`.*rootless podman"),
        (REFUSED, "podman", "engine_permission", "CONTAINER_HOST"),
        (
            connection_error(FileNotFoundError(2, "No such file")),
            "docker",
            "engine_down",
            "No such file.*systemctl start docker",
        ),
        (
            connection_error(ConnectionRefusedError(111, "refused")),
            "docker",
            "engine_down",
            "refused",
        ),
        (requests.exceptions.ReadTimeout("Read timed out."), "docker", "engine_down", "in time"),
        (LaunchError("ours"), "docker", "launch_failed", "^ours$"),
    ],
)
def test_an_error_of_a_connection_says_what_to_do(
    error: Exception, engine: str, code: str, said: str
) -> None:
    found = faults.from_exception(error, doing="answer a ping", engine=engine)
    assert found.code == code
    assert re.search(said, str(found))


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
    assert not faults.is_gone(answer(404, "No such image", docker.errors.ImageNotFound))
