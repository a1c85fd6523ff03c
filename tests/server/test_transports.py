"""Where the bridge may listen, and how it ends."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from mcp import Client

from bridge.errors import AuditError, UsageError
from bridge.gate.audit.log import AuditLog
from bridge.runs import Engine
from bridge.server import replica, transports
from bridge.server.admission import BOUNDS
from bridge.server.app import build_server
from bridge.server.transports import HttpServer, parse_address, serve_http
from bridge.tasks import background_task
from tests.fakes.backend import FakeBackend
from tests.ports import reserved_port
from tests.record import record_of
from tests.server.pipe_rig import hello
from tests.server.web_rig import served
from tests.waiting import until, until_exists

HELLO = hello("2025-06-18")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_a_loopback_address_is_taken(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["127.0.0.1", ":80", "localhost:65536", "a b:1", ""])
def test_something_else_is_explained(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not HOST:PORT, such as"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "example.org:80"])
def test_an_address_that_others_can_reach_is_refused(text: str) -> None:
    """There is no authentication yet, and whoever reaches the bridge can use every server."""
    with pytest.raises(UsageError, match="can be reached from other machines"):
        parse_address(text)


async def test_whoever_listens_is_told_of_the_end_and_a_run_under_way_still_ends(
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
    server = HttpServer(build_server(engine), "127.0.0.1", 0)
    over: list[str] = []

    async def listen(url: str) -> None:
        async with Client(url, mode="2026-07-28") as client:
            async with client.listen(tools_list_changed=True) as stream:
                begun.with_suffix(".listening").touch()
                # Raises if the stream breaks off.
                async for _ in stream:
                    pass
            over.append("stream")
            go.touch()

    async def run(url: str) -> None:
        async with Client(url, mode="2026-07-28") as client:
            # Else the client would ask for them once it has the result.
            await client.list_tools()
            result = await client.call_tool("run_python", {"code": code})
            over.append(record_of(result)["result"])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}/mcp"
            tasks.start_soon(listen, url)
            tasks.start_soon(run, url)
            await until_exists(begun)
            await until_exists(begun.with_suffix(".listening"))
            server.should_exit = True
    assert over == ["stream", "done"]
    assert "timeout graceful shutdown exceeded" not in caplog.text


async def test_whoever_listens_is_told_of_the_end_when_a_signal_ends_the_server(
    engine: Engine,
) -> None:
    """A signal cancels `serve`; a stream that broke off would be opened again at once."""
    ended = anyio.Event()
    listening = anyio.Event()

    async def listen(started: Callable[[], bool]) -> None:
        await until(started)
        async with Client(f"http://127.0.0.1:{port}/mcp", mode="2026-07-28") as client:
            async with client.listen(tools_list_changed=True) as stream:
                listening.set()
                # Raises if the stream breaks off.
                async for _ in stream:
                    pass
            ended.set()

    async def serve(scope: anyio.CancelScope) -> None:
        with scope:
            await serve_http(engine, "127.0.0.1", port)

    with reserved_port() as port, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(serve, scope)
            tasks.start_soon(listen, lambda: _answers(port))
            await listening.wait()
            scope.cancel()
            await ended.wait()


async def test_a_port_that_is_taken_is_told_in_one_sentence(engine: Engine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^Port {port} of 127.0.0.1 is taken"):
            await serve_http(engine, "127.0.0.1", port)


@pytest.mark.guarantee("http-clients")
async def test_sessions_have_a_bound_and_what_ended_makes_room_and_leaves_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Initialisations by clients that never come back keep no more than the bound."""
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
async def test_a_session_that_nobody_uses_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "HTTP_IDLE_SECONDS", 0.05)
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
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.0)
    made = replica.Replica(engine)
    async with background_task(made.tend):
        await until(lambda: made.missing == ["sandboxes"])
        said = ""
        await until(lambda: made.missing == [])


async def test_what_a_replica_lacks_is_logged_once_however_often_it_looks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a second, for as long as a database is away, would fill a disk."""
    made, looks = replica.Replica(engine), 0

    async def full(log: AuditLog) -> int:
        nonlocal looks
        looks += 1
        raise AuditError("The audit log is full.")

    monkeypatch.setattr(replica, "end_orphans", full)
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.0)
    file = engine.settings.state_dir / "store.db"
    file.parent.mkdir(0o700, parents=True, exist_ok=True)
    file.write_bytes(b"no database " * 1000)
    async with background_task(made.tend):
        await until(lambda: looks > 2)
        assert made.missing == ["store"]
        file.unlink()
        await until(lambda: made.missing == [])
    told = [record.getMessage() for record in caplog.records if record.name == replica.__name__]
    assert len(told) == 2
    assert any("the database is damaged" in text for text in told)
    assert any("The audit log is full" in text for text in told)
