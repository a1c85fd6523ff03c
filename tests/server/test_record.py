"""What of a result a model reads, and what only programs do, in both eras of the protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import mcp_types as types
import pytest
from mcp import Client
from mcp.types import LoggingMessageNotificationParams

from bridge.model import MEBIBYTE
from bridge.runs import Engine
from bridge.runs.input_files import MAX_BYTES
from bridge.server.app import build_server
from bridge.server.arguments import OUTPUT_SCHEMA
from bridge.server.content import RECORD_KEY
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.png import write_png
from tests.record import record_of, texts_of
from tests.server.pipe_rig import hello, piped, request
from tests.server.web_rig import served


@asynccontextmanager
async def connected(settings: Settings, era: Any, name: str = "c") -> AsyncIterator[Client]:
    async with (
        engine_on(FakeBackend(), settings, finder=ListFinder(workshop())) as engine,
        Client(
            build_server(engine), mode=era, client_info=types.Implementation(name=name, version="1")
        ) as client,
    ):
        yield client


async def test_gemini_cli_refuses_no_result_that_is_json(settings: Settings, era: Any) -> None:
    async with connected(settings, era, "gemini-cli-mcp-client") as client:
        result = await client.call_tool("run_python", {"code": "print(1+1)"})
        failed = await client.call_tool("run_python", {"code": "1/0"})
    assert (texts_of(result), result.structured_content) == (["2\n"], {})
    assert result.meta is not None
    assert result.meta[RECORD_KEY]["stdout"] == ["2"]
    assert failed.structured_content is None


@pytest.mark.parametrize("name", ["gemini-cli-mcp-client", "qwen-cli-mcp-client-code-bridge"])
async def test_clients_that_show_failures_whole_get_the_text_alone(
    settings: Settings, era: Any, name: str
) -> None:
    async with connected(settings, era, name) as client:
        failed = await client.call_tool("run_python", {"code": "1/0"})
        refused = await client.call_tool("search_tools", {"query": 5})
    assert "ZeroDivisionError: division by zero" in texts_of(failed)[0]
    for result in (failed, refused):
        assert result.is_error
        assert RECORD_KEY not in (result.meta or {})


async def test_the_mode_of_output_is_that_of_the_value_alone(settings: Settings, era: Any) -> None:
    code = "print('rows')\n[{'name': 'ann', 'age': 31}, {'name': 'ben', 'age': 27}]"
    async with connected(replace(settings, output_mode="auto"), era) as client:
        result = await client.call_tool("run_python", {"code": code})
    assert texts_of(result) == ["rows\n[result]\n[2]{name,age}:\n  ann,31\n  ben,27"]
    assert record_of(result)["result"][1] == {"name": "ben", "age": 27}


async def test_programs_can_have_structured_content(settings: Settings, era: Any) -> None:
    own = replace(settings, structured="content")
    async with connected(own, era) as client:
        tool, _ = (await client.list_tools()).tools
        result = await client.call_tool("run_python", {"code": "print('hello')\n[1, 2]"})
        found = await client.call_tool("search_tools", {"query": "add two numbers"})
    assert tool.output_schema == OUTPUT_SCHEMA
    assert result.structured_content["result"] == [1, 2]
    jsonschema.validate(result.structured_content, OUTPUT_SCHEMA)
    assert found.structured_content["tools"][0]["tool"] == "add"
    assert RECORD_KEY not in {**(result.meta or {}), **(found.meta or {})}
    assert texts_of(result) == ["hello\n[result]\n[1,2]"]


PNG = write_png(6, 4, lambda x, y: (250, 40 * y, 0))
BUDGET = len(base64.b64encode(PNG)) + 8

CODE = f"""
import base64
class Table:
    def _repr_markdown_(self): return "|a|\\n|-|\\n|1|"
class Page:
    def _repr_html_(self): return "<p>hello</p><script>go()</script>"
