"""What runs of one session have of each other, in which order they go, and how they end."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from bridge.errors import BridgeError, InvalidRequestError
from bridge.runs import Engine
from bridge.sessions.admission import MAX_WAITING
from bridge.settings import Settings
from tests.engine_rig import workshop
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code
from tests.session_rig import reopened, run, told, value, waits_for
from tests.waiting import until, until_exists


async def test_a_server_s_names_are_those_of_the_run_that_uses_them(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend, workshop()) as engine:
        code = "f = lambda: json.dumps(true)\n[(await add(a=1, b=2)).sum, f()]"
        assert await value(engine, code) == [3, "true"]
        code = "import builtins\n[hasattr(builtins, 'ad' + 'd'), f()]"
        assert await value(engine, code) == [False, "true"]
        assert await value(engine, "(await add(a=1, b=3)).sum") == 4


async def test_runs_of_one_session_go_one_after_another_and_others_beside_them(
    engine: Engine, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    order: list[str] = []

    async def queued(name: str, code: str) -> None:
        await run(engine, code)
        order.append(name)

    def waiting() -> int:
        [session] = [each for each in engine.sessions._sessions.values() if each.in_use]
        return len(session._queue)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queued, "first", f"{waits_for(go, said=begun)}seen = ['first']")
        await until_exists(begun)
        with anyio.CancelScope() as given_up:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(queued, "never", "seen.append('never')")
                await until(lambda: waiting() == 1)
                given_up.cancel()
        tasks.start_soon(queued, "second", "seen.append('second')")
        await until(lambda: waiting() == 1)
        tasks.start_soon(queued, "third", "seen.append('third')")
        await until(lambda: waiting() == 2)
        # It could not, had it to wait for the others.
        code = f"open({str(go)!r}, 'w').close()"
        assert (await run(engine, code, session="beside")).status == "success"
    assert order == ["first", "second", "third"]
    assert await value(engine, "seen") == ["first", "second", "third"]


async def test_too_many_waiting_runs_are_refused(engine: Engine, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    refused: list[BridgeError] = []

    async def ask() -> None:
        try:
            await run(engine, "1")
        except BridgeError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, engine, waits_for(go, said=begun))
        await until_exists(begun)
        for _ in range(MAX_WAITING + 3):
            tasks.start_soon(ask)
        await until(lambda: len(refused) == 3)
        assert "side by side" in refused[0].remedy
        go.touch()


async def test_a_crash_loses_the_state_and_says_so(engine: Engine, backend: FakeBackend) -> None:
    result = await run(engine, "kept = 1\nimport os\nos.kill(os.getpid(), 9)")
    assert (result.status, result.reason) == ("error", "crash")
    assert told(result).state == "lost"
    assert told(result).holds == ()
    assert "begins with nothing" in result.error
    again = await run(engine, "'kept' in globals()")
    assert (again.result, told(again).state, told(again).run) == (False, "new", 2)
    assert told(again).note.startswith("What the session held is lost")
    assert backend.launched == 2


async def test_a_client_that_goes_away_interrupts_the_program_and_keeps_the_state(
    engine: Engine, backend: FakeBackend, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    with anyio.CancelScope() as client:
        async with anyio.create_task_group() as tasks:
            code = f"kept = 1\n{waits_for(tmp_path / 'never', said=begun)}"
            tasks.start_soon(run, engine, code)
            await until_exists(begun)
            client.cancel()
    again = await run(engine, "kept")
    assert (again.result, told(again).state, told(again).run) == (1, "kept", 2)
    assert backend.launched == 1


async def test_calls_that_a_program_leaves_are_no_burden_to_the_next(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend, workshop()) as engine:
        code = """
import asyncio
pending = [asyncio.ensure_future(mcp_work_shop.big(size=100_000 * n)) for n in range(20)]
await asyncio.sleep(0)
"""
        result = await run(engine, code)
        assert (result.status, result.usage.tool_calls) == ("success", 20)
        code = "len(await mcp_work_shop.big(size=10))"
        assert [await value(engine, code) for _ in range(3)] == [10, 10, 10]
        assert told(await run(engine, "1")).state == "kept"


async def test_servers_can_be_added_to_a_live_session(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend, workshop(), workshop("annex")) as engine:
        first = await run(engine, "async def add(a, b):\n    return await mcp_work_shop.add(a, b)")
        assert first.servers == ("work-shop",)
        second = await run(engine, "(await mcp_annex.add(1, 2)).sum")
        assert (second.result, second.servers) == (3, ("annex",))
        assert await value(engine, "(await add(20, 22)).sum") == 42
        assert backend.launched == 1


async def test_a_plan_is_no_run_of_a_session(engine: Engine, backend: FakeBackend) -> None:
    with pytest.raises(InvalidRequestError, match="plan"):
        await run(engine, "1", mode="plan")
    assert backend.launched == 0


async def test_sessions_can_be_turned_off(settings: Settings, backend: FakeBackend) -> None:
    async with reopened(settings, backend, sessions=0) as engine:
        with raises_code("session_limit", match="turned off") as refused:
            await run(engine, "1")
        assert "MCP_BRIDGE_SESSIONS" in refused.value.remedy
    assert backend.launched == 0


async def test_a_retry_in_a_session_is_answered_from_the_journal(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend, workshop()) as engine:
        code = "done = globals().get('done', 0) + (await mcp_work_shop.add(1, 2)).sum\n"
        failed = await run(engine, f"{code}1 / 0")
        assert failed.reason == "exception"
        retried = await run(engine, f"{code}done", retry_of=failed.run_id)
        assert retried.result == 6
        assert retried.usage.tool_calls == 0 or retried.receipt is not None
        assert retried.receipt is not None
        assert retried.receipt.replayed == 1
