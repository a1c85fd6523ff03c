"""What is decided from podman's recorded words, without running anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bridge.errors import EngineDownError
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.machine import (
    Action,
    MachinePlan,
    concerns_machine,
    decide,
    failure,
)
from tests.raised import raises_code

RECORDINGS = Path(__file__).parents[2] / "testdata" / "podman_machine"
MACHINE = "podman-machine-default"


def recorded(name: str) -> CompletedCommand:
    value = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    return CompletedCommand(
        exit_code=value["exit_code"],
        stdout="\n".join(value["stdout"]),
        stderr="\n".join(value["stderr"]),
    )


def planned(
    info: str,
    machines: str = "linux_list_empty",
    connections: str = "macos_connections",
    *,
    platform: str = "darwin",
    env: Mapping[str, str] | None = None,
) -> MachinePlan:
    if not concerns_machine(platform, env or {}, recorded(info)):
        return MachinePlan("none")
    return decide(platform, recorded(info), recorded(connections), recorded(machines))


@pytest.mark.parametrize(
    ("info", "machines", "connections", "plan"),
    [
        ("macos_info_ok", "macos_list_running", "macos_connections", "ready"),
        ("macos_info_ok", "macos_list_stopped", "macos_connections", "ready"),
        ("macos_info_refused", "macos_list_stopped", "macos_connections", "start"),
        ("macos_info_refused", "macos_list_running", "macos_connections", "wait"),
        ("macos_info_refused", "macos_list_starting", "macos_connections", "wait"),
        ("macos_info_no_connection", "macos_list_stopped", "linux_connections_empty", "start"),
        ("macos_info_no_connection", "macos_list_starred", "linux_connections_empty", "wait"),
    ],
)
def test_the_next_step_on_macos_follows_from_what_podman_says(
    info: str, machines: str, connections: str, plan: Action
) -> None:
    assert planned(info, machines, connections) == MachinePlan(plan, MACHINE)


def test_the_default_machine_is_used_though_its_marked_connection_is_for_root() -> None:
    rows = json.loads(recorded("macos_connections").stdout)
    rows[0]["Default"], rows[1]["Default"] = False, True
    connections = CompletedCommand(exit_code=0, stdout=json.dumps(rows))
    info, machines = recorded("macos_info_refused"), recorded("macos_list_stopped")
    assert decide("darwin", info, connections, machines) == MachinePlan("start", MACHINE)


@pytest.mark.parametrize("info", ["linux_info_local", "start_vfkit_exit"])
def test_linux_with_its_own_engine_never_touches_a_machine(info: str) -> None:
    """Whether the local podman works or is broken, a machine would not be the cure."""
    plan = planned(info, "linux_list_stopped", "linux_connections_machine", platform="linux")
    assert plan == MachinePlan("none")


def test_linux_in_remote_mode_starts_the_machine_it_is_connected_to() -> None:
    plan = planned(
        "linux_info_remote_no_socket",
        "linux_list_stopped",
        "linux_connections_machine",
        platform="linux",
    )
    assert plan == MachinePlan("start", MACHINE)


def test_linux_in_remote_mode_never_initialises_a_machine() -> None:
    with pytest.raises(EngineDownError, match="no such file or directory"):
        planned(
            "linux_info_remote_no_socket",
            "linux_list_empty",
            "linux_connections_empty",
            platform="linux",
        )


@pytest.mark.parametrize("variable", ["CONTAINER_HOST", "CONTAINER_CONNECTION"])
def test_an_engine_named_in_the_environment_is_not_replaced_by_a_machine(variable: str) -> None:
    env = {variable: "ssh://user@build.example/run/podman.sock"}
    assert planned("macos_info_refused", "macos_list_stopped", env=env) == MachinePlan("none")


def test_a_default_connection_to_another_computer_is_not_replaced_by_a_machine() -> None:
    with pytest.raises(EngineDownError, match="connection refused") as caught:
        planned("macos_info_refused", "macos_list_stopped", "connections_remote_engine")
    assert "podman system connection list" in caught.value.remedy
    up = planned("macos_info_ok", "macos_list_stopped", "connections_remote_engine")
    assert up == MachinePlan("none")


def test_among_several_machines_without_a_default_none_is_guessed() -> None:
    with pytest.raises(EngineDownError, match="work, play"):
        planned(
            "macos_info_no_connection", "macos_list_two_none_default", "linux_connections_empty"
        )


def test_a_missing_podman_is_its_own_error() -> None:
    with raises_code("engine_not_found"):
        concerns_machine("darwin", {}, CompletedCommand(exit_code=None, missing=True))


def test_a_podman_that_hangs_is_not_taken_for_a_stopped_machine() -> None:
    hung = CompletedCommand(exit_code=None, timed_out=True)
    machines = recorded("macos_list_running")
    with pytest.raises(EngineDownError, match="did not answer in time"):
        decide("darwin", hung, recorded("macos_connections"), machines)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, "no JSON list") for text in ("", "no machines", '{"Name": "x"}', "[" * 100_000)),
        *((text, "no machine") for text in ("[]", "null", '[1, {}, {"Name": ""}, {"Name": 3}]')),
    ],
)
def test_only_machines_of_a_list_count(text: str, error: str) -> None:
    info, connections = recorded("macos_info_refused"), recorded("linux_connections_empty")
    with pytest.raises(EngineDownError, match=error):
        decide("darwin", info, connections, CompletedCommand(exit_code=0, stdout=text))


def test_a_command_that_takes_too_long_says_which() -> None:
    error = failure(CompletedCommand(exit_code=None, timed_out=True), "start", MACHINE)
    assert f"podman machine start {MACHINE}" in error.message
    assert "in time" in error.message
