"""One container's life, with an engine that stands still wherever a test wants it to."""

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
from bridge.sandbox.container.sandbox import ContainerSandbox, exit_report, run_container
from bridge.sandbox.container.stream import AttachedStream

PATIENCE = 120
ISOLATION = Isolation(backend="docker")


class Response:
    def close(self) -> None:
        pass


class StillEngine(EngineApi):
    """Keeps account of its containers, and waits in the call named `at`.

    Attributes:
        after: Whether it waits after it has done what was asked.
        refusals: Removals that are refused before one succeeds.
    """

    def __init__(self, at: str = "", *, after: bool = False, refusals: int = 0) -> None:
        self.at = at
        self.after = after
        self.refusals = refusals
        self.fails = ""
        self.reached = anyio.Event()
        self.containers: set[str] = set()
        self.sockets: list[socket.socket] = []
        self.state: dict[str, Any] | None = {"Running": True, "Status": "running"}

    async def _enter(self, call: str) -> None:
        if self.fails == call:
            message = f"{call} failed"
            raise LaunchError(message)
        if self.at == call and not self.after:
            await self._stand()

    async def _leave(self, call: str) -> None:
        if self.at == call and self.after:
            await self._stand()

    async def _stand(self) -> None:
        self.reached.set()
        await anyio.sleep_forever()

    async def create(self, config: Mapping[str, Json], name: str) -> str:
        await self._enter("create")
        self.containers.add(name)
        await self._leave("create")
        return name

    async def attach(self, container: str) -> AttachedStream:
        await self._enter("attach")
        near, far = socket.socketpair()
        near.setblocking(False)
        self.sockets += [near, far]
        return AttachedStream(near, b"")

    async def attach_separately(self, container: str) -> AttachedStream:
        return await self.attach(container)

    async def start(self, container: str) -> None:
        await self._enter("start")
        await self._leave("start")

    async def inspect(self, container: str) -> Mapping[str, Json] | None:
        await self._enter("inspect")
        return None if self.state is None else {"State": self.state}

    async def kill(self, container: str) -> None:
        await self._enter("kill")
        self.state = {"Running": False, "Status": "exited", "ExitCode": 137}

    async def remove(self, container: str) -> bool:
        await anyio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            message = "container state improper: stopped"
            raise LaunchError(message)
        if self.fails == "remove":
            message = "the engine has gone"
            raise EngineDownError(message)
        was_there = container in self.containers
        self.containers.discard(container)
        return was_there

    def close(self) -> None:
        for end in self.sockets:
            end.close()


async def live(engine: StillEngine, unremoved: list[str] | None = None, *, call: str = "") -> None:
    """Go through a container's life, with one use of the sandbox in the middle."""
    kept = unremoved if unremoved is not None else []
    async with run_container(
        engine, "name", {}, isolation=ISOLATION, reports_oom=True, not_removed=kept.append
    ) as sandbox:
        if call:
            engine.at = {"wait": "inspect"}.get(call, call)
            await getattr(sandbox, call)()
        else:
            engine.reached.set()
            await anyio.sleep_forever()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["create", "attach", "start", "body", "kill", "wait", "receive"])
async def test_cancelled_at_each_await_the_container_goes(at: str, after: bool) -> None:
    """No await of a sandbox's life may lose a container (law 3)."""
    in_use = at if at in ("kill", "wait", "receive") else ""
    engine = StillEngine("" if in_use else at, after=after and not in_use)
    unremoved: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await live(engine, unremoved, call=in_use)

            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert engine.containers == set()
    assert unremoved == []
    assert all(end.fileno() == -1 for end in engine.sockets[::2]), "the stream was left open"
    engine.close()


@pytest.mark.parametrize("call", ["create", "attach", "start"])
async def test_a_step_that_fails_leaves_nothing(call: str) -> None:
    """The engine's error comes out; what was made before it goes."""
    engine = StillEngine()
    engine.fails = call
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match=call):
        await live(engine)
    assert engine.containers == set()
    engine.close()


async def test_a_refused_removal_is_tried_again() -> None:
    """podman refuses while a container is just ending."""
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
    """Somebody must try later."""
    engine = StillEngine()
    unremoved: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with run_container(
            engine, "name", {}, isolation=ISOLATION, reports_oom=True, not_removed=unremoved.append
        ):
            engine.fails = "remove"
    assert unremoved == ["name"]
    engine.close()


async def test_waiting_ends_when_the_container_does() -> None:
    """However the end comes about."""
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
    """Codes, signals and memory, as docker and podman write them."""
    assert exit_report(state, reports_oom=reports_oom) == expected
