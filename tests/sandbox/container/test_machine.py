"""Bringing a podman machine up and stopping it, with podman's part from recordings."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container import machine
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.connection import Connector
from bridge.sandbox.container.machine import (
    Action,
    MachineContext,
    MachinePlan,
    PodmanMachine,
    concerns_machine,
    decide,
    ensure_machine,
    failure,
)
from tests.raised import raises_code

RECORDINGS = Path(__file__).parents[2] / "testdata" / "podman_machine"
MACHINE = "podman-machine-default"


def read_recording(name: str) -> CompletedCommand:
    value = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    return CompletedCommand(
        exit_code=value["exit_code"],
        stdout="\n".join(value["stdout"]),
        stderr="\n".join(value["stderr"]),
    )


def plan(info: str, machines: str, connections: str, platform: str) -> MachinePlan:
    if not concerns_machine(platform, {}, read_recording(info)):
        return MachinePlan("none")
    return decide(
        platform, read_recording(info), read_recording(connections), read_recording(machines)
    )


@pytest.mark.parametrize(
    ("info", "machines", "connections", "action"),
    [
        ("macos_info_ok", "macos_list_running", "macos_connections", "ready"),
        ("macos_info_ok", "macos_list_stopped", "macos_connections", "ready"),
        ("macos_info_ok", "macos_list_stopped", "connections_remote_engine", "none"),
        ("macos_info_refused", "macos_list_stopped", "macos_connections", "start"),
        ("macos_info_refused", "macos_list_running", "macos_connections", "wait"),
        ("macos_info_refused", "macos_list_starting", "macos_connections", "wait"),
        ("macos_info_no_connection", "macos_list_stopped", "linux_connections_empty", "start"),
        ("macos_info_no_connection", "macos_list_starred", "linux_connections_empty", "wait"),
        # A local podman needs no machine, even if it is broken.
        ("linux_info_local", "linux_list_stopped", "linux_connections_machine", "none"),
        ("start_vfkit_exit", "linux_list_stopped", "linux_connections_machine", "none"),
        ("linux_info_remote_no_socket", "linux_list_stopped", "linux_connections_machine", "start"),
    ],
)
def test_the_next_step_follows_from_what_podman_says(
    info: str, machines: str, connections: str, action: Action
) -> None:
    platform = "darwin" if info.startswith("macos") else "linux"
    expected = MachinePlan(action, MACHINE if action != "none" else "")
    assert plan(info, machines, connections, platform) == expected


@pytest.mark.parametrize(
    ("info", "machines", "connections", "error"),
    [
        (
            "linux_info_remote_no_socket",
            "linux_list_empty",
            "linux_connections_empty",
            "no such file or directory.*podman system connection list",
        ),
        (
            "macos_info_refused",
            "macos_list_stopped",
            "connections_remote_engine",
            "connection refused.*podman system connection list",
        ),
        (
            "macos_info_no_connection",
            "macos_list_two_none_default",
            "linux_connections_empty",
            "work, play",
        ),
    ],
)
def test_no_machine_replaces_another_engine_and_none_is_made_or_guessed(
    info: str, machines: str, connections: str, error: str
) -> None:
    platform = "darwin" if info.startswith("macos") else "linux"
    with pytest.raises(EngineDownError, match=error):
        plan(info, machines, connections, platform)


def test_the_default_machine_is_used_though_its_marked_connection_is_for_root() -> None:
    rows = json.loads(read_recording("macos_connections").stdout)
    rows[0]["Default"], rows[1]["Default"] = False, True
    connections = CompletedCommand(exit_code=0, stdout=json.dumps(rows))
    info, machines = read_recording("macos_info_refused"), read_recording("macos_list_stopped")
    assert decide("darwin", info, connections, machines) == MachinePlan("start", MACHINE)


@pytest.mark.parametrize("variable", ["CONTAINER_HOST", "CONTAINER_CONNECTION"])
def test_an_engine_named_in_the_environment_is_not_replaced_by_a_machine(variable: str) -> None:
    env = {variable: "ssh://user@build.example/run/podman.sock"}
    assert not concerns_machine("darwin", env, read_recording("macos_info_refused"))


def test_a_missing_podman_is_its_own_error() -> None:
    with raises_code("engine_not_found"):
        concerns_machine("darwin", {}, CompletedCommand(exit_code=None, missing=True))


def test_a_podman_that_hangs_is_not_taken_for_a_stopped_machine() -> None:
    hung = CompletedCommand(exit_code=None, timed_out=True)
    machines = read_recording("macos_list_running")
    with pytest.raises(EngineDownError, match="did not answer in time"):
        decide("darwin", hung, read_recording("macos_connections"), machines)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, "no JSON list") for text in ("", "no machines", '{"Name": "x"}', "[" * 100_000)),
        *((text, "no machine") for text in ("[]", "null", '[1, {}, {"Name": ""}, {"Name": 3}]')),
    ],
)
def test_only_machines_of_a_list_count(text: str, error: str) -> None:
    info, connections = (
        read_recording("macos_info_refused"),
        read_recording("linux_connections_empty"),
    )
    with pytest.raises(EngineDownError, match=error):
        decide("darwin", info, connections, CompletedCommand(exit_code=0, stdout=text))


def test_a_command_that_takes_too_long_says_which() -> None:
    error = failure(CompletedCommand(exit_code=None, timed_out=True), "start", MACHINE)
    assert f"podman machine start {MACHINE}" in error.message
    assert "in time" in error.message


@dataclass
class FakePodman(SystemRunner):
    """A Mac's podman: a machine with a state, answers from recordings, and a log of commands."""

    state: str = "stopped"  # "absent", "stopped", "starting" or "running".
    # Recordings that those commands answer with.
    start: str = "start_ok"
    stop: str = "stop_ok"
    ps: str = "ps_empty"
    inspect: str = "macos_ps_unreachable"
    booting: int = 0  # Questions that a machine in state "starting" stays in it for.
    # Called before a command takes effect, by its verb.
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    async def __call__(self, argv: Sequence[str], **options: Any) -> CompletedCommand:
        assert options["timeout"] > 0
        await anyio.lowlevel.checkpoint()
        words = " ".join(argv[1:])
        if words.startswith("info"):
            return self._info()
        if words == "--version":
            return CompletedCommand(exit_code=0, stdout="podman version 5.6.0")
        absent = self.state == "absent"
        if words.startswith("system connection list"):
            return read_recording("linux_connections_empty" if absent else "macos_connections")
        if words.startswith("machine list"):
            return read_recording("linux_list_empty" if absent else f"macos_list_{self.state}")
        self.told.append(words)
        verb = "ps" if words.startswith("ps") else words.split()[1]
        self.before.pop(verb, lambda: None)()
        result = read_recording(str(getattr(self, verb)))
        if on_line := options.get("on_line"):
            for line in result.stdout.splitlines():
                on_line(line)
        if result.ok:
            self.state = {"start": "running", "stop": "stopped"}.get(verb, self.state)
        return result

    def _info(self) -> CompletedCommand:
        self.booting -= self.state == "starting"
        if self.state == "starting" and self.booting <= 0:
            self.state = "running"
        said = {"running": "macos_info_ok", "absent": "macos_info_no_connection"}
        return read_recording(said.get(self.state, "macos_info_refused"))


