"""What an HTTP response says reaches the program: its one answer, or its status and body."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import httpx2
import pytest

from bridge.errors import ToolCallError, UpstreamError
from bridge.gate.journal import outcome_after
from bridge.model import MEBIBYTE, ServerSpec, Source
from bridge.upstream.http import CappedClient, HttpEndpoint, _EventStream
from tests.upstream.odd_web import Answer, OddWeb, error, rpc
from tests.upstream.rig import Rig

RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "RESULT"}]}
TEXT = rpc(id="$ID", result=RESULT)

ANSWERS = {
    "another id": Answer(200, rpc(id=999, result=RESULT)),
    "a text as id": Answer(200, rpc(id="x", result=RESULT)),
    "id null": Answer(200, rpc(id=None, result=RESULT)),
    "no id": Answer(200, rpc(result=RESULT)),
    "no content type": Answer(200, TEXT, ""),
    "text/plain": Answer(200, TEXT, "text/plain; charset=utf-8"),
    "text/html": Answer(200, TEXT, "text/html"),
    "octets": Answer(201, TEXT, "application/octet-stream"),
    "a result alone": Answer(200, '{"content": [{"type": "text", "text": "RESULT"}]}'),
    "an event with id null": Answer(
        200, f"data: {rpc(id=None, result=RESULT)}\n\n", "text/event-stream"
    ),
    "an event without id": Answer(200, f"data: {rpc(result=RESULT)}\n\n", "text/event-stream"),
}


async def test_one_json_answer_to_a_request_is_its_answer(rig: Rig) -> None:
    web = OddWeb()
    web.tools.update(ANSWERS)
    async with web.pool(rig) as pool:
        for case in ANSWERS:
            result = await pool.call_tool("server", case, {})
            assert result["content"] == RESULT["content"], case
            assert web.received.count(case) == 1


PAGE = "<html><style>b{}</style><h1>502 Bad Gateway</h1></html>"
BUSY = {"retry-after": "17"}

REFUSALS: dict[str, tuple[Answer, str, Mapping[str, Any], str]] = {
    "429": (
        Answer(429, "Rate limit exceeded: 60 a minute", "text/plain", BUSY),
        "429 (Too Many Requests): Rate limit exceeded: 60 a minute. Try again after 17 s",
        {"status": 429, "retryAfter": 17.0, "body": "Rate limit exceeded: 60 a minute"},
        "tool-error",
    ),
    "402": (
        Answer(402, '{"error": "Insufficient credits"}'),
        'HTTP status 402 (Payment Required): {"error": "Insufficient credits"}',
        {"status": 402, "body": '{"error": "Insufficient credits"}'},
        "tool-error",
    ),
    "413": (Answer(413), "HTTP status 413", {"status": 413, "body": ""}, "tool-error"),
    "400": (
        Answer(400, '{"error": {"code": "bad", "message": "q is too long"}}'),
        "q is too long",
        {"status": 400, "body": '{"error": {"code": "bad", "message": "q is too long"}}'},
        "tool-error",
    ),
    "403": (Answer(403, "<p>You are blocked", "text/html"), "You are blocked", {}, "not-sent"),
    "502": (
        Answer(502, PAGE, "text/html"),
        "502 Bad Gateway",
        {"status": 502, "body": "502 Bad Gateway"},
        "unknown",
    ),
    "503": (
        Answer(503, "Back at ten", "text/plain", {"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"}),
        "Back at ten",
        {"status": 503, "body": "Back at ten", "retryAfter": 0.0},
        "unknown",
    ),
    "503 of the server": (
        Answer(503, error(-32000, "database is down"), headers=BUSY),
        "database is down",
        {"status": 503, "retryAfter": 17.0},
        "tool-error",
    ),
    "200 html": (Answer(200, PAGE, "text/html"), "502 Bad Gateway", {}, "unknown"),
    "200 empty": (Answer(200), "The answer is empty", {}, "unknown"),
    "204": (Answer(204), "The answer is empty", {}, "unknown"),
    "200 other JSON": (Answer(200, '{"message": "oops"}'), '{"message": "oops"}', {}, "unknown"),
    "null id": (
        Answer(200, error(-7, "no row").replace("$ID", "null")),
        "no row",
        {},
        "tool-error",
    ),
}


async def test_an_error_status_reaches_the_program_with_its_body(rig: Rig) -> None:
    web = OddWeb()
    web.tools.update({case: answer for case, (answer, *_) in REFUSALS.items()})
    async with web.pool(rig) as pool:
        for case, (_, text, data, outcome) in REFUSALS.items():
            with pytest.raises(UpstreamError) as caught:
                await pool.call_tool("server", case, {})
            await pool.call_tool("server", "echo", {})
            assert text in str(caught.value), case
            assert outcome_after(caught.value) == outcome, case
            if data:
                assert isinstance(caught.value, ToolCallError)
                assert caught.value.data == data, case
            assert web.received.count(case) == 1
    assert web.received.count("initialize") == 1


async def test_concurrent_errors_keep_their_own_status(rig: Rig) -> None:
    web = OddWeb()
    statuses = [400, 402, 409, 429, 500, 502, 503] * 5
    web.tools = {f"t{status}": Answer(status, f"body {status}") for status in set(statuses)}
    found: list[tuple[int, Any]] = []

    async def call(status: int) -> None:
        with pytest.raises(ToolCallError) as caught:
            await pool.call_tool("server", f"t{status}", {})
        found.append((status, caught.value.data))

    async with web.pool(rig) as pool, anyio.create_task_group() as tg:
        for status in statuses:
            tg.start_soon(call, status)
    assert all(data == {"status": status, "body": f"body {status}"} for status, data in found)
    assert len(found) == len(statuses)


def capped_client(url: str) -> CappedClient:
    source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
    spec = ServerSpec(name="server", transport="http", source=source, url=url)
    return CappedClient(HttpEndpoint(spec, max_message_bytes=MEBIBYTE))


@contextmanager
def answering(headers: Mapping[str, str], pieces: Iterator[bytes], status: int) -> Iterator[str]:
    """Answer one request with these pieces while they are read; yield the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):
                for piece in pieces:
                    self.wfile.write(piece)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            thread.join()


