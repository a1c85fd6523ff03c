"""Over every transport a program gets a result's parts as sent, and an error for anything else.

The server answers each call with the line in its arguments, in which ID is the request's number.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.errors import ToolCallError, UpstreamError
from bridge.guest.api.values import Blob
from bridge.rpc.values import tool_error
from tests.guest.api.test_results import value_of
from tests.upstream.odd_web import Answer, OddWeb
from tests.upstream.rig import SERVERS, Rig

ROADS = ("stdio", "body", "event", "stream")


def _serve(road: str) -> AbstractContextManager[OddWeb]:
    web = OddWeb("sse" if road == "stream" else "http")

    def answer(given: Mapping[str, Any]) -> Answer:
        line = given["line"].replace("ID", "$ID", 1)
        event = f"event: message\ndata: {line}\n\n"
        return Answer(200, event, "text/event-stream") if road == "event" else Answer(200, line)

    web.tools["t"] = answer
    return web.serve()


Road = Callable[[dict[str, Any]], dict[str, Any]]
"""Calls a tool of a server that sends the line in its arguments."""


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Road]]:
    rig = Rig(tmp_path_factory.mktemp("roads"))
    playback = rig.spec(sys.executable, str(SERVERS / "playback.py"), str(rig.directory))
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        made: dict[str, Road] = {}
        for road in ROADS:
            if road == "stdio":
                spec = playback
            else:
                web = stack.enter_context(_serve(road))
                spec = rig.remote(web.url, transport=web.transport)
            pool = stack.enter_context(portal.wrap_async_context_manager(rig.pool(spec)))
            made[road] = partial(portal.call, pool.call_tool, "server", "t")
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
    received = roads[road]({"line": line(body)})
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
    sent = json.dumps({"code": code, "message": message, "data": data})
    with pytest.raises(UpstreamError) as raised:
        roads[road]({"line": error(sent)})
    if isinstance(raised.value, ToolCallError):
        assert message in raised.value.message
        assert (raised.value.rpc_code, exact(raised.value.data)) == (code, exact(data))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def line(result: Any) -> str:
    body = result if isinstance(result, str) else json.dumps(result)
    return f'{{"jsonrpc":"2.0","id":ID,"result":{body}}}'


def content(*blocks: Any, **more: Any) -> str:
    return line({"content": blocks, **more})


def error(value: str) -> str:
    return f'{{"jsonrpc":"2.0","id":ID,"error":{value}}}'


LARGE = base64.b64encode(bytes(7_500_000)).decode()
DEEP = "[" * 150 + "]" * 150

ODD: dict[str, tuple[str, Any]] = {
    "null": (line("null"), []),
    "a text": (line('"done"'), "done"),
    "blocks in blocks": (content([text("a")], text("b")), [[text("a")], "b"]),
    "a number as content": (line({"content": 5}), "5"),
    "null as content": (line({"content": None}), []),
    "null as a block": (content(None, text("x")), ["", "x"]),
    "a block of an unknown type": (content({"type": "y", "z": 1}), {"type": "y", "z": 1}),
    "a type that is a number": (content({"type": 5, "text": "x"}), "x"),
    "a resource that is a text": (
        content({"type": "resource", "resource": "r"}),
        {"type": "resource", "resource": "r"},
    ),
    "a picture without data": (content({"type": "image"}), {"type": "image"}),
    "10 MB of base64": (
        content({"type": "image", "data": LARGE, "mimeType": "image/png"}),
        Blob("image/png", bytes(7_500_000)),
    ),
    "a structure that is a list": (content(structuredContent=[1]), [1]),
    "a structure that is a text": (content(structuredContent="x"), "x"),
    "an empty structure": (content(text("x"), structuredContent={}), {}),
    "meta that is a list": (content(text("x"), _meta=[1]), "x"),
    "meta that is a text": (content(text("x"), _meta="m"), "x"),
    "half a character": (line('{"content":[{"type":"text","text":"\\ud800x"}]}'), "\ufffdx"),
    "a key twice": (line('{"content":[],"structuredContent":{"a":1,"a":2}}'), {"a": 2}),
    "a content twice": (line('{"content":[],"content":[{"type":"text","text":"x"}]}'), "x"),
    "a huge integer": (content(structuredContent={"a": 10**60}), {"a": 10**60}),
    "1e999": (line('{"content":[],"structuredContent":{"a":1e999}}'), {"a": math.inf}),
    "Infinity": (line('{"content":[],"structuredContent":{"a":-Infinity}}'), {"a": -math.inf}),
    "JSON after a mark": (content(text('\ufeff{"a":1}')), '\ufeff{"a":1}'),
    "lines of JSON": (content(text('{"a":1}\n{"a":2}\n')), '{"a":1}\n{"a":2}\n'),
    "1e999 in a text": (content(text("[1e999]")), [math.inf]),
    "deep": (content(text(DEEP)), json.loads(DEEP)),
    "a structure in depth": (
        line(f'{{"content":[],"structuredContent":{{"a":{DEEP}}}}}'),
        {"a": json.loads(DEEP)},
    ),
    "in a list": (f"[{line({'content': [text('x')]})}]", "x"),
    "a number as text": (content(text("x")).replace("ID", '"ID"'), "x"),
    "an error that is a text": (error('"it broke"'), "it broke"),
    "an error that is a list": (error('["a"]'), '["a"]'),
    "an error that is true": (error("true"), "true"),
    "an error with a result": (error('{"message":"m"},"result":null'), "m"),
    "an error without a message": (
        error('{"code":7,"message":null}'),
        '{"code": 7, "message": null}',
    ),
    "an error with a text as code": (error('{"code":"E1","message":"m"}'), "m"),
    "neither": ('{"jsonrpc":"2.0","id":ID}', "is not a JSON-RPC message"),
    "10,000 levels": (line("[" * 10_000 + "]" * 10_000), "nests too deeply"),
    "no JSON": (line('{"secret":nothing}'), "is not a JSON-RPC message"),
}
"""A server's response, and the value that programs get, or the error's text."""


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_carried_or_explained(
    roads: dict[str, Road], road: str, name: str, capfd: Any, caplog: Any
) -> None:
    sent, expected = ODD[name]
    try:
        found = value_of(roads[road]({"line": sent}))
    except UpstreamError as error:
        found = error.message
        assert found.endswith(expected) or f"answer {expected}" in found
    else:
        assert found == expected
        assert isinstance(found, type(expected))
    shown = f"{found!r:.500}" + "".join(capfd.readouterr()) + caplog.text
    for words in ("pydantic", "validation error", "Traceback", "secret"):
        assert words not in shown
