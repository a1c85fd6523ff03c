"""A stand-in for the models' APIs on loopback: it plays a script of calls and keeps the requests.

Which step of the script comes next follows from the request, as it does for a model: from how many
of its calls have been answered. Whatever has no tools, such as the wish for a title, gets a word.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients.wires import Asked, Json, Received, Reply, Say, Use, wire_of

CALL = "call_"
"""What the ids of scripted calls begin with."""

FIND = "find_"
"""What those begin with that look for a tool which the client holds back."""

FINDERS: Mapping[str, Callable[[str], Mapping[str, Json]]] = {
    "ToolSearch": lambda name: {"query": f"select:{name}", "max_results": 5},
    "tool_search": lambda name: {"query": name},
}
"""Tools that find a tool which is held back, and their arguments."""

PASSER = "tool_call"
"""A tool that calls one which is held back."""


@dataclass(frozen=True)
class Call:
    """One call of a tool of the bridge."""

    arguments: Mapping[str, Json]
    tool: str = "run_python"


Step = Call | Callable[[Sequence[Received]], Call]
"""A call, or what makes one of the results of the calls before it."""


def program(code: str, **arguments: Json) -> Call:
    return Call({"code": code, **arguments})


@dataclass
class Model:
    """The stand-in.

    Attributes:
        url: Where it listens, without a path.
        requests: Every request with tools, in order.
        sizes: The bytes of each of them.
        unknown: What else was asked for: paths that are no API's, and machines elsewhere.
    """

    script: Sequence[Step]
    url: str = ""
    requests: list[Asked] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def reply(self, asked: Asked) -> Reply:
        if not asked.tools:
            return Say("ok")
        self.requests.append(asked)
        results = scripted(asked)
        if len(results) == len(self.script):
            return Say("done")
        step = self.script[len(results)]
        call = step if isinstance(step, Call) else step(results)
        name = f"{CALL}{len(results)}"
        tool = _ending(asked.tools, call.tool)
        if tool:
            return Use(name, tool, call.arguments)
        return self._held_back(asked, name, call)

    def _held_back(self, asked: Asked, name: str, call: Call) -> Reply:
        """Look for a tool that is not among the given ones, then call it."""
        told = re.search(rf"[\w.-]+__{call.tool}\b", asked.told)
        tool = told[0] if told else call.tool
        if not any(result.call.startswith(FIND) for result in asked.results):
            finder = next((name for name in FINDERS if name in asked.tools), None)
            return Use(FIND, finder, FINDERS[finder](tool)) if finder else Say("no such tool")
        if PASSER in asked.tools:
            return Use(name, PASSER, {"name": tool, "arguments": dict(call.arguments)})
        return Use(name, tool, call.arguments)


def scripted(asked: Asked) -> list[Received]:
    return [result for result in asked.results if not result.call.startswith(FIND)]


@contextmanager
def serving(script: Sequence[Step]) -> Iterator[Model]:
    model = Model(script)
    handler = type("Handler", (_Handler,), {"model": model})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers for a model; each server has a class of its own, with that."""

    model: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._send({})

    def do_GET(self) -> None:
        self._send({"data": [], "models": []})

    def do_CONNECT(self) -> None:
        self.model.unknown.append(self.path)
        self.send_error(403)

    def do_POST(self) -> None:
        raw = _body(self)
        body = json.loads(raw or b"{}")
        wire = wire_of(self.path)
        if wire is None:
            self.model.unknown.append(self.path)
            self._send({"input_tokens": 1, "totalTokens": 1})
            return
        asked = wire.asked(body)
        if asked.tools:
            self.model.sizes.append(len(raw))
        reply = self.model.reply(asked)
        if body.get("stream") or "stream" in self.path:
            self._stream(wire.events(body, reply))
        else:
            self._send(wire.whole(body, reply))

    def _send(self, document: Json) -> None:
        text = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, events: Sequence[Json]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            kind = event.get("type") if isinstance(event, dict) else None
            text = event if isinstance(event, str) else json.dumps(event)
            named = f"event: {kind}\n" if kind else ""
            self.wfile.write(f"{named}data: {text}\n\n".encode())
        self.close_connection = True


def _ending(names: Mapping[str, Json], tool: str) -> str | None:
    """Return the name that a client gave a tool of the bridge, to which it adds the server's."""
    found = (name for name in names if re.search(rf"(^|[^a-zA-Z]){tool}$", name))
    return next(found, None)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("transfer-encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("content-length") or 0))
    whole = b""
    while size := int(request.rfile.readline(), 16):
        whole += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return whole
