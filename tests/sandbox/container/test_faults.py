"""Engines' own words become our errors. Every text here was said by a real engine."""

from __future__ import annotations

import docker.errors
import pytest
import requests
import requests.exceptions
import urllib3.exceptions

from bridge.errors import (
    CgroupError,
    EngineDownError,
    EnginePermissionError,
    ImageMissingError,
    ImagePullError,
    LaunchError,
    OciRuntimeError,
    SandboxError,
)
from bridge.sandbox.container import faults

SHIM = "failed to create shim task: OCI runtime create failed: runc create failed: "
START = "unable to start container process: "
RUNC = "runc: runc create failed: " + START

SAID: list[tuple[str, type[SandboxError], str]] = [
    ("No such image: localhost/no-such:1", ImageMissingError, "image build"),
    ("no such image: localhost/no-such:1: image not known", ImageMissingError, "image build"),
    (
        "no such image: docker.io/nosuch/image:1: image not known",
        ImageMissingError,
        "image build",
    ),
    ("Unknown runtime specified bogus", OciRuntimeError, "MCP_BRIDGE_OCI_RUNTIME"),
    (
        'Error: default OCI runtime "bogus" not found: invalid argument',
        OciRuntimeError,
        "MCP_BRIDGE_OCI_RUNTIME",
    ),
    (
        "Error: no valid executable found for OCI runtime /nonexistent/rt: invalid argument",
        OciRuntimeError,
        "MCP_BRIDGE_OCI_RUNTIME",
    ),
    (
        (
            "crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2:"
            " OCI runtime error"
        ),
        CgroupError,
        "MCP_BRIDGE_OCI_RUNTIME=runc and unset CONTAINER_HOST",
    ),
    (
        (
            "[graphdriver] prior storage driver overlay failed: 'overlay' is not supported over"
            " overlayfs, a mount_program is required"
        ),
        OciRuntimeError,
        "podman info",
    ),
    (
        (
            "`/usr/bin/runsc start"
            " 6d898d4edb736d99a1314f8b93971ac96e7c53db125db6ce4c6634326da5ac83`"
            " failed: exit status 128"
        ),
        OciRuntimeError,
        "MCP_BRIDGE_OCI_RUNTIME",
    ),
    (
        SHIM + START + 'exec: "nosuch": executable file not found in $PATH: unknown',
        LaunchError,
        "image build",
    ),
    (
        RUNC + 'exec: "nosuch": executable file not found in $PATH:'
        " OCI runtime attempted to invoke a command that was not found",
        LaunchError,
        "image build",
    ),
    (SHIM + START + 'exec: "/etc/passwd": permission denied: unknown', LaunchError, "image"),
    (RUNC + 'exec: "/etc/passwd": permission denied: OCI permission denied', LaunchError, "image"),
    (
        SHIM + START + "error during container init: error setting rlimits for ready process:"
        " error setting rlimit type 7: operation not permitted: unknown",
        LaunchError,
        "ulimit",
    ),
    (
        RUNC + "error during container init: error setting rlimits for ready process:"
        " error setting rlimit type 7: operation not permitted: OCI permission denied",
        LaunchError,
        "ulimit",
    ),
    ("Minimum memory limit allowed is 6MB", CgroupError, "MCP_BRIDGE_MEMORY"),
    (
        RUNC + "error during container init: error setting cgroup config for procHooks process:"
        " unable to set memory limit to 1000 (current usage: 2404352, peak usage: 2748416):"
        " OCI runtime error",
        CgroupError,
        "MCP_BRIDGE_MEMORY",
    ),
    (
        "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
        CgroupError,
        "MCP_BRIDGE_CPUS",
    ),
    (
        RUNC + "unable to apply cgroup configuration: mkdir"
        " /sys/fs/cgroup/cpuset/foo.slice/bar/libpod-82e1: permission denied:"
        " OCI permission denied",
        CgroupError,
        "Delegate=yes",
    ),
    (
        RUNC + "unable to setup user: setgroups: invalid argument: OCI runtime error",
        LaunchError,
        "/etc/subuid",
    ),
    (
        "unable to find user nosuchuser: no matching entries in passwd file",
        LaunchError,
        "MCP_BRIDGE_CONTAINER_USER",
    ),
    (
        (
            "container create: opening seccomp profile failed: open /nonexistent:"
            " no such file or directory"
        ),
        LaunchError,
        "seccomp",
    ),
    (
        "runc: runc create failed: Cwd must be an absolute path: OCI runtime error",
        OciRuntimeError,
        "MCP_BRIDGE_OCI_RUNTIME",
    ),
]


@pytest.mark.parametrize(("said", "error", "remedy"), SAID, ids=lambda value: str(value)[:40])
def test_what_an_engine_says_is_classified(
    said: str, error: type[SandboxError], remedy: str
) -> None:
    found = faults.from_text(said, doing="start a container", engine="podman")
    assert type(found) is error
    assert remedy in found.remedy
    assert "could not start a container" in found.message


def test_words_never_heard_before_are_passed_on() -> None:
    found = faults.from_text("frobnication\n  failed. ", doing="attach", engine="docker")
    assert type(found) is LaunchError
    assert found.message == "docker could not attach: frobnication failed."
    assert "doctor" in found.remedy


def test_a_pull_that_fails_is_a_pull_that_fails() -> None:
    said = "initializing source docker://python:3.13-slim: pinging container registry"
    found = faults.from_text(said, doing="fetch the image", engine="podman")
    assert type(found) is ImagePullError


def test_long_words_are_cut() -> None:
    found = faults.from_text("x" * 100_000, doing="start", engine="docker")
    assert len(found.message) < 3000


def connection_error(cause: OSError) -> docker.errors.DockerException:
    """Wrap an error as deep as requests, urllib3 and the SDK do."""
    protocol = urllib3.exceptions.ProtocolError("Connection aborted.", cause)
    wrapped = requests.exceptions.ConnectionError(protocol)
    return docker.errors.DockerException(
        f"Error while fetching server API version: {wrapped}", wrapped
    )


def test_a_socket_that_refuses_this_user_says_how_to_be_let_in() -> None:
    error = connection_error(PermissionError(13, "Permission denied"))
    found = faults.from_exception(error, doing="answer a ping", engine="docker")
    assert type(found) is EnginePermissionError
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
