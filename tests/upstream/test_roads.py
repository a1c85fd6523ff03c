"""On every road a result's parts are what the server sent, and what is no result is explained.

The server answers each call with the line in its arguments, in which ID is the request's number.
"""

from __future__ import annotations

import base64
import json
import math
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.errors import ToolCallError, UpstreamError
from bridge.guest.api.values import Blob
from bridge.rpc.values import tool_error
from bridge.upstream.pool import Pool
from tests.guest.api.test_results import value_of
from tests.upstream.rig import SERVERS, Rig

ROADS = ("stdio", "body", "event", "stream")

ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "playback", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
}


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        """Open the stream of the older transport."""
        if self.server.road != "stream":
            self.send_error(405)
            return
        self._head(200, "text/event-stream")
        self.wfile.write(b"event: endpoint\ndata: /mcp\n\n")
        with suppress(ConnectionError):
            while (event := self.server.events.get()) is not None:
                self.wfile.write(event)

    def do_POST(self) -> None:
        """Answer a request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = request.get("id")
        if number is None:
            self._head(202, "text/plain")
            return
        if request["method"] == "tools/call":
            body = request["params"]["arguments"]["line"].replace("ID", str(number), 1).encode()
        elif (answer := ANSWERS.get(request["method"])) is not None:
            body = json.dumps({"jsonrpc": "2.0", "id": number, "result": answer}).encode()
        else:
            error = {"code": -32601, "message": "no"}
            body = json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
        event = b"event: message\ndata: %b\n\n" % body
        if self.server.road == "stream":
            self.server.events.put(event)
            self._head(202, "text/plain")
        elif self.server.road == "event":
            self._head(200, "text/event-stream")
            self.wfile.write(event)
        else:
            self._head(200, "application/json")
            self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def _web(road: str) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.road, server.events = road, queue.SimpleQueue()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.events.put(None)  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


class Road:
    """A connection to a server that sends the given lines."""

    def __init__(self, portal: BlockingPortal, pool: Pool) -> None:
        self._portal, self._pool = portal, pool

    def call(self, line: str) -> dict[str, Any]:
        """Return the result of a call that is answered with a line."""
        return self._portal.call(self._pool.call_tool, "server", "t", {"line": line})


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Road]]:
    """Each transport for results."""
    rig = Rig(tmp_path_factory.mktemp("roads"))
    playback = rig.spec(sys.executable, str(SERVERS / "playback.py"), str(rig.directory))
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        made = {}
        for road in ROADS:
            if road == "stdio":
                spec = playback
            else:
                url = stack.enter_context(_web(road))
                spec = rig.remote(url, transport="sse" if road == "stream" else "http")
            pool = portal.wrap_async_context_manager(rig.pool(spec))
            made[road] = Road(portal, stack.enter_context(pool))
        yield made


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3)
TEXTS = st.text(max_size=30) | VALUES.map(json.dumps)
DATA = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode())
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": TEXTS},
        optional={"annotations": OBJECTS, "_meta": OBJECTS},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(("image", "audio")), "data": DATA, "mimeType": st.just("a/b")}
    ),
    st.fixed_dictionaries({"type": st.just("resource_link"), "uri": TEXTS, "name": TEXTS}),
    st.fixed_dictionaries(
        {
            "type": st.just("resource"),
            "resource": st.fixed_dictionaries(
                {"uri": TEXTS}, optional={"text": TEXTS, "blob": DATA}
            ),
        }
    ),
    OBJECTS.map(lambda more: {**more, "type": "of another day"}),
)
RESULTS = st.fixed_dictionaries(
    {"content": st.lists(BLOCKS, max_size=3)},
    optional={
        "structuredContent": OBJECTS | VALUES,
        "_meta": OBJECTS,
        "isError": st.booleans(),
        "x": VALUES,
    },
)
WHOLE = {"structuredContent": None, "_meta": None, "isError": False}


def parts(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result.get(key, other) for key, other in {**WHOLE, "content": None}.items()}


def exact(value: Any) -> str:
    """Return JSON, in which 1, 1.0 and True differ."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("road", ROADS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(result=RESULTS, ascii_only=st.booleans())
def test_the_parts_are_what_the_server_sent(
    roads: dict[str, Road], road: str, result: dict[str, Any], ascii_only: bool
) -> None:
    body = json.dumps(result, ensure_ascii=ascii_only)
    received = roads[road].call(f'{{"jsonrpc": "2.0", "id": ID, "result": {body}}}')
    assert exact(parts(received)) == exact(parts(result))
    if tool_error(received) is not None:
        return
    value = value_of(received)
    if value is None or isinstance(value, bool):
        return
    own = value if isinstance(value, dict) else ()
    structure, meta = result.get("structuredContent"), result.get("_meta") or None
    sent = {"content": result["content"], "structuredContent": structure, "meta": meta}
    for name in sent.keys() - own:
        assert exact(value[name]) == exact(sent[name])


