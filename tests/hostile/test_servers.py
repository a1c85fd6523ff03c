"""Hostile servers: whatever they list, answer or send unasked, the event loop does not stall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.model import RunRequest
from bridge.runs import Engine
from bridge.server.tools import search_result
from tests.fakes.client import FakeClient
from tests.hostile.conftest import Made, cases
from tests.watchdog import Watchdog

pytestmark = pytest.mark.guarantee("loop-never-stalls")

M = 1_000_000

PATIENCE_SECONDS = 240.0

CALL = """
try:
    print(repr(await mcp_pb.t(a="a" * 30 + "b"))[:200])
except Exception as error:
    print(error)
"""


def tool(name: str = "t", schema: Any = None, **fields: Any) -> dict[str, Any]:
    given = schema or {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"name": name, "description": "Does things", "inputSchema": given, **fields}


def list_tools(*tools: Any) -> bytes:
    return json.dumps({"tools": tools}).encode()


def takes(properties: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def list_with(properties: Any, count: int = 1, defs: Any = None, **more: Any) -> bytes:
    schema = takes(properties, **{"$defs": defs or {}}, **more)
    return list_tools(*(tool(f"t{number}", schema) for number in range(count)))


def nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = takes({"a": schema})
    return dict(schema["properties"])


def branch(width: int, depth: int) -> bytes:
    branches = {f"x{i}": {"anyOf": [refer(i + 1)] * width} for i in range(depth)}
    return list_with({"a": refer(0)}, defs=branches)


def refer(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/x{number}"}


def many(count: int, value: Any = None) -> dict[str, Any]:
    return {f"p{number}": value or {} for number in range(count)}


def enum(count: int) -> dict[str, Any]:
    return {"a": {"enum": [f"v{i}" for i in range(count)]}}


CIRCLE = {"x0": refer(1), "x1": refer(0)}
ALL_OF = {"allOf": [refer(1)] * 8}


LISTS: dict[str, tuple[Made, str]] = {
    "60,000 tools": (
        lambda: list_tools(*(tool(f"tool_{number}") for number in range(60_000))),
        "lists more than 10000 tools; the first 10000 are used",
    ),
    "2,000,000 entries that are none": (lambda: list_tools(*[1] * 2 * M), "the limit is 500,000"),
    "a name of 12 MB": (
        lambda: list_tools(tool("n" * 12 * M), tool()),
        "1 are left out: their names",
    ),
    "a description of 12 MB": (lambda: list_tools(tool(description="word " * 2 * M)), ""),
    "an enum of 200,000": (
        lambda: list_with(enum(200_000)),
        "shown without a schema, which is too large: 't0'",
    ),
    "20 enums of 19,000": (lambda: list_with(enum(19_000), 20), ""),
    "20 tools of 9,000 parameters": (lambda: list_with(many(9_000), 20), ""),
    "a parameter's name of 6 MB": (
        lambda: list_with({"p" * 6 * M: {}}, required=["p" * 6 * M]),
        "too large",
    ),
    "a default and an enum of 6 MB": (
        lambda: list_with({"a": {"default": "y" * 3 * M, "enum": ["z" * 3 * M]}}),
        "too large",
    ),
    "a schema of 40 levels": (lambda: list_with(nest(40)), ""),
    "a schema of 200 levels": (lambda: list_with(nest(200)), "nests too deeply"),
    "references in a circle": (lambda: list_with({"a": refer(0)}, defs=CIRCLE), ""),
    "references that multiply": (lambda: branch(10, 30), ""),
    "3 tools of references to 9,000 parameters": (
        lambda: list_with(many(20, refer(0)), 3, {"x0": ALL_OF, "x1": takes(many(9_000))}),
        "",
    ),
    "a pattern that backtracks": (
        lambda: list_with({"a": {"type": "string", "pattern": "^(a+)+$"}}),
        "",
    ),
    "60,000 annotations": (lambda: list_tools(tool(annotations=many(60_000))), "too large"),
    "4,000 names that read alike": (
        lambda: list_tools(*(tool(chr(0x4E00 + number)) for number in range(4_000))),
        "",
    ),
}


@cases(LISTS)
async def test_no_list_of_tools_keeps_the_loop(
    engine: Engine, files: Path, watchdog: Watchdog, caplog: Any, made: Made, told: str
) -> None:
    (files / "tools-1").write_bytes(made())
    said: list[str] = []
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        for code in (CALL, "len(await mcp_pb.list_tools())", "await mcp_pb.tool_x(b=3)"):
            try:
                said.append(str(await engine.run(RunRequest(code=code, timeout=5))))
            except BridgeError as error:
                said.append(str(error))
        for query in ({"query": "does things"}, {"query": "t", "limit": 50, "detail": "full"}):
            said.append(str(await search_result(engine, query, "me")))
        await engine.guide.tool_description()
        engine.guide.capabilities(("pb",))
        for show in (engine.guide.tools_json, engine.guide.server_stub):
            try:
                await show("pb")
            except BridgeError as error:
                said.append(str(error))
    warned = [record.getMessage() for record in caplog.records]
    assert told in "\n".join([*said, *warned])
    assert len(warned) < 20
    assert max(map(len, warned), default=0) < 2_000


def with_structure(data: bytes) -> bytes:
    return b'{"content":[],"structuredContent":{"a":' + data + b"}}"


def text(value: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": value}]}).encode()


RESULTS: dict[str, tuple[Made, str]] = {
    "3,000,000 items": (lambda: with_structure(b"[" + b"1," * 3 * M + b"1]"), "limit is 500,000"),
    "600,000 fields": (
        lambda: with_structure(json.dumps({f"k{i}": i for i in range(600_000)}).encode()),
        "limit is 500,000",
    ),
    "3,000 numbers of 4,000 digits": (
        lambda: with_structure(b"[" + (b"1" * 4_000 + b",") * 3_000 + b"1]"),
        "numbers of a thousand digits",
    ),
    "450,000 items": (lambda: with_structure(b"[" + b"1," * 450_000 + b"1]"), "{'a': [1, 1,"),
    "text that is 3,000,000 items": (lambda: text("[" + "1," * 3 * M + "1]"), "'[1,1,1,"),
    "30 MB of text": (lambda: text("x" * 30 * M), "xxx"),
    "100,000 blocks": (
        lambda: b'{"content":[' + b'{"type":"text","text":"x"},' * 100_000 + b"{}]}",
        "['x', 'x',",
    ),
    "an error of 100,000 blocks": (
        lambda: b'{"isError":true,"content":[' + b'{"type":"text","text":"x"},' * 100_000 + b"{}]}",
        "more characters",
    ),
    "100,000 levels": (lambda: with_structure(b"[" * 100_000 + b"]" * 100_000), "nests too deeply"),
}


@cases(RESULTS)
async def test_no_result_keeps_the_loop(
    engine: Engine, files: Path, watchdog: Watchdog, made: Made, told: str
) -> None:
    (files / "result").write_bytes(made())
    await engine.servers.load(["pb"])
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=CALL, timeout=120))
    assert told in result.stdout, result.error


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def note(method: str, **params: Any) -> bytes:
    return line(method=f"notifications/{method}", params=params)


def question(number: int) -> bytes:
    field = {"type": "string", "enum": [f"v{choice}" for choice in range(150)]}
    form = {"type": "object", "properties": {f"f{index}": field for index in range(45)}}
    params = {"message": "x", "requestedSchema": form}
    return line(id=number, method="elicitation/create", params=params)


FLOODS: dict[str, tuple[Made, str]] = {
    "garbage": (lambda: b"garbage\n" * 50_000, ""),
    "blank lines": (lambda: b"\n" * 15 * M, ""),
    "15 MB that begin like a message": (lambda: b"{" + b"x" * 15 * M + b"\n", ""),
    "a list of 7,000,000": (lambda: b"[" + b"1," * 7 * M + b"1]\n", "too many values"),
    "14 MB of bad characters": (lambda: b'{"a":"' + b"\xff" * 14 * M + b'"}\n', ""),
    "15,000,000 brackets": (lambda: b"[" * 15 * M + b"\n", "too many values"),
    "log messages": (lambda: note("message", level="info", data="x") * 5_000, ""),
    "a log message of 2,000,000": (
        lambda: note("message", level="info", data=["x"] * 2 * M),
        "too many values",
    ),
    "progress": (lambda: note("progress", progressToken=1_000_000_000, progress=1) * 5_000, ""),
    "changed tools": (lambda: note("tools/list_changed") * 5_000, ""),
    "answers to no call": (lambda: line(id=77, result={}) * 10_000, ""),
    "900 requests": (lambda: line(id=5, method="x") * 900, ""),
    "60 forms of 45 fields": (lambda: b"".join(question(number) for number in range(60)), ""),
    "a method of 10 MB": (lambda: line(id=5, method="n" * 10 * M), ""),
    "an id of 10 MB": (lambda: line(id="n" * 10 * M, result={}), ""),
}


@cases(FLOODS)
async def test_nothing_sent_unasked_keeps_the_loop(
    engine: Engine, files: Path, watchdog: Watchdog, tmp_path: Path, made: Made, told: str
) -> None:
    (files / "before").write_bytes(made())
    await engine.servers.load(["pb"])
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=CALL, timeout=120), FakeClient())
    assert result.stdout == "'ok'\n", result.error
    [log] = (tmp_path / "state").rglob("pb.log")
    assert told in log.read_text("utf-8", "replace")
    assert log.stat().st_size < 100_000


REQUESTS: dict[str, Any] = {
    "pings": {"id": 5, "method": "ping"},
    "unknown methods": {"id": 6, "method": "x"},
    "questions": {"id": 7, "method": "elicitation/create", "params": {"message": "a"}},
}


@pytest.mark.parametrize("request_", list(REQUESTS.values()), ids=list(REQUESTS))
async def test_requests_without_end_end_the_connection(
    engine: Engine, files: Path, watchdog: Watchdog, caplog: Any, request_: Any
) -> None:
    """Its server waits for no answer, and would leave a task here for each."""
    (files / "before").write_bytes(line(**request_) * 20_000)
    await engine.servers.load(["pb"])
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=CALL, timeout=120))
    assert "went away during tool 't'" in result.stdout
    assert "It made 1,000 requests without waiting for the answers" in caplog.text


def _pages(kind: str, entries: Any) -> dict[str, bytes]:
    return {
        f"{kind}-{number}": json.dumps({kind: entries, "nextCursor": str(number + 1)}).encode()
        for number in range(1, 102)
    }


OFFERS: dict[str, tuple[Any, str]] = {
    "60,000 resources": (
        lambda: {"resources": [{"uri": f"a:{i}", "name": "a"} for i in range(60_000)]},
        "more than 10000 resources",
    ),
    "700,000 resources that are none": (lambda: {"resources": [1] * 700_000}, "limit is 500,000"),
    "a resource of 12 MB": (
        lambda: {"resources": [{"uri": "a" * 6 * M, "description": "b" * 6 * M}]},
        "1 of its resources are unusable",
    ),
    "a prompt of 100,000 arguments": (
        lambda: {"prompts": [{"name": "p", "arguments": [{"name": "a"}] * 100_000}]},
        "",
    ),
    "a description of 12 MB": (
        lambda: {"prompts": [{"name": "p", "description": "word " * 2 * M}]},
        "",
    ),
}

LIST_OFFERS = """
for each in (mcp_pb.list_resources, mcp_pb.list_prompts):
    try:
        print(len(await each()))
    except Exception as error:
        print(error)
