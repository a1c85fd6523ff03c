"""An HTTP server that sends the responses that a test chooses, over either HTTP transport."""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio

from bridge.model import Transport
from bridge.upstream.pool import Pool
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Answer:
    """A response; `$ID` in the body is the request's id.

    Attributes:
        status: 0 for no response at all.
        ends: Whether it says where it ends; else the connection is cut there.
    """

    status: int = 200
    body: str = ""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: bool = True


def rpc(**fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", **fields}).replace('"$ID"', "$ID")


def error(code: int, message: str) -> str:
    return rpc(id="$ID", error={"code": code, "message": message})


class OddWeb:
    """One server: its responses, and the requests that it received.

    Attributes:
        discover: The response to `server/discover`; None for no response.
        lost: The response to a request of an unknown session, and to `notifications/cancelled`.
        tools: Responses of tools, or functions of the arguments. Other tools return their
            arguments; `forget` first forgets all sessions.
        methods: Responses to other methods.
        received: The method or the tool of each request, in order.
        certificate: The file of its certificate for TLS, with its key in another of suffix ".key".
    """

    def __init__(self, transport: Transport = "http") -> None:
        self.transport = transport
        self.lost = Answer(404)
        self.tools: dict[str, Answer | Callable[[Mapping[str, Any]], Answer]] = {}
        self.methods: dict[str, Answer] = {}
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.modern = False
        self.cancelled = threading.Event()
        self.discover: Answer | None = Answer(200, error(-32601, "Method not found"))
        self.received: list[str] = []
        self.sessions: dict[str, queue.Queue[str]] = {}
        self.url = ""
        self.certificate: Path | None = None
        self.ended = threading.Event()
        self._count = 0

    def open_session(self) -> str:
        self._count += 1
        name = f"session-{self._count}"
        self.sessions[name] = queue.Queue()
        return name

    def answer(self, session: str, message: Mapping[str, Any]) -> tuple[Answer, str]:
        method, params = message["method"], message.get("params") or {}
        tool = params.get("name", "") if method == "tools/call" else ""
        self.received.append(tool or method)
        if method == "server/discover":
            if self.discover is None:
                self.ended.wait()
            return self.discover or Answer(500), ""
        if method == "initialize":
            version = params["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": self.capabilities}
            result |= {"serverInfo": {"name": "odd", "version": "1"}}
            opened = "" if self.transport == "sse" else self.open_session()
            return Answer(200, rpc(id="$ID", result=result)), opened
        if method == "notifications/cancelled":
            self.cancelled.set()
            return self.lost, ""
        if session not in self.sessions and not self.modern:
            return self.lost, ""
        if "id" not in message:
            return Answer(202), ""
        if method in self.methods:
            return self.methods[method], ""
        if method == "tools/list":
            names = ("echo", "forget", *self.tools)
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            return Answer(200, rpc(id="$ID", result={"tools": listed})), ""
        if tool == "forget":
            self.sessions.clear()
        text = json.dumps(params.get("arguments"))
        given = rpc(id="$ID", result={"content": [{"type": "text", "text": text}]})
        answer = self.tools.get(tool, Answer(200, given))
        return answer(params["arguments"]) if callable(answer) else answer, ""

    @asynccontextmanager
    async def pool(self, rig: Rig, **options: Any) -> AsyncIterator[Pool]:
        """Serve, and yield a pool with this server."""
        with anyio.fail_after(PATIENCE_SECONDS), self.serve():
            async with rig.pool(rig.remote(self.url, self.transport), **options) as pool:
                yield pool

    def speak_newer(self) -> None:
        """Speak only 2026-07-28, which has no sessions."""
        self.modern = True
        result: dict[str, Any] = {"resultType": "complete"}
        result |= {"supportedVersions": ["2026-07-28"]}
        result |= {"capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}
        self.discover = Answer(200, rpc(id="$ID", result=result))

    @contextmanager
    def serve(self) -> Iterator[OddWeb]:
        handler = type("Handler", (_Handler,), {"web": self})
        with _Server(("127.0.0.1", 0), handler) as server:
            if self.certificate is not None:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(self.certificate, self.certificate.with_suffix(".key"))
                server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            scheme = "http" if self.certificate is None else "https"
            self.url = f"{scheme}://127.0.0.1:{server.server_port}/mcp"
            try:
                yield self
            finally:
                self.ended.set()
                for events in self.sessions.values():
                    events.put("")
                server.shutdown()
                thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # A test's calls connect at once; the kernel resets those beyond it.


class _Handler(BaseHTTPRequestHandler):
    web: OddWeb
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_DELETE(self) -> None:
        self._reply(Answer())

    def do_GET(self) -> None:
        if self.web.transport != "sse":
            self._reply(Answer(405))
            return
        name = self.web.open_session()
        events = self.web.sessions[name]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        self._event("endpoint", f"/mcp?session={name}")
        while data := events.get():
            self._event("message", data)

    def _event(self, name: str, data: str) -> None:
        self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
        self.wfile.flush()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.path.partition("session=")[2] or self.headers.get("mcp-session-id", "")
        events = self.web.sessions.get(session)
        answer, opened = self.web.answer(session, message)
        body = answer.body.replace("$ID", json.dumps(message.get("id")))
        if opened:
            answer = Answer(answer.status, body, headers={"mcp-session-id": opened})
        elif self.web.transport == "sse" and events is not None and answer.status == 200:
            answer = Answer(202, "Accepted", "text/plain")
            events.put(body)
        else:
            answer = replace(answer, body=body)
        self._reply(answer)

    def _reply(self, answer: Answer) -> None:
        self.close_connection = True
        if not answer.status:
            return
        body = answer.body.encode()
        self.send_response(answer.status)
        if answer.kind:
            self.send_header("content-type", answer.kind)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.ends:
            self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)