@pytest.mark.parametrize("road", ROADS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(code=st.integers(-40_000, 40_000), message=st.text(max_size=9), data=VALUES)
def test_an_error_is_what_the_server_sent(
    roads: dict[str, Road], road: str, code: int, message: str, data: Any
) -> None:
    error = json.dumps({"code": code, "message": message, "data": data})
    with pytest.raises(UpstreamError) as raised:
        roads[road].call(f'{{"jsonrpc": "2.0", "id": ID, "error": {error}}}')
    if isinstance(raised.value, ToolCallError):
        assert message in raised.value.message
        assert (raised.value.rpc_code, exact(raised.value.data)) == (code, exact(data))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def line(result: Any) -> str:
    body = result if isinstance(result, str) else json.dumps(result)
    return f'{{"jsonrpc":"2.0","id":ID,"result":{body}}}'


LARGE = base64.b64encode(bytes(7_500_000)).decode()
DEEP = "[" * 150 + "]" * 150

ODD: dict[str, tuple[str, Any]] = {
    "null": (line("null"), []),
    "a text": (line('"done"'), "done"),
    "a number": (line("5"), 5),
    "a list": (line("[]"), []),
    "a list of blocks": (line([text("a"), text("b")]), ["a", "b"]),
    "blocks in blocks": (line({"content": [[text("a")], text("b")]}), [[text("a")], "b"]),
    "a text as content": (line({"content": "x"}), "x"),
    "a block as content": (line({"content": text("x")}), "x"),
    "a number as content": (line({"content": 5}), "5"),
    "null as content": (line({"content": None}), []),
    "null as a block": (line({"content": [None, text("x")]}), ["", "x"]),
    "a block of an unknown type": (
        line({"content": [{"type": "y", "z": 1}]}),
        {"type": "y", "z": 1},
    ),
    "a block without a type": (line({"content": [{"text": "x"}]}), "x"),
    "a type that is a number": (line({"content": [{"type": 5, "text": "x"}]}), "x"),
    "a text that is a number": (line({"content": [{"type": "text", "text": 5}]}), "5"),
    "a resource that is a text": (
        line({"content": [{"type": "resource", "resource": "r"}]}),
        {"type": "resource", "resource": "r"},
    ),
    "a picture without data": (line({"content": [{"type": "image"}]}), {"type": "image"}),
    "10 MB of base64": (
        line({"content": [{"type": "image", "data": LARGE, "mimeType": "image/png"}]}),
        Blob("image/png", bytes(7_500_000)),
    ),
    "a structure that is a list": (line({"content": [], "structuredContent": [1]}), [1]),
    "a structure that is a text": (line({"content": [], "structuredContent": "x"}), "x"),
    "an empty structure": (line({"content": [text("x")], "structuredContent": {}}), {}),
    "meta that is a list": (line({"content": [text("x")], "_meta": [1]}), "x"),
    "meta that is a text": (line({"content": [text("x")], "_meta": "m"}), "x"),
    "half a character": (line('{"content":[{"type":"text","text":"\\ud800x"}]}'), "\ufffdx"),
    "a key twice": (line('{"content":[],"structuredContent":{"a":1,"a":2}}'), {"a": 2}),
    "a content twice": (line('{"content":[],"content":[{"type":"text","text":"x"}]}'), "x"),
    "a huge integer": (line({"content": [], "structuredContent": {"a": 10**60}}), {"a": 10**60}),
    "1e999": (line('{"content":[],"structuredContent":{"a":1e999}}'), {"a": math.inf}),
    "Infinity": (line('{"content":[],"structuredContent":{"a":-Infinity}}'), {"a": -math.inf}),
    "JSON after a mark": (line({"content": [text('\ufeff{"a":1}')]}), '\ufeff{"a":1}'),
    "lines of JSON": (line({"content": [text('{"a":1}\n{"a":2}\n')]}), '{"a":1}\n{"a":2}\n'),
    "1e999 in a text": (line({"content": [text("[1e999]")]}), [math.inf]),
    "deep": (line({"content": [text(DEEP)]}), json.loads(DEEP)),
    "a structure in depth": (
        line(f'{{"content":[],"structuredContent":{{"a":{DEEP}}}}}'),
        {"a": json.loads(DEEP)},
    ),
    "another kind of result": (line({"a": 1}), {"a": 1}),
    "an older kind of result": (line({"toolResult": {"a": 1}}), {"a": 1}),
    "in a list": (f"[{line({'content': [text('x')]})}]", "x"),
    "a number as text": (line({"content": [text("x")]}).replace("ID", '"ID"'), "x"),
    "an error that is a text": ('{"jsonrpc":"2.0","id":ID,"error":"it broke"}', "it broke"),
    "an error that is a list": ('{"jsonrpc":"2.0","id":ID,"error":["a"]}', '["a"]'),
    "an error that is true": ('{"jsonrpc":"2.0","id":ID,"error":true}', "true"),
    "an error with a result": (
        '{"jsonrpc":"2.0","id":ID,"result":null,"error":{"message":"m"}}',
        "m",
    ),
    "neither": ('{"jsonrpc":"2.0","id":ID}', "is not a JSON-RPC message"),
    "10,000 levels": (line("[" * 10_000 + "]" * 10_000), "nests too deeply"),
    "no JSON": (
        '{"jsonrpc":"2.0","id":ID,"result":{"secret":nothing}}',
        "is not a JSON-RPC message",
    ),
}
"""What a server answers, and the value that programs get, or what the error says."""


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_carried_or_explained(
    roads: dict[str, Road], road: str, name: str, capfd: Any, caplog: Any
) -> None:
    sent, expected = ODD[name]
    try:
        found = value_of(roads[road].call(sent))
    except UpstreamError as error:
        found = error.message
        assert found.endswith(expected) or f"answer {expected}" in found
    else:
        assert found == expected
        assert isinstance(found, type(expected))
    said = f"{found!r:.500}" + "".join(capfd.readouterr()) + caplog.text
    for words in ("pydantic", "validation error", "Traceback", "secret"):
        assert words not in said
