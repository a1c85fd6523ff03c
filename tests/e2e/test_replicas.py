"""Several bridges as one service: drained, killed and replaced under clients that go on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError

from tests.e2e.fleet_rig import Fleet, balanced, fleet
from tests.e2e.rig import document_of, text_of
from tests.processes import processes
from tests.server.pipe_rig import hello
from tests.waiting import until, until_exists

PATIENCE_SECONDS = 300.0

HEADERS = {"accept": "application/json, text/event-stream"}


def holding(begun: Path, go: Path, what: str) -> str:
    """Return a program that writes, waits for a file, and writes again."""
    return (
        f"await mcp_keeper.keep(id='{what}-before')\n"
        f"await mcp_keeper.hold(begun={str(begun)!r}, until={str(go)!r})\n"
        f"await mcp_keeper.keep(id='{what}-after')\n'whole'"
    )


async def run(client: Client, code: str, **more: Any) -> dict[str, Any]:
    arguments = {"code": code, "servers": ["keeper"], **more}
    return document_of(await client.call_tool("run_python", arguments))


async def value(client: Client, code: str, **more: Any) -> Any:
    record = await run(client, code, **more)
    assert record["status"] == "success", record
    return record.get("result")


@pytest.mark.slow
async def test_a_replica_says_what_it_is_and_what_is_missing(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a") as made, httpx2.AsyncClient() as web:
        bridge = made.bridges["a"]
        alive = await web.get(f"{bridge.url}/healthz", headers={"host": "10.0.0.1:8000"})
        assert (alive.status_code, alive.text) == (200, "ok\n")
        told = await bridge.ready()
        assert (told["status"], told["ready"], told["replica"]) == (200, True, "a")
        assert (told["missing"], told["impaired"]) == ([], [])
        numbers = (await web.get(f"{bridge.url}/metrics")).text
        assert "mcp_code_bridge_runs_queued 0" in numbers.splitlines()
        # All else is as guarded as ever.
        evil = {"host": "evil.example", **HEADERS}
        refused = await web.post(f"{bridge.url}/mcp", json=hello("2025-06-18"), headers=evil)
        assert refused.status_code == 421
        store = tmp_path / "state" / "mcp-code-bridge" / "store.db"
        for file in store.parent.glob("store.db*"):
            file.unlink()
        store.write_bytes(b"no database " * 1000)
        with anyio.fail_after(PATIENCE_SECONDS):
            told = await bridge.until_ready(503)
        assert (told["ready"], told["missing"]) == (False, ["store"])


async def test_a_drain_lets_runs_end_and_begins_none(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    results: list[Any] = []

    async def whole(client: Client) -> None:
        results.append(await value(client, holding(begun, go, "one")))

    with anyio.fail_after(PATIENCE_SECONDS):
        async with fleet(tmp_path, "a") as made, httpx2.AsyncClient() as web:
            bridge = made.bridges["a"]
            async with (
                Client(f"{bridge.url}/mcp", mode="2026-07-28") as client,
                anyio.create_task_group() as tasks,
            ):
                await client.list_tools()
                tasks.start_soon(whole, client)
                await until_exists(begun)
                bridge.process.send_signal(signal.SIGTERM)
                assert (await bridge.until_ready(503))["missing"] == ["draining"]
                answer = await web.post(
                    f"{bridge.url}/mcp", json=hello("2025-06-18"), headers=HEADERS
                )
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                named = {**HEADERS, "host": "evil.example"}
                page = await web.post(f"{bridge.url}/mcp", json=hello("2025-06-18"), headers=named)
                assert (page.status_code, "retry-after" in page.headers) == (421, False)
                refused = await client.call_tool("run_python", {"code": "1"})
                assert "replica 'a' of the bridge is ending" in text_of(refused)
                assert "Repeat the request" in text_of(refused)
                go.touch()
            await until(lambda: bridge.ended)
            assert bridge.process.returncode == 128 + signal.SIGTERM
            assert results == ["whole"]
            assert made.writes() == {"one-before": 1, "one-after": 1}
            assert set(made.outcomes().values()) == {1}


@pytest.mark.slow
async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    with anyio.fail_after(PATIENCE_SECONDS):
        async with fleet(tmp_path, "a", MCP_BRIDGE_DRAIN_SECONDS="3600") as made:
            bridge = made.bridges["a"]

            async def broken_off() -> None:
                with suppress(MCPError, httpx2.HTTPError, ExceptionGroup):
                    async with Client(f"{bridge.url}/mcp", mode="2026-07-28") as client:
                        await run(client, holding(begun, never, "one"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(broken_off)
                await until_exists(begun)
                bridge.process.send_signal(signal.SIGTERM)
                await bridge.until_ready(503)
                await bridge.end()
            assert set(made.outcomes().values()) == {1}


async def cut(client: Client, told: list[str], arguments: dict[str, Any]) -> None:
    """Run a program that is ended, and note what its client is told."""
    told.append(text_of(await client.call_tool("run_python", arguments)))


@pytest.mark.slow
async def test_runs_that_outlast_the_deadline_end_as_runs(tmp_path: Path) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    told: list[str] = []
    with anyio.fail_after(PATIENCE_SECONDS):
        async with fleet(tmp_path, "a", MCP_BRIDGE_DRAIN_SECONDS="0.5") as made:
            bridge = made.bridges["a"]

            async with Client(f"{bridge.url}/mcp", mode="2026-07-28") as client:
                session = (await run(client, "x = 40", session="work"))["session"]["id"]
                alone = tmp_path / "alone"
                async with anyio.create_task_group() as tasks:
                    code = "x += 1\n" + holding(begun, never, "cut")
                    tasks.start_soon(cut, client, told, {"code": code, "session": session})
                    code = holding(alone, never, "alone")
                    tasks.start_soon(cut, client, told, {"code": code})
                    await until_exists(begun)
                    await until_exists(alone)
                    bridge.process.send_signal(signal.SIGTERM)
            await until(lambda: bridge.ended)
            assert len(told) == 2
            assert all("The run was ended in the middle" in each for each in told)
            assert set(made.outcomes().values()) == {1}
            ends = [record for record in made.records() if record["kind"] == "end"]
            reasons = [(end.get("reason"), end["replica"]) for end in ends]
            assert sorted(map(str, reasons)) == sorted(
                map(str, [(None, "a"), ("cancelled", "a"), ("cancelled", "a")])
            )
            other = await made.start("b")
            async with Client(f"{other.url}/mcp", mode="2026-07-28") as client:
                assert await value(client, "x + 1", session=session) == 42


async def test_what_needs_its_replica_is_refused_by_name_elsewhere(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with fleet(tmp_path, "a", "b") as made, httpx2.AsyncClient(headers=HEADERS) as web:
            one, other = made.bridges["a"], made.bridges["b"]
            answer = await web.post(f"{one.url}/mcp", json=hello("2025-06-18"))
            session = {"mcp-session-id": answer.headers["mcp-session-id"]}
            assert session["mcp-session-id"].startswith("a.")
            assert answer.headers["mcp-bridge-replica"] == "a"
            listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            here = await web.post(f"{one.url}/mcp", json=listed, headers=session)
            assert here.status_code == 200
            there = await web.post(f"{other.url}/mcp", json=listed, headers=session)
            assert (there.status_code, there.headers["mcp-bridge-replica"]) == (404, "a")
            assert "replica 'a' of the bridge began it, and this is 'b'" in there.text
            # To a web page by another name than its own it says nothing of sessions or replicas.
            named = {**session, "host": "evil.example"}
            for method in ("POST", "GET", "DELETE"):
                page = await web.request(method, f"{other.url}/mcp", json=listed, headers=named)
                assert (page.status_code, page.headers.get("mcp-bridge-replica")) == (421, None)
            async with Client(f"{other.url}/mcp", mode="2026-07-28") as client:
                given = {"code": "1", "retry_of": "0123456789abcdef" * 2}
                unknown = text_of(await client.call_tool("run_python", given))
                assert "end with the bridge that made it" in unknown
            # The client of an earlier protocol, with its stream and its end.
            async with Client(f"{one.url}/mcp", mode="legacy") as client:
                assert await value(client, "await mcp_keeper.keep(id='early')\n1") == 1
            assert made.writes() == {"early": 1}


async def _kill_in_turn(made: Fleet, done: anyio.Event, seconds: float) -> None:
    turn = 0
    while not done.is_set():
        with anyio.move_on_after(seconds):
            await done.wait()
            return
        name = sorted(made.bridges)[turn % len(made.bridges)]
        turn += 1
        await made.bridges[name].end(signal.SIGKILL)
        await made.start(name)


async def _write_once(url: str, numbers: Iterator[int], answered: set[int]) -> None:
    """Make one run after the other; one whose answer does not come is not made again."""
    for number in numbers:
        with suppress(MCPError, httpx2.HTTPError, ExceptionGroup):
            async with Client(url, mode="2026-07-28") as client:
                if await value(client, f"await mcp_keeper.keep(id='{number}')\n{number}") == number:
                    answered.add(number)


async def killed_under_load(tmp_path: Path, runs: int, seconds: float, **settings: str) -> None:
    """Kill one of two replicas every few seconds while runs that write go on; see what is left."""
    numbers, answered, done = iter(range(runs)), set[int](), anyio.Event()
    async with fleet(tmp_path, "a", "b", **settings) as made, balanced(made) as url:
        async with anyio.create_task_group() as killing:
            killing.start_soon(_kill_in_turn, made, done, seconds)
            async with anyio.create_task_group() as clients:
                for _ in range(4):
                    clients.start_soon(_write_once, url, numbers, answered)
            done.set()
        writes = made.writes()
        assert len(made.processes) > 2
        # No write twice; none lost whose run was answered; most were answered.
        assert set(writes.values()) <= {1}
        assert {str(number) for number in answered} <= set(writes)
        assert len(answered) > runs // 2
        await until(lambda: set(made.outcomes().values()) == {1})
        assert len(made.outcomes()) >= len(answered)
        for bridge in made.bridges.values():
            await bridge.end()
    # Neither a server nor a sandbox of those that were killed.
    await until(lambda: not processes(variable=f"HOME={tmp_path}"))


@pytest.mark.parametrize(
    ("each_database", "runs"),
    [
        pytest.param("sqlite", 40, marks=pytest.mark.slow),
        pytest.param("postgresql", 500, marks=pytest.mark.full),
    ],
    indirect=["each_database"],
)
async def test_replicas_that_are_killed_under_load_leave_one_end_for_each_run(
    tmp_path: Path, each_database: str, runs: int
) -> None:
    with anyio.fail_after(10 * PATIENCE_SECONDS):
        await killed_under_load(tmp_path, runs, 3.0)
