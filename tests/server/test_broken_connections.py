"""A run over HTTP whose client's connection breaks, and what its owner reads of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError

from bridge.runs import Engine
from bridge.runs.suspended_runs import SuspendedRun
from tests.asker_rig import asker, call, text_of
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.server.web_rig import Proxy, connected, web
from tests.waiting import until

ERAS = ["legacy", "2026-07-28"]
TASK = """
import pathlib, time
print("begun " * 3000, flush=True)
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
"""
ASKS = """
try:
    await mcp_asker.name()
except MCPError as error:
    print("not asked:", error)
6 * 7
"""


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(asker())


@asynccontextmanager
async def begun(
    engine: Engine, url: str, code: str, *, progress: bool = True, era: str = "legacy"
) -> AsyncIterator[tuple[SuspendedRun, anyio.CancelScope]]:
    """Have a client start a run; yield it once the client has its id, before anything else."""
    first: list[str] = []
    came = anyio.Event()

    async def log(params: Any) -> None:
        hear(params.data)

    async def report(progress: float, total: float | None, message: str | None) -> None:
        hear(message)

    def hear(text: Any) -> None:
        first.append(str(text))
        came.set()

    async def start(client: Client) -> None:
        callback = report if progress else None
        with suppress(MCPError, httpx2.TransportError):
            await client.call_tool("run_python", {"code": code}, progress_callback=callback)

    async with connected(url, "mine", era, logging_callback=log) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start, client)
                await came.wait()
                (run,) = engine.suspended.runs()
                assert run.run_id in first[0]
                yield run, scope


async def read(client: Client, run: SuspendedRun, stream: str = "stdout") -> str:
    while True:
        code = f"print(await runtime.read_output({run.run_id!r}, {stream!r}))"
        text = text_of(await call(client, code))
        if "is kept" not in text:
            return text


@pytest.mark.parametrize(("reset", "progress"), [(False, True), (True, False)])
async def test_a_run_goes_on_without_its_connection_and_its_owner_reads_the_result(
    engine: Engine, tmp_path: Path, reset: bool, progress: bool
) -> None:
    go, proxy = tmp_path / "go", Proxy()
    code = TASK.format(go=str(go)) + ASKS
    async with (
        web(engine) as url,
        proxy.before(url) as near,
        begun(engine, near, code, progress=progress) as (run, _),
    ):
        proxy.cut(reset=reset)
        async with connected(url, "mine") as mine, connected(url, "yours") as yours:
            go.touch()
            result = await read(mine, run, "result")
            assert result.count("begun") > 100
            assert "not asked:" in result
            assert "42" in result
            assert (await read(mine, run)).count("begun") > 100
            for stream in ("stdout", "result"):
                code = f"await runtime.read_output({run.run_id!r}, {stream!r})"
                assert "is kept" in text_of(await call(yours, code))


async def test_a_run_whose_connection_broke_can_be_waited_for(
    engine: Engine, tmp_path: Path
) -> None:
    go, proxy = tmp_path / "go", Proxy()
    async with (
        web(engine) as url,
        proxy.before(url) as near,
        begun(engine, near, TASK.format(go=str(go))) as (run, _),
    ):
        proxy.cut(reset=True)
        async with connected(url, "mine") as mine, connected(url, "yours") as yours:
            waiting = {"retry_of": run.run_id}
            refused = await yours.call_tool("run_python", waiting)
            assert "There is no such task" in text_of(refused)
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    assert "begun" in text_of(await mine.call_tool("run_python", waiting))

                tasks.start_soon(wait)
                await until(lambda: run.followers == 2)
                go.touch()


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cancels_ends_its_run(
    engine: Engine, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
    """With `notifications/cancelled`; since 2026-07-28, by ending the connection."""
    async with web(engine) as url:
        code = TASK.format(go=str(tmp_path / "go"))
        async with begun(engine, url, code, era=era) as (run, scope):
            scope.cancel()
        await until(lambda: not backend.live and not engine.suspended.live)
        async with connected(url, "mine", era) as mine:
            code = f"await runtime.read_output({run.run_id!r}, 'result')"
            assert "is kept" in text_of(await call(mine, code))


async def test_a_result_that_its_client_got_is_not_kept(engine: Engine) -> None:
    async with web(engine) as url, connected(url, "mine") as mine:
        assert "42" in text_of(await call(mine, "6 * 7"))
    assert engine.artifacts.listed(None) == ()
