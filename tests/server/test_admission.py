"""What a caller over HTTP may take, and that others still can."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx2
import pytest

from bridge.runs import Engine
from bridge.server import admission
from bridge.server.admission import BOUNDS, Replica
from bridge.server.app import build_server
from bridge.server.transports import HttpServer, parse_address
from bridge.settings import http_token, load
from tests.server.pipe_rig import hello
from tests.server.web_rig import serving
from tests.waiting import until

HELLO = hello("2025-06-18")
TOKEN = {"authorization": "Bearer right"}
ACCEPT = {"accept": "application/json, text/event-stream"}
HALF_A_HEAD = b"POST /mcp HTTP/1.1\r\nHost: "

pytestmark = pytest.mark.guarantee("http-admission")


@asynccontextmanager
async def guarded(engine: Engine, token: str = "right") -> AsyncIterator[httpx2.AsyncClient]:
    server = HttpServer(build_server(engine), "127.0.0.1", 0, replica=Replica(engine), token=token)
    with anyio.fail_after(60):
        async with (
            serving(server) as url,
            httpx2.AsyncClient(base_url=url, headers=ACCEPT, timeout=30) as web,
        ):
            yield web


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "x"}])
async def test_without_the_token_nothing_but_probes_is_answered(
    engine: Engine, given: dict[str, str]
) -> None:
    async with guarded(engine) as web:
        for method in ("POST", "GET", "DELETE"):
            answer = await web.request(method, "/mcp", json=HELLO, headers=given)
            assert (answer.status_code, "install CLIENT --http" in answer.text) == (401, True)
        assert (await web.get("/healthz", headers=given)).status_code == 200
        assert (await web.post("/mcp", json=HELLO, headers=TOKEN)).status_code == 200


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, b"POST /mcp HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_thousand_silent_connections_leave_the_host_s_user_room(
    engine: Engine, sent: bytes
) -> None:
    async with guarded(engine) as web, AsyncExitStack() as stack:
        for _ in range(300):
            address = web.base_url.host, web.base_url.port or 0
            stack.enter_context(socket.create_connection(address)).sendall(sent)
        most = before = len(os.listdir("/dev/fd"))  # noqa: PTH208
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
            most = max(most, len(os.listdir("/dev/fd")))  # noqa: PTH208
        assert 0 < most - before < 200
        assert (await web.post("/mcp", json=HELLO, headers=TOKEN)).status_code == 200


async def test_a_connection_whose_answers_are_not_read_gives_way_to_the_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "connections without a token", 1)
    async with guarded(engine) as web:
        host, port = web.base_url.host, web.base_url.port or 0
        probes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        async with await anyio.connect_tcp(host, port) as stream:
            while True:
                with anyio.move_on_after(0.5) as sending:
                    await stream.send(probes)
                if sending.cancelled_caught:
                    break  # The bridge waits for its answers to be read.
            assert (await web.post("/mcp", json=HELLO, headers=TOKEN)).status_code == 200


@pytest.mark.slow
async def test_a_head_that_does_not_come_ends_its_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HEAD_SECONDS", 0.1)
    async with guarded(engine) as web:
        host, port = web.base_url.host, web.base_url.port or 0
        probe = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        for begin in (b"", HALF_A_HEAD, probe + HALF_A_HEAD):
            async with await anyio.connect_tcp(host, port) as stream:
                if begin:
                    await stream.send(begin)
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        await stream.receive()


async def test_who_has_taken_a_share_of_sessions_is_refused_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "sessions", 8)
    async with guarded(engine, token="") as web:
        greedy = {"authorization": "Bearer greedy"}
        answers = [await web.post("/mcp", json=HELLO, headers=greedy) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [503] * 2
        assert "the limit of one caller is 4" in answers[-1].text
        assert (await web.post("/mcp", json=HELLO)).status_code == 200


async def test_who_has_taken_a_share_of_connections_is_refused_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "connections", 8)
    async with guarded(engine, token="") as web, AsyncExitStack() as stack:
        host, port = web.base_url.host, web.base_url.port or 0
        head = (
            f"GET /nothing HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer greedy\r\n\r\n"
        )
        answers = []
        for _ in range(6):
            stream = await stack.enter_async_context(await anyio.connect_tcp(host, port))
            await stream.send(head.encode())
            answers.append((await stream.receive())[9:12])
        assert answers == [b"404"] * 4 + [b"503"] * 2
        assert (await web.post("/mcp", json=HELLO)).status_code == 200


async def test_a_unix_socket_is_its_user_s_alone_and_needs_no_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "sessions", 4)
    if sys.platform != "linux":
        pytest.skip("its callers' user ids are known on Linux")
    path = Path(engine.settings.state_dir) / "s"
    path.parent.mkdir(parents=True, exist_ok=True)
    host, port = parse_address(f"unix:{path}")
    for _ in range(2):
        server = HttpServer(build_server(engine), host, port, token="right")
        transport = httpx2.AsyncHTTPTransport(uds=str(path))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                await until(partial(getattr, server, "started"))
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                async with httpx2.AsyncClient(transport=transport, headers=ACCEPT) as web:
                    url = "http://localhost/mcp"
                    greedy = [await web.post(url, json=HELLO, headers=TOKEN) for _ in range(3)]
                    assert [answer.status_code for answer in greedy] == [200, 200, 503]
                    answer = await web.post(url, json=HELLO)
                    assert answer.status_code == 200, answer.text
                server.should_exit = True
        assert not path.exists()


def test_the_token_is_random_private_and_kept(tmp_path: Path) -> None:
    settings = load({}, {"HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")})
    token = http_token(settings)
    assert len(token) > 40
    assert http_token(settings) == token
    [file] = (tmp_path / "state").glob("*token")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
