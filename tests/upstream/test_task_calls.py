"""Tools that their servers run as tasks, in the form of each era."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from bridge.errors import CallTimeoutError, CannotAskError, ToolCallError
from bridge.upstream.client_features import on_behalf_of
from tests.upstream.rig import SERVERS, Rig, wait_file
from tests.upstream.test_client_features import FakeCaller
from tests.upstream.test_offers import EVERYTHING
from tests.waiting import PATIENCE_SECONDS, until

ERAS = pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])


class Tasker:
    """A server that runs its tool as tasks, and the methods of its requests."""

    def __init__(self, rig: Rig, version: str) -> None:
        self.log = rig.path("asked")
        self.spec = rig.spec(sys.executable, str(SERVERS / "tasker.py"), version, self.log)

    def methods(self) -> list[str]:
        return Path(self.log).read_text().split()

    def forget(self) -> None:
        Path(self.log).unlink()


@ERAS
async def test_the_result_or_failure_of_a_task_is_that_of_the_call(rig: Rig, version: str) -> None:
    async with rig.pool(Tasker(rig, version).spec) as pool:
        for _ in range(2):
            result = await pool.call_tool("server", "work", {"ends": "well"})
            assert result["content"][0]["text"] == "done"
        with pytest.raises(ToolCallError, match="no luck") as caught:
            await pool.call_tool("server", "work", {"ends": "badly"})
        assert not caught.value.doubtful


@ERAS
async def test_a_task_that_takes_too_long_is_cancelled(rig: Rig, version: str) -> None:
    server = Tasker(rig, version)
    async with rig.pool(server.spec) as pool:
        with pytest.raises(CallTimeoutError):
            await pool.call_tool("server", "work", {"ends": "never"}, timeout=1)
        assert "tasks/cancel" in server.methods()
        server.forget()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call_tool, "server", "work", {"ends": "never"})
            await wait_file(server.log)
            await until(lambda: bool({"tasks/result", "tasks/get"} & {*server.methods()}))
            tasks.cancel_scope.cancel()
        assert "tasks/cancel" in server.methods()


async def test_a_task_that_wants_to_know_something_asks_the_caller(rig: Rig) -> None:
    server = Tasker(rig, "2026-07-28")
    async with rig.pool(server.spec) as pool:
        with pytest.raises(CannotAskError, match="does not belong to a run"):
            await pool.call_tool("server", "work", {"ends": "asks"})
        assert server.methods()[-1] == "tasks/cancel"
        caller = FakeCaller("me")
        with on_behalf_of(caller):
            result = await pool.call_tool("server", "work", {"ends": "asks"})
        assert result["content"][0]["text"] == "done me"
        assert len(caller.asked) == 1


WORK = "trigger-long-running-operation"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_moves_a_calls_limit(rig: Rig, wanted: bool) -> None:
    caller = FakeCaller()
    caller.wants_progress = wanted
    async with rig.pool(rig.spec("node", str(EVERYTHING), "stdio")) as pool:
        await pool.server("server").start()
        with on_behalf_of(caller), anyio.fail_after(PATIENCE_SECONDS):
            result = await pool.call_tool("server", WORK, {"duration": 4, "steps": 16}, timeout=2.0)
            assert "completed" in result["content"][0]["text"]
            assert bool(caller.reported) is wanted
            with pytest.raises(CallTimeoutError, match="within 1 s"):
                await pool.call_tool("server", WORK, {"duration": 3600, "steps": 1}, timeout=1.0)
            endless = {"duration": 3600, "steps": 72_000}
            with pytest.raises(CallTimeoutError, match="did not answer"):
                await pool.call_tool("server", WORK, endless, timeout=0.5)
