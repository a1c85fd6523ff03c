"""Hostile servers behind URLs: what they answer is read by the SDK, on the event loop."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.model import RunRequest
from bridge.runs import Engine
from tests.hostile.conftest import ONE_TOOL, cases, engine_over
from tests.hostile.test_servers import CALL, PATIENCE_SECONDS, RESULTS, M, structured, text
from tests.watchdog import Watchdog

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "playback", "version": "1"},
}


class Playback(ThreadingHTTPServer):
    """Answers every call with one result.

    Attributes:
        events: Answers are events, not bodies.
    """

    daemon_threads = True
    result = b""
    events = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = {
            "initialize": json.dumps(HELLO).encode(),
            "tools/list": ONE_TOOL,
            "tools/call": self.server.result,  # type: ignore[attr-defined]
        }
        number, result = request.get("id"), results.get(request["method"])
        if number is None:
            self._answer(202, "text/plain", b"")
            return
        given = b'"result":%b' % result if result else b'"error":{"code":-32601,"message":"no"}'
        body = b'{"jsonrpc":"2.0","id":%d,%b}' % (number, given)
        if self.server.events:  # type: ignore[attr-defined]
            self._answer(200, "text/event-stream", b"event: message\ndata: %b\n\n" % body)
        else:
            self._answer(200, "application/json", body)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Any:
    with Playback() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
async def engine(tmp_path: Path, web: Playback) -> AsyncIterator[Engine]:
    url = f"http://127.0.0.1:{web.server_port}/mcp"
    async with engine_over(tmp_path, transport="http", url=url) as opened:
        yield opened


LIMIT = "200000 value limit"

ANSWERS = {
    "3,000,000 items": (RESULTS["3,000,000 items"][0], LIMIT),
    "3,000 numbers of 4,000 digits": (RESULTS["3,000 numbers of 4,000 digits"][0], LIMIT),
    "190,000 items": (lambda: structured(b"[" + b"1," * 190_000 + b"1]"), "{'a': [1, 1,"),
    "95,000 objects": (lambda: structured(b"[" + b'{"a":1},' * 95_000 + b"1]"), "{'a': [{"),
    "45,000 blocks": (
        lambda: b'{"content":[' + b'{"type":"text","text":"x"},' * 45_000 + b"{}]}",
        "['x', 'x',",
    ),
    "12 MB of text": (lambda: text("x" * 12 * M), "xxx"),
    "100,000 levels": RESULTS["100,000 levels"],
}


@pytest.mark.guarantee("loop-never-stalls")
@pytest.mark.parametrize("events", [False, True], ids=["body", "event"])
@cases(ANSWERS)
async def test_no_answer_over_http_keeps_the_loop(
    engine: Engine, web: Playback, watchdog: Watchdog, events: bool, made: Any, told: str
) -> None:
    await engine.servers.load(["pb"])
    web.result, web.events = made(), events
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=CALL, timeout=120))
    assert told in result.stdout, result.error
