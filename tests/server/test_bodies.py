"""Bodies of HTTP requests, and arrays of messages over both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from bridge.runs import Engine
from bridge.server.admission import BOUNDS
from bridge.server.stdio import NO_BATCHES
from bridge.upstream.framing import MAX_VALUES
from tests.server.pipe_rig import hello, piped, request
from tests.server.web_rig import served

LONG = b" " * 1001

BATCH = [request(1, "ping"), request(2, "ping")]
REFUSAL = {"jsonrpc": "2.0", "id": None, "error": NO_BATCHES.model_dump(exclude_none=True)}


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
async def test_a_batch_is_an_error_and_the_next_message_is_served(
    engine: Engine, version: str
) -> None:
    async with piped(engine, version) as peer:
        assert await peer.answer(BATCH) == REFUSAL
        assert (await peer.answer(request(3, "ping")))["result"] == {}
    async with served(engine) as (_, web):
        opened = await web.post("/mcp", json=hello(version))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
        answer = await web.post("/mcp", json=BATCH, headers=headers)
        assert (answer.status_code, answer.json()) == (400, REFUSAL)
        assert (await web.post("/mcp", json=request(3, "ping"), headers=headers)).is_success


async def test_a_body_beyond_the_limit_is_refused_with_it_and_bytes_in_flight_are_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(engine) as (_, web):

        async def chunks(size: int) -> AsyncIterator[bytes]:
            yield b" " * size

        crowded = await web.post("/mcp", content=b"[" + b"0," * MAX_VALUES + b"0]")
        assert (crowded.status_code, f"{MAX_VALUES:,}" in crowded.text) == (400, True)
        monkeypatch.setattr("bridge.server.admission.MAX_MESSAGE_BYTES", 3000)
        for content in (b" " * 3001, chunks(3001)):
            answer = await web.post("/mcp", content=content)
            assert (answer.status_code, "3000 bytes" in answer.text) == (413, True)
        monkeypatch.setitem(BOUNDS, "bytes of requests", 3000)
        opened = await web.post("/mcp", json=hello("2025-06-18"))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}

        async def linger(begun: anyio.Event) -> AsyncIterator[bytes]:
            yield b" " * 1001
            begun.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            begun = anyio.Event()
            tasks.start_soon(lambda: web.post("/mcp", content=linger(begun)))
            await begun.wait()
            # Until the first has been counted.
            while "limit of one caller is 1500" not in (await web.post("/mcp", content=LONG)).text:
                pass
            ping = await web.post("/mcp", json=request(1, "ping"), headers=headers)
            assert ping.status_code == 200
            other = {"authorization": "Bearer another"}
            assert "limit" not in (await web.post("/mcp", content=LONG, headers=other)).text
            tasks.cancel_scope.cancel()


async def test_a_body_that_does_not_come_takes_no_place_for_long(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.server.admission.BODY_SECONDS", 0.05)
    async with served(engine) as (_, web):
        host, port = web.base_url.host, web.base_url.port or 0
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 11\r\n\r\n".encode()
        async with await anyio.connect_tcp(host, port) as stream:
            await stream.send(head + b"[")
            assert b" 408 " in await stream.receive()


@pytest.mark.parametrize(
    ("header", "status"), [({"origin": "https://example.org"}, 403), ({"host": "example.org"}, 421)]
)
async def test_what_another_site_s_page_sends_takes_no_ones_place(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, header: dict[str, str], status: int
) -> None:
    monkeypatch.setitem(BOUNDS, "bytes of requests", 0)
    async with served(engine) as (_, web):
        assert (await web.post("/mcp", content=LONG)).status_code == 503
        answer = await web.post("/mcp", content=LONG, headers=header)
        assert answer.status_code == status


@pytest.mark.parametrize("name", ["Authorization", "Origin", "Mcp-Session-Id", "Content-Type"])
async def test_a_repeated_header_is_refused(engine: Engine, name: str) -> None:
    """Behind a proxy that adds its own, a caller could choose whose sessions it has."""
    async with served(engine) as (_, web):
        for method in ("POST", "GET", "DELETE"):
            headers = [(name, "http://localhost"), (name.lower(), "x")]
            answer = await web.request(method, "/mcp", headers=headers)
            assert (answer.status_code, name.lower() in answer.text) == (400, True)