class Clock:
    """Time that passes when somebody sleeps, and only then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.now += seconds
        self.slept += 1


def context(podman: FakePodman, clock: Clock | None = None, **more: Any) -> MachineContext:
    clock = clock or Clock()
    given: dict[str, Any] = {"idle_timeout": 300.0, "clock": clock, "sleep": clock.sleep, **more}
    return MachineContext(run=podman, platform="darwin", **given)


async def use(podman: FakePodman, clock: Clock | None = None, **more: Any) -> PodmanMachine:
    found = await ensure_machine(context(podman, clock, **more))
    assert found is not None
    return found


@asynccontextmanager
async def idle_machine(
    podman: FakePodman, clock: Clock, **more: Any
) -> AsyncIterator[PodmanMachine]:
    found = await use(podman, clock, **more)
    async with idling(found):
        yield found
    await found.aclose()


@asynccontextmanager
async def idling(found: PodmanMachine) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.stop_when_idle)
        yield
        tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


async def test_a_stopped_machine_is_started_and_nothing_else() -> None:
    podman = FakePodman()
    found = await use(podman)
    assert found.started_by_us
    assert podman.told == [f"machine start {MACHINE}"]


async def test_a_machine_that_is_coming_up_is_waited_for_and_stays_its_starters() -> None:
    podman = FakePodman(state="starting", booting=5)
    found = await use(podman)
    assert not found.started_by_us
    assert podman.told == []


async def test_a_lost_race_to_start_is_not_an_error_and_not_ours() -> None:
    podman = FakePodman(start="start_already_running_5", booting=4)
    podman.before["start"] = lambda: setattr(podman, "state", "starting")
    found = await use(podman)
    assert not found.started_by_us
    assert podman.told == [f"machine start {MACHINE}"]


async def test_a_machine_that_never_answers_is_given_up_after_a_bounded_number_of_looks() -> None:
    clock = Clock()
    podman = FakePodman(state="starting", booting=10**9)
    with pytest.raises(EngineDownError, match="does not become ready"):
        await use(podman, clock)
    assert clock.slept == machine.READY_POLLS


@pytest.mark.parametrize(
    ("podman", "remedy"),
    [
        (FakePodman(state="absent"), "podman machine init"),
        (FakePodman(start="start_vfkit_exit"), "yourself"),
        (FakePodman(start="start_other_running_5_6"), "podman machine stop NAME"),
    ],
)
async def test_a_refusal_reaches_the_user_with_its_remedy(podman: FakePodman, remedy: str) -> None:
    with pytest.raises(EngineDownError) as caught:
        await use(podman)
    assert remedy in caught.value.remedy


async def test_the_machines_socket_is_asked_for() -> None:
    found = await use(FakePodman(inspect="inspect_socket"))
    assert (await found.endpoint()).url == "unix:///var/folders/x/podman-api.sock"
    with pytest.raises(EngineDownError, match="podman machine inspect"):
        await (await use(FakePodman())).endpoint()


async def test_the_start_of_a_machine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await (await use(FakePodman())).aclose()
    assert f"podman machine start {MACHINE}" in caplog.messages


async def test_an_idle_time_of_0_never_stops_a_machine() -> None:
    podman = FakePodman()
    async with idle_machine(podman, Clock(), idle_timeout=math.inf, sleep=anyio.sleep):
        await anyio.wait_all_tasks_blocked()
        assert podman.state == "running"


async def test_a_machine_of_ours_is_stopped_after_the_idle_time() -> None:
    podman, clock = FakePodman(), Clock()
    drained: list[str] = []

    async def drain() -> None:
        drained.append(podman.state)

    began = clock()
    async with idle_machine(podman, clock) as found:
        found.before_stop = drain
        await until(lambda: podman.state == "stopped")
        assert clock() - began >= 300
        assert drained == ["running"]
        assert podman.told[-1] == f"machine stop {MACHINE}"
        # The next run brings it up again, and it is ours again.
        async with found.using():
            assert podman.state == "running"
            assert found.started_by_us
    await found.aclose()
    assert podman.told.count(f"machine stop {MACHINE}") == 2


async def test_a_machine_of_the_users_is_never_stopped() -> None:
    podman, clock = FakePodman(state="running"), Clock()
    async with idle_machine(podman, clock) as found:
        assert not found.started_by_us
        await until(lambda: clock.slept > 10)
    assert podman.told == []


async def test_a_run_in_progress_keeps_the_machine_up_however_long_it_takes() -> None:
    podman, clock = FakePodman(), Clock()
    async with idle_machine(podman, clock) as found:
        async with found.using():
            await until(lambda: clock.slept > 10)
            assert podman.state == "running"
        await until(lambda: podman.state == "stopped")


async def test_a_run_that_arrives_during_the_stop_finds_the_machine_up_again() -> None:
    podman, stopping = FakePodman(), anyio.Event()
    podman.before["stop"] = stopping.set
    async with idle_machine(podman, Clock()) as found:
        await stopping.wait()
        async with found.using():
            assert podman.state == "running"


@pytest.mark.parametrize("ps", ["ps_one", "macos_ps_unreachable"])
async def test_a_machine_that_may_run_somebodys_containers_is_not_stopped(ps: str) -> None:
    podman = FakePodman(ps=ps)
    async with idle_machine(podman, Clock()):
        await until(lambda: podman.told.count("ps --quiet") >= 2)
    assert podman.state == "running"


async def test_a_bridge_does_not_stop_the_machine_under_another() -> None:
    podman, clock = FakePodman(ps="ps_one"), Clock()
    first, second = await use(podman, clock), await use(podman, clock)
    assert (first.started_by_us, second.started_by_us) == (True, False)
    async with idling(first):
        await until(lambda: podman.told.count("ps --quiet") >= 2)
        assert podman.state == "running"
        podman.ps = "ps_empty"
        await until(lambda: podman.state == "stopped")
    second.lost()
    async with second.using():
        assert podman.state == "running"
        assert second.started_by_us
    await first.aclose()
    assert podman.state == "running"
    await second.aclose()
    assert podman.state == "stopped"


async def test_a_machine_that_another_bridge_stopped_is_started_when_it_is_connected_to(
    tmp_path: Path,
) -> None:
    podman = FakePodman(state="running")
    connector = Connector(
        engine="podman",
        runtime_dir=tmp_path,
        environ={},
        oci_runtime=None,
        context=context(podman),
        run=podman,
    )
    with pytest.raises(SandboxError):
        await connector.ensure_connection()
    assert connector.machine is not None
    podman.state = "stopped"
    connector.machine.lost()
    with pytest.raises(SandboxError):
        await connector.ensure_connection()
    assert f"machine start {MACHINE}" in podman.told
    await connector.aclose()


async def test_a_failed_stop_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    async with idle_machine(FakePodman(stop="stop_failed"), Clock()):
        await until(lambda: "was not stopped" in caplog.text)
    assert "left running" in caplog.text


async def test_a_machine_that_somebody_restarted_is_no_longer_ours() -> None:
    podman = FakePodman()
    found = await use(podman)
    podman.state = "stopped"  # by hand, and started again
    podman.state = "running"
    found.lost()
    async with found.using():
        assert not found.started_by_us
    await found.aclose()
    assert podman.state == "running"


async def test_a_cancelled_start_leaves_nothing() -> None:
    podman = FakePodman()
    with anyio.CancelScope() as scope:
        podman.before["start"] = scope.cancel
        await use(podman)
    assert scope.cancelled_caught
    assert podman.state == "stopped"
