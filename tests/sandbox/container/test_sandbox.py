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
from bridge.sandbox.container.api import AttachedStream, EngineApi
from bridge.sandbox.container.sandbox import (
    UNEXAMINED,
    ContainerSandbox,
    examination_config,
    exit_report,
    judge_facts,
    lacks_python,
    run_container,
)
from tests.raised import raises_code

ISOLATION = Isolation(backend="docker")


class StillEngine(EngineApi):
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


@pytest.mark.parametrize("gone", [False, True])
async def test_a_refused_removal_is_tried_again_and_a_failed_one_told(gone: bool) -> None:
    engine = StillEngine(refusals=3)
    unremoved: list[str] = []
    async with run_container(
        engine, "name", {}, isolation=ISOLATION, reports_oom=True, not_removed=unremoved.append
    ):
        assert engine.containers == {"name"}
        engine.gone = gone
    assert [*engine.containers] == unremoved == ["name"] * gone
    engine.close()


async def test_waiting_ends_when_the_container_does() -> None:
    engine = StillEngine()
    stream = await engine.attach("c")
    sandbox = ContainerSandbox(engine, "c", stream, isolation=ISOLATION, reports_oom=True)
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
    ("state", "oom", "expected"),
    [
        ({"ExitCode": 0}, False, ExitReport(exit_code=0, oom_killed=False)),
        ({"ExitCode": 3}, None, ExitReport(exit_code=3)),
        ({"ExitCode": 137, "OOMKilled": True}, None, ExitReport(signal=9, oom_killed=True)),
        ({"ExitCode": 139}, False, ExitReport(signal=11, oom_killed=False)),
        ({"ExitCode": 255}, False, ExitReport(exit_code=255, oom_killed=False)),
        ({"Error": "why"}, False, ExitReport(oom_killed=False, detail="why")),
    ],
)
def test_an_engines_state_is_read(
    state: dict[str, Any], oom: bool | None, expected: ExitReport
) -> None:
    ended = {"Running": False, "Status": "exited", **state}
    assert exit_report(ended, reports_oom=oom is not None) == expected
    for alive in ({"Running": True}, {"Status": "created"}):
        assert exit_report({**ended, **alive}, reports_oom=True) is None


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
    # Without Python in the image there are no facts.
    made = judge_facts(EXAMINED, None)
    assert (made.verified, made.weaker) == ((), (UNEXAMINED,))
    gvisor = Isolation(backend="podman", oci_runtime="runsc", layers=("own-kernel",))
    with raises_code("oci_runtime_broken"):
        judge_facts(gvisor, None)


def test_it_is_the_same_container_but_for_what_it_runs() -> None:
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