"""


@cases(OFFERS)
async def test_no_list_of_resources_or_prompts_keeps_the_loop(
    engine: Engine, files: Path, watchdog: Watchdog, caplog: Any, made: Any, told: str
) -> None:
    page = made()
    [kind] = page
    (files / f"{kind}-1").write_text(json.dumps(page))
    await engine.servers.load(["pb"])
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=LIST_OFFERS, timeout=120))
    assert told in caplog.text + result.stdout


@pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
async def test_no_list_without_an_end_keeps_the_loop(
    engine: Engine, files: Path, watchdog: Watchdog, caplog: Any, kind: str
) -> None:
    entries = [{"name": f"n{number}", "uri": f"a:{number}"} for number in range(90)]
    for name, page in _pages(kind, entries).items():
        (files / name).write_bytes(page)
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        await engine.run(RunRequest(code=LIST_OFFERS, servers=("pb",), timeout=120))
    assert f"its list of {kind} does not end; 9000 are used" in caplog.text


async def test_of_a_list_that_is_too_large_is_said_who_can_do_what(
    engine: Engine, files: Path
) -> None:
    (files / "tools-1").write_bytes(list_tools(*[1] * 600_000))
    with pytest.raises(BridgeError, match="has to list less, or in more pages"):
        await engine.guide.tools_json("pb")
