"""What is sent is sent once: over connections that break in the middle of a call, in either era.

The servers here write down what they get; the outcome is what the journal of a run would say.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from bridge.errors import CallTimeoutError, MessageTooLargeError, ServerLostError, UpstreamError
from bridge.gate.outcomes import Outcome, outcome_after
from bridge.upstream.pool import Pool
from tests.upstream.rig import SERVERS, Rig
from tests.waiting import PATIENCE_SECONDS

ProtocolMode = Literal["newer", "older"]

SAYS_NO = {"code": -32602, "message": "no such tool"}
TIMED_OUT = {"code": -32001, "message": "Request timed out"}
UNKNOWN_SESSION = {"code": -32600, "message": "what session?"}


class _Web(BaseHTTPRequestHandler):
    """A streamable HTTP server that answers each tool in a way of its own."""

    era: ProtocolMode
    calls: list[str]
    posts: list[str]
    lost: list[str]
    given_up: threading.Event
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._reply(405)

    def do_DELETE(self) -> None:
        self._reply(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message.get("method")
        if method == "notifications/cancelled":
            self._reply(404)
            self.given_up.set()
        elif "id" not in message:
            self._reply(202)
        elif method == "server/discover" and self.era == "newer":
            self._answer(
                message,
                {
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}},
                    "ttlMs": 0,
                    "cacheScope": "private",
                },
            )
        elif method == "initialize":
            info = {"name": "web", "version": "1"}
            version = message["params"]["protocolVersion"]
            tasks: dict[str, Any] = {"requests": {"tools": {"call": {}}}}
            capabilities = {"tools": {}, "tasks": tasks}
            result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            self._answer(message, result, session=f"s{len(self.posts)}")
        elif self.headers["mcp-session-id"] in self.lost:
            self._answer(message, error=UNKNOWN_SESSION, status=404)
        elif method == "tools/list":
            self._answer(message, {"tools": []})
        elif method == "tasks/result" and message["params"]["taskId"] == "forgotten":
            self._answer(message, error=UNKNOWN_SESSION, status=404)
        elif method == "tasks/result":
            self._answer(message, error=SAYS_NO)
        elif method == "tools/call":
            self.calls.append(message["params"]["name"])
            self._call(message["params"]["name"], message)
        else:
            self._reply(400)
        self.posts.append(method or "")

    def _call(self, tool: str, message: dict[str, Any]) -> None:
        statuses = {"accepted": 202, "gateway": 504, "busy": 503, "slow": 408, "limited": 429}
        if tool in statuses:
            self._reply(statuses[tool], b"<html>no</html>", "text/html")
        elif tool == "hang":
            self.given_up.wait(PATIENCE_SECONDS)
            self._answer(message, {"content": []})
        elif tool == "cut":
            self.close_connection = True
        elif tool == "cut-stream":
            self._head(200, "text/event-stream")
            self.wfile.write(b"event: message\ndata: {")
            self.close_connection = True
        elif tool == "cut-resumable":
            self._head(200, "text/event-stream")
            self.wfile.write(b"id: 1\nretry: 1\ndata:\n\n")
            self.close_connection = True
        elif tool == "cut-json":
            self._reply(200, b'{"jsonrpc": "2.0", "id"', "application/json")
        elif tool == "page":
            self._reply(200, b"<html>welcome</html>", "text/html")
        elif tool == "moved":
            self._reply(301, location="http://127.0.0.2:1/mcp")
        elif tool == "refuse":
            self._answer(message, error=SAYS_NO)
        elif tool == "fail":
            self._answer(message, error={"code": -32603, "message": "Internal error"})
        elif tool == "proxy":
            self._answer(message, error=TIMED_OUT)
        elif tool in ("forgotten", "lost"):
            self._answer(message, {"task": {"taskId": tool, "status": "working"}})
        elif tool == "forgets" and self.calls.count("forgets") == 1:
            self.lost.append(self.headers["mcp-session-id"])
            self._answer(message, error=UNKNOWN_SESSION, status=404)
        else:
            self._answer(message, {"content": [], "resultType": "complete"})

    def _answer(
        self,
        message: dict[str, Any],
        result: dict[str, Any] | None = None,
        *,
        error: dict[str, Any] | None = None,
        status: int = 200,
        session: str = "",
    ) -> None:
        outcome = {"result": result} if error is None else {"error": error}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()
        self._reply(status, body, "application/json", **{"mcp-session-id": session})

    def _reply(self, status: int, body: bytes = b"", kind: str = "", **headers: str) -> None:
        self._head(status, kind, **headers, **{"content-length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: int, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()


@contextmanager
def web(era: ProtocolMode) -> Iterator[tuple[str, list[str]]]:
    """Serve, and give the address and the calls that come."""
    calls: list[str] = []
    own = {"era": era, "calls": calls, "posts": [], "lost": [], "given_up": threading.Event()}
    handler = type("Web", (_Web,), own)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", calls
        finally:
            server.shutdown()
            thread.join()


async def _error(pool: Pool, tool: str) -> UpstreamError:
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(UpstreamError) as caught:
        await pool.call_tool("server", tool, {})
    return caught.value


OUTCOMES: dict[str, Outcome] = {
    "cut": "unknown",
    "cut-stream": "unknown",
    "cut-resumable": "unknown",
    "cut-json": "unknown",
    "accepted": "unknown",
    "page": "unknown",
    "gateway": "unknown",
    "busy": "unknown",
    "slow": "unknown",
    "proxy": "unknown",
    "limited": "tool-error",
    "fail": "tool-error",
    "moved": "refused",
    "refuse": "refused",
}


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_over_http_a_call_is_sent_once_whatever_comes_back(
    rig: Rig, era: ProtocolMode
) -> None:
    """And only what the server said no to is not counted among what may have happened."""
    found: dict[str, Outcome] = {}
    for tool in OUTCOMES:
        with web(era) as (url, calls):
            async with rig.pool(rig.remote(url)) as pool:
                found[tool] = outcome_after(await _error(pool, tool))
                # The connection is there, or is made again, and nothing is left over.
                await pool.call_tool("server", "echo", {})
            assert calls == [tool, "echo"]
    assert found == OUTCOMES


async def test_only_the_request_that_a_server_forgot_is_made_again(rig: Rig) -> None:
    """One that times out behind the server has the same code, and may have been carried out."""
    with web("older") as (url, calls):
        async with rig.pool(rig.remote(url)) as pool:
            await pool.call_tool("server", "forgets", {})
            assert calls == ["forgets", "forgets"]
    with web("older") as (url, calls):
        async with rig.pool(rig.remote(url)) as pool:
            with pytest.raises(CallTimeoutError):
                await pool.call_tool("server", "hang", {}, timeout=2.0)
            # Its cancellation was answered with the status for a session that is not known.
            assert outcome_after(await _error(pool, "proxy")) == "unknown"
            assert calls == ["hang", "proxy"]


@pytest.mark.parametrize("tool", ["forgotten", "lost"])
async def test_a_tool_whose_task_is_forgotten_is_not_called_again(rig: Rig, tool: str) -> None:
    """With its session, or alone: it was called, and may have done its work."""
    with web("older") as (url, calls):
        async with rig.pool(rig.remote(url)) as pool:
            assert outcome_after(await _error(pool, tool)) == "unknown"
            assert calls == [tool]


@pytest.mark.parametrize("era", ["newer", "older"])
@pytest.mark.parametrize("tool", ["killed", "crash_holding_stdout"])
async def test_over_stdio_a_call_is_sent_once_to_a_server_that_dies(
    rig: Rig, tmp_path: Path, era: ProtocolMode, tool: str
) -> None:
    """What the process read is written down on the way."""
    log = tmp_path / "sent"
    mode = "newer-only" if era == "newer" else ""
    script = f'exec "$0" "$@" < <(exec tee -a {log})'
    spec = rig.spec("bash", "-c", script, sys.executable, str(SERVERS / "raw.py"), mode)
    async with rig.pool(spec) as pool:
        error = await _error(pool, tool)
        assert isinstance(error, ServerLostError)
        assert outcome_after(error) == "unknown"
        assert (await pool.call_tool("server", "echo", {"n": 1}))["content"]
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    called = [one["params"]["name"] for one in sent if one["method"] == "tools/call"]
    assert called == [tool, "echo"]


async def test_what_was_not_sent_is_known_not_to_have_happened(rig: Rig, tmp_path: Path) -> None:
    """Arguments beyond the bound, and a server that is configured no more."""
    async with rig.pool(rig.raw(), max_message_bytes=10_000) as pool:
        with pytest.raises(MessageTooLargeError) as arguments:
            await pool.call_tool("server", "echo", {"text": "x" * 20_000})
        assert outcome_after(arguments.value) == "not-sent"
        with pytest.raises(MessageTooLargeError) as result:
            await pool.call_tool("server", "big", {"size": 20_000})
        assert outcome_after(result.value) == "unknown"
        # As when it is taken out of the configuration.
        pool._servers["server"].close(drain=False)
        assert outcome_after(await _error(pool, "echo")) == "not-sent"