png = Blob("image/png", base64.b64decode({base64.b64encode(PNG).decode()!r}))
print("printed")
display(png, Table(), Page(), png)
[1, 2]
"""


@pytest.fixture
async def engine(settings: Settings, backend: FakeBackend) -> AsyncIterator[Engine]:
    own = replace(settings, shown_bytes=BUDGET)
    async with engine_on(backend, own, finder=ListFinder()) as opened:
        yield opened


async def test_what_was_shown_follows_the_text_as_blocks(engine: Engine, era: str) -> None:
    async with Client(build_server(engine), mode=era) as client:
        result = await client.call_tool("run_python", {"code": CODE})
        text, picture, table, page, *links = result.content
        assert isinstance(text, types.TextContent)
        assert text.text.startswith("printed\n")
        assert isinstance(picture, types.ImageContent)
        assert picture.mime_type == "image/png"
        assert base64.b64decode(picture.data) == PNG
        assert isinstance(table, types.TextContent)
        assert table.text == "|a|\n|-|\n|1|"
        assert isinstance(page, types.TextContent)
        assert page.text == "hello"
        document = record_of(result)
        jsonschema.validate(document, OUTPUT_SCHEMA)
        assert document["result"] == [1, 2]
        one, two, three, four = document["shown"]
        assert (one["mimeType"], one["width"], one["height"]) == ("image/png", 6, 4)
        assert (two["mimeType"], "uri" in two) == ("text/markdown", False)
        assert three["note"] == "the text of a page"
        assert four["note"].startswith("not shown: ")
        assert "data" not in one
        assert {block.uri for block in links if isinstance(block, types.ResourceLink)} == {
            three["uri"],
            four["uri"],
        }
        (original,) = (await client.read_resource(four["uri"])).contents
        assert isinstance(original, types.BlobResourceContents)
        assert base64.b64decode(original.blob) == PNG


PRINTING = """
import os, time
runtime.progress(1, 4, "loading")
print("first line", flush=True)
print("a warning", file=__import__("sys").stderr, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.01)
"""


async def test_output_and_progress_reach_a_client_that_wants_them(
    engine: Engine, era: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    heard: dict[str, str] = {}
    seen: list[tuple[float, float | None, str | None]] = []
    complete = anyio.Event()

    def look() -> None:
        told = era != "legacy" or any("first line" in str(text) for _, _, text in seen)
        if told and {"info", "notice"} <= heard.keys():
            complete.set()

    async def hear(params: LoggingMessageNotificationParams) -> None:
        assert params.logger == "run_python"
        heard[params.level] = heard.get(params.level, "") + str(params.data)
        look()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        look()

    async with Client(build_server(engine), mode=era, logging_callback=hear, log_level="info") as c:
        with anyio.fail_after(60):
            code = PRINTING.format(go=str(go))
            if era == "legacy":
                # The other era has no progress in one process; no level, no messages.
                result = await c.call_tool("run_python", {"code": "print('quiet')"})
                assert (result.is_error, heard) == (False, {})
                with pytest.warns(UserWarning, match="deprecated"):
                    await c.set_logging_level("info")
            async with anyio.create_task_group() as tasks:
                results: list[Any] = []

                async def call() -> None:
                    arguments = {"code": code, "timeout": 50}
                    results.append(
                        await c.call_tool("run_python", arguments, progress_callback=progress)
                    )

                tasks.start_soon(call)
                await complete.wait()
                assert results == []
                go.touch()
    assert heard == {"info": "first line\n", "notice": "a warning\n"}
    if era == "legacy":
        told = next(entry for entry in seen if "first line" in str(entry[2]))
        assert told[2] == "1 of 4, loading · first line"
        assert told[1] == pytest.approx(4 * told[0])


WRITER = "import os\nos.path.getsize('a') + os.path.getsize('b')"


def call(size: int) -> dict[str, Any]:
    half = base64.encodebytes(b"\xff" * (size // 2)).decode().replace("\n", "\r\n")
    rest = base64.b64encode(b"\xff" * (size - size // 2)).decode()
    files = [{"name": "a", "data": half}, {"name": "b", "data": rest}]
    arguments = {"code": WRITER, "files": files}
    return request(7, "tools/call", {"name": "run_python", "arguments": arguments})


@pytest.mark.parametrize(
    ("over", "size", "text"),
    [
        # More than the SDK takes by itself; the rest takes seconds.
        ("http", 5 * MEBIBYTE, f"{5 * MEBIBYTE}"),
        *(
            pytest.param(over, size, text, marks=pytest.mark.full)
            for over in ("http", "stdio")
            for size, text in ((MAX_BYTES, f"{MAX_BYTES}"), (MAX_BYTES + 1, f"{MAX_BYTES:,} bytes"))
        ),
    ],
)
async def test_files_of_the_promised_size_come_and_one_byte_more_is_refused_with_the_limit(
    engine: Engine, over: str, size: int, text: str
) -> None:
    if over == "stdio":
        async with piped(engine) as peer:
            answer = await peer.answer(call(size))
    else:
        async with served(engine) as (_, web):
            opened = await web.post("/mcp", json=hello("2025-06-18"))
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            found = await web.post("/mcp", json=call(size), headers=session)
            answer = json.loads(found.text.rpartition("data: ")[2])
    assert answer["result"]["isError"] is (size > MAX_BYTES)
    assert text in answer["result"]["content"][0]["text"]