async def read(data: bytes, encoding: str) -> bytes:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    headers["content-length"] = str(len(data))
    with answering(headers, iter([data]), 200) as url:
        async with capped_client(url) as client, client.stream("GET", url) as response:
            return await response.aread()


async def test_compressed_bodies_pass() -> None:
    text = b'{"a": 1}' * 100_000
    for encoding in ("gzip", "GZip", "deflate"):
        compress = zlib.compress if encoding == "deflate" else gzip.compress
        assert await read(compress(text), encoding) == text


@pytest.mark.parametrize(
    ("data", "encoding", "said"),
    [
        (gzip.compress(bytes(8 * MEBIBYTE)), "gzip", f"{MEBIBYTE} byte limit"),
        (gzip.compress(b"{}", mtime=0), "br", "was not asked for"),
        (gzip.compress(b"{}", mtime=0), "zstd", "was not asked for"),
        (gzip.compress(b"{}", mtime=0), "gzip, gzip", "was not asked for"),
        (b"plain text", "gzip", "as its header says"),
    ],
)
async def test_a_body_that_may_be_a_bomb_is_refused(data: bytes, encoding: str, said: str) -> None:
    assert len(data) < MEBIBYTE / 50
    with pytest.raises(httpx2.StreamError, match=said):
        await read(data, encoding)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_the_body_of_an_error_is_not_read_to_its_end(kind: str) -> None:
    pieces = 0

    def endless() -> Iterator[bytes]:
        nonlocal pieces
        while pieces < 64:
            yield bytes(MEBIBYTE)
            pieces += 1

    with answering({"content-type": kind}, endless(), 404) as url:
        async with capped_client(url) as client:
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            async with client.stream("POST", url, json=request) as response:
                assert response.status_code == 404
                error = json.loads(await response.aread())["error"]
            assert error["message"].startswith("HTTP status 404 (Not Found)")
    # The kernel's buffers take more than the limit.
    assert pieces < 32


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_an_event_is_passed_on_once_its_end_has_come(end: bytes, size: int) -> None:
    events = b"data: 1" + end + b"data: 2" + end

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start in range(0, len(events), size):
                yield events[start : start + size]

    passed = b""
    async for piece in _EventStream(Body(), MEBIBYTE, "", None, lambda: None):
        passed += piece
        assert piece.endswith((b"\n", b"\r"))
    assert passed == events
