"""Where the bridge may listen, and how it ends."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError

from bridge.errors import AuditError, UsageError
from bridge.event_loop import background_task
from bridge.gate.audit.log import AuditLog
from bridge.runs import Engine
from bridge.runs.suspended_runs import SuspendedRun
from bridge.server import admission, transports
from bridge.server.admission import BOUNDS
from bridge.server.app import build_server
from bridge.server.transports import HttpServer, parse_address, serve_http
from tests.asker_rig import asker, call, text_of
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.ports import reserved_port
from tests.record import record_of
from tests.server.pipe_rig import hello
from tests.server.web_rig import Proxy, connected, served, serving, web
from tests.waiting import until, until_exists

HELLO = hello("2025-06-18")


def test_only_a_loopback_address_is_taken() -> None:
    assert parse_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_address("localhost:0") == ("localhost", 0)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    for text in ("127.0.0.1", ":80", "localhost:65536", "a b:1", ""):
        with pytest.raises(UsageError, match=r"is not HOST:PORT, such as"):
            parse_address(text)
    for text in ("0.0.0.0:80", "[::]:80", "192.0.2.1:80", "example.org:80"):
        with pytest.raises(UsageError, match="can be reached from other machines"):
            parse_address(text)


async def _follow_stream(url: str, listening: anyio.Event, ended: anyio.Event) -> None:
    async with Client(url, mode="2026-07-28") as client:
        async with client.listen(tools_list_changed=True) as stream:
            listening.set()
            # Raises if the stream breaks off.
            async for _ in stream:
                pass
        ended.set()


async def test_a_listener_is_told_about_the_end_and_a_run_under_way_still_ends(
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(transports, "SHUTDOWN_SECONDS", 30)
    begun, go = tmp_path / "begun", tmp_path / "go"
    code = (
        f"import os, time\nopen({str(begun)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n'done'"
    )
    listening, ended = anyio.Event(), anyio.Event()

    async def run(url: str) -> None:
        async with Client(url, mode="2026-07-28") as client:
            # Else the client would ask for them once it has the result.
            await client.list_tools()
            result = await client.call_tool("run_python", {"code": code})
            assert record_of(result)["result"] == "done"

    async def release() -> None:
        await ended.wait()
        go.touch()

    with anyio.fail_after(60):
        async with (
            anyio.create_task_group() as tasks,
            serving(HttpServer(build_server(engine), "127.0.0.1", 0)) as url,
        ):
            tasks.start_soon(release)
            tasks.start_soon(_follow_stream, f"{url}/mcp", listening, ended)
            tasks.start_soon(run, f"{url}/mcp")
            await until_exists(begun)
            await listening.wait()
    assert "timeout graceful shutdown exceeded" not in caplog.text


async def test_a_listener_is_told_about_the_end_when_a_signal_ends_the_server(
    engine: Engine,
) -> None:
    listening, ended = anyio.Event(), anyio.Event()

    async def serve(scope: anyio.CancelScope) -> None:
        with scope:
            await serve_http(engine, "127.0.0.1", port, anyio.Event())

    with reserved_port() as port, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(serve, scope)
            await until(lambda: _answers(port))
            tasks.start_soon(_follow_stream, f"http://127.0.0.1:{port}/mcp", listening, ended)
            await listening.wait()
            scope.cancel()
            await ended.wait()


async def test_a_port_that_is_taken_is_told_in_one_sentence(engine: Engine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^Port {port} of 127.0.0.1 is taken"):
            await serve_http(engine, "127.0.0.1", port, anyio.Event())


@pytest.mark.guarantee("http-clients")
async def test_sessions_have_a_bound_and_what_ended_makes_room_and_leaves_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "sessions", 40)
    async with served(engine) as (server, web):
        answers = [await web.post("/mcp", json=HELLO) for _ in range(60)]
        assert Counter(answer.status_code for answer in answers) == {200: 20, 503: 40}
        assert "Too many open sessions" in answers[-1].text
        for answer in answers[:20]:
            session = {"mcp-session-id": answer.headers["mcp-session-id"]}
            listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            assert (await web.post("/mcp", json=listed, headers=session)).status_code == 200
            assert (await web.delete("/mcp", headers=session)).status_code == 200
        # Of what ended, the event loop may still hold the last.
        await until(lambda: gc.collect() >= 0 and server.notices.connections <= 1)
        assert (await web.post("/mcp", json=HELLO)).status_code == 200


@pytest.mark.guarantee("http-clients")
async def test_a_session_that_no_one_uses_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "IDLE_SECONDS", 0.05)
    async with served(engine) as (server, web):
        answer = await web.post("/mcp", json=HELLO)
        session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        manager = server.session_manager
        await until(lambda: not manager._server_instances)
        listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await web.post("/mcp", json=listed, headers=session)).status_code == 404


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_replica_whose_engine_ended_is_not_ready_until_it_is_back(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "docker does not answer."

    async def problem() -> str:
        return said

    monkeypatch.setattr(backend, "problem", problem)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    made = admission.Replica(engine)
    async with background_task(made.tend):
        await until(lambda: made.missing == ["sandboxes"])
        said = ""
        await until(lambda: made.missing == [])


async def test_a_look_that_hangs_is_a_problem_and_delays_no_other(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def count(log: AuditLog) -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(backend, "problem", anyio.sleep_forever)
    monkeypatch.setattr(admission, "end_orphans", count)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    made = admission.Replica(engine)
    async with background_task(made.tend):
        await until(lambda: looks > 9 and "store" not in made.missing)
        assert made.missing == ["sandboxes"]
    monkeypatch.setattr(backend, "problem", FakeBackend().problem)
    async with background_task(made.tend):
        await until(lambda: made.missing == [])
    monkeypatch.setattr(backend, "problem", anyio.sleep_forever)
    monkeypatch.setattr(admission, "LOOK_DEADLINE", 0.05)
    async with background_task(made.tend):
        await until(lambda: made.missing == ["sandboxes"])


async def test_what_a_replica_lacks_is_logged_once_however_often_it_looks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a second, for as long as a database is away, would fill a disk."""
    made, looks = admission.Replica(engine), 0

    async def full(log: AuditLog) -> int:
        nonlocal looks
        looks += 1
        raise AuditError("The audit log is full.")

    monkeypatch.setattr(admission, "end_orphans", full)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    file = engine.settings.state_dir / "store.db"
    file.parent.mkdir(0o700, parents=True, exist_ok=True)
    file.write_bytes(b"no database " * 1000)
    async with background_task(made.tend):
        await until(lambda: looks > 2 and "store: " in caplog.text)
        assert made.missing == ["store"]
        file.write_bytes(b"")
        await until(lambda: made.missing == [])
    told = [record.getMessage() for record in caplog.records if record.name == admission.__name__]
    assert len(told) == 2
    assert any("the database is damaged" in text for text in told)
    assert any("The audit log is full" in text for text in told)


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
async def test_a_run_continues_without_its_connection_and_its_owner_reads_the_result(
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


async def test_a_client_that_cancels_ends_its_run(
    engine: Engine, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
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
    assert engine.artifacts.find_all(None) == ()
