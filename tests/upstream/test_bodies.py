"""Bodies of HTTP responses: how much of one ends up in memory, compressed or not."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest

from bridge.model import MEBIBYTE, ServerSpec, Source
from bridge.upstream.http import CappedClient, OversizeBody


async def read(data: bytes, encoding: str) -> bytes:
    """Return a body as whoever asked for it gets it, with a cap of a mebibyte."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-encoding", encoding)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
        spec = ServerSpec(name="server", transport="http", source=source, url=url)
        try:
            async with (
                CappedClient(spec, max_body_bytes=MEBIBYTE) as client,
                client.stream("GET", url) as response,
            ):
                return await response.aread()
        finally:
            thread.join()


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
    with pytest.raises(OversizeBody, match=f"{MEBIBYTE} byte limit"):
        await read(bomb, "gzip")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_compression_that_cannot_be_bounded_is_refused(encoding: str) -> None:
    with pytest.raises(httpx2.StreamError, match="was not asked for"):
        await read(gzip.compress(b"{}"), encoding)


async def test_a_body_that_is_not_compressed_as_it_says_is_refused() -> None:
    with pytest.raises(httpx2.StreamError, match="as its header says"):
        await read(b"plain text", "gzip")
