"""One container's removal and end, with an engine that refuses."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.errors import EngineDownError, LaunchError
from bridge.model import Isolation, Json
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.container.api import EngineApi
from bridge.sandbox.container.sandbox import (
    UNEXAMINED,
    ContainerSandbox,
    examination_config,
    exit_report,
    judge_facts,
    lacks_python,
    run_container,
)
from bridge.sandbox.container.stream import AttachedStream
from tests.raised import raises_code

PATIENCE = 120
ISOLATION = Isolation(backend="docker")


class StillEngine(EngineApi):
    """Keeps account of its containers.

    Attributes:
        refusals: Removals that are refused before one succeeds.
        gone: Whether the engine no longer answers.
    """

    def __init__(self, *, refusals: int = 0) -> None:
        self.refusals = refusals
        self.gone = False
        self.containers: set[str] = set()
        self.sockets: list[socket.socket] = []
        self.state: dict[str, Any] | None = {"Running": True, "Status": "running"}

    async def create(self, config: Mapping[str, Json], name: str) -> str:
        await anyio.lowlevel.checkpoint()
        self.containers.add(name)
        return name

    async def attach(self, container: str, *, separately: bool = False) -> AttachedStream:
        await anyio.lowlevel.checkpoint()
        near, far = socket.socketpair()
        near.setblocking(False)
        self.sockets += [near, far]
        return AttachedStream(near, b"")

    async def start(self, container: str) -> None:
        await anyio.lowlevel.checkpoint()

    async def inspect(self, container: str) -> Mapping[str, Json] | None:
        await anyio.lowlevel.checkpoint()
        return None if self.state is None else {"State": self.state}

    async def kill(self, container: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.state = {"Running": False, "Status": "exited", "ExitCode": 137}

    async def remove(self, container: str) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            raise LaunchError("container state improper: stopped")
        if self.gone:
            raise EngineDownError("the engine has gone")
        self.containers.discard(container)

    def close(self) -> None:
        for end in self.sockets:
            end.close()


async def test_a_refused_removal_is_tried_again() -> None:
    engine = StillEngine(refusals=3)
    unremoved: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with run_container(
            engine, "name", {}, isolation=ISOLATION, reports_oom=True, not_removed=unremoved.append
        ):
            assert engine.containers == {"name"}
    assert (engine.containers, unremoved) == (set(), [])
    engine.close()


async def test_what_an_engine_will_not_remove_is_told() -> None:
    engine = StillEngine()
    unremoved: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with run_container(
            engine, "name", {}, isolation=ISOLATION, reports_oom=True, not_removed=unremoved.append
        ):
            engine.gone = True
    assert unremoved == ["name"]
    engine.close()


async def test_waiting_ends_when_the_container_does() -> None:
    engine = StillEngine()
    stream = await engine.attach("c")
    sandbox = ContainerSandbox(engine, "c", stream, isolation=ISOLATION, reports_oom=True)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            reports: list[ExitReport] = []

            async def wait() -> None:
                reports.append(await sandbox.wait())

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await sandbox.kill()
        assert reports == [ExitReport(signal=9, oom_killed=False)]
        engine.state = None
        assert "removed" in (await sandbox.wait()).detail
    stream.close()
    engine.close()


@pytest.mark.parametrize(
    ("state", "reports_oom", "expected"),
    [
        ({"Running": True, "Status": "running", "ExitCode": 0}, True, None),
        ({"Running": False, "Status": "created", "ExitCode": 0}, True, None),
        (
            {"Running": False, "Status": "exited", "ExitCode": 0, "OOMKilled": False},
            True,
            ExitReport(exit_code=0, oom_killed=False),
        ),
        (
            {"Running": False, "Status": "exited", "ExitCode": 3, "OOMKilled": False},
            False,
            ExitReport(exit_code=3),
        ),
        (
            {"Running": False, "Status": "exited", "ExitCode": 137, "OOMKilled": True},
            False,
            ExitReport(signal=9, oom_killed=True),
        ),
        (
            {"Running": False, "Status": "exited", "ExitCode": 139},
            True,
            ExitReport(signal=11, oom_killed=False),
        ),
        (
            {"Running": False, "Status": "exited", "ExitCode": 255},
            True,
            ExitReport(exit_code=255, oom_killed=False),
        ),
        (
            {"Running": False, "Status": "dead", "Error": "why"},
            True,
            ExitReport(oom_killed=False, detail="why"),
        ),
    ],
)
def test_an_engines_state_is_read(
    state: dict[str, Any], reports_oom: bool, expected: ExitReport | None
) -> None:
    assert exit_report(state, reports_oom=reports_oom) == expected


EXAMINED = Isolation(
    backend="podman", layers=("no-capabilities", "sized-tmpfs-noexec", "memory-limit")
)
FACTS: dict[str, Any] = {
    "cap_eff": "0000000000000000",
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": False}},
}


def test_what_holds_is_verified_and_what_does_not_runs_nothing() -> None:
    assert judge_facts(EXAMINED, FACTS).verified == ("no-capabilities", "sized-tmpfs-noexec")
    with raises_code("isolation_broken", match="no-capabilities"):
        judge_facts(EXAMINED, {**FACTS, "cap_eff": "00000000a80425fb"})


def test_an_image_without_python_is_said_not_to_be_looked_into() -> None:
    made = judge_facts(EXAMINED, None)
    assert (made.verified, made.weaker) == ((), (UNEXAMINED,))
    gvisor = Isolation(backend="podman", oci_runtime="runsc", layers=("own-kernel",))
    with raises_code("oci_runtime_broken"):
        judge_facts(gvisor, None)


def test_it_is_the_same_container_but_for_what_it_runs() -> None:
    """No variable is passed on: some are secrets."""
    config = {"Image": "i", "User": "1:1", "Env": ["TOKEN=x"], "Entrypoint": ["aws"], "Cmd": []}
    made = examination_config(
        {**config, "HostConfig": {"ReadonlyRootfs": True}, "WorkingDir": "/workspace/x"}
    )
    assert made["Entrypoint"][0] == "python3"
    assert (made["Env"], made["WorkingDir"]) == ([], "/")
    assert (made["Image"], made["HostConfig"]) == ("i", {"ReadonlyRootfs": True})


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ('exec: "python3": executable file not found in $PATH: unknown', True),
        ("executable file `python3` not found in $PATH: No such file or directory", True),
        ('error finding executable "python3" in PATH', True),
        ("no space left on device", False),
        ("crun: open executable: Permission denied", False),
    ],
)
def test_only_a_missing_python_is_taken_for_one(said: str, lacks: bool) -> None:
    assert lacks_python(said) is lacks
