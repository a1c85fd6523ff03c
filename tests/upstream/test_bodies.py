"""Bodies of HTTP responses: how much of one ends up in memory, compressed or not."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest

from bridge.model import MEBIBYTE, ServerSpec, Source
from bridge.upstream.http import CappedClient, HttpEndpoint, _EventStream


def capped(url: str) -> CappedClient:
    """Return a client of a server there."""
    source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
    spec = ServerSpec(name="server", transport="http", source=source, url=url)
    endpoint = HttpEndpoint(spec, max_message_bytes=MEBIBYTE)
    return CappedClient(spec, endpoint, max_body_bytes=MEBIBYTE)


@contextmanager
def answering(headers: Mapping[str, str], pieces: Iterator[bytes], status: int) -> Iterator[str]:
    """Answer one request with these pieces, for as long as they are read; yield its address."""

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
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            thread.join()


async def read(data: bytes, encoding: str) -> bytes:
    """Return a body as whoever asked for it gets it, with a cap of a mebibyte."""
    headers = {"content-type": "application/json", "content-encoding": encoding}
    headers["content-length"] = str(len(data))
    with answering(headers, iter([data]), 200) as url:
        async with capped(url) as client, client.stream("GET", url) as response:
            return await response.aread()


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("GZip", gzip.compress), ("deflate", zlib.compress)],
)
async def test_a_body_that_is_compressed_unasked_is_read_within_the_cap(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    text = b'{"a": 1}' * 100_000
    assert await read(compress(text), encoding) == text


async def test_a_small_body_that_stands_for_a_large_one_is_beyond_the_cap() -> None:
    bomb = gzip.compress(bytes(8 * MEBIBYTE))
    assert len(bomb) < MEBIBYTE / 50
    with pytest.raises(httpx2.StreamError, match=f"{MEBIBYTE} byte limit"):
        await read(bomb, "gzip")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_compression_that_cannot_be_bounded_is_refused(encoding: str) -> None:
    with pytest.raises(httpx2.StreamError, match="was not asked for"):
        await read(gzip.compress(b"{}"), encoding)


async def test_a_body_that_is_not_compressed_as_it_says_is_refused() -> None:
    with pytest.raises(httpx2.StreamError, match="as its header says"):
        await read(b"plain text", "gzip")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_the_body_of_an_error_is_not_read_to_its_end(kind: str) -> None:
    pieces = 0

    def endless() -> Iterator[bytes]:
        nonlocal pieces
        while pieces < 64:
            yield bytes(MEBIBYTE)
            pieces += 1

    with answering({"content-type": kind}, endless(), 404) as url:
        async with capped(url) as client:
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            async with client.stream("POST", url, json=request) as response:
                assert response.status_code == 404
                error = json.loads(await response.aread())["error"]
            assert error["message"].startswith("HTTP status 404 (Not Found)")
    # Beside the cap there is what the kernel takes in.
    assert pieces < 32


class Pieces(httpx2.AsyncByteStream):
    """A body that comes in the pieces given."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_an_event_is_passed_on_once_its_end_has_come(end: bytes, size: int) -> None:
    """And not when the next one comes: that may never be."""
    events = b"data: 1" + end + b"data: 2" + end
    pieces = [events[start : start + size] for start in range(0, len(events), size)]
    passed = b""
    async for piece in _EventStream(Pieces(*pieces), MEBIBYTE, "", None, lambda: None):
        passed += piece
        # Only its last piece says that the second has ended, too.
        assert piece.endswith((b"\n", b"\r"))
    assert passed == events
