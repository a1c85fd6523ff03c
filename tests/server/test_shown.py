"""Pictures and tables as blocks of MCP content, for clients of either era."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace

import jsonschema
import mcp_types as types
import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.arguments import OUTPUT_SCHEMA
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.png import read_png, write_png
from tests.record import record_of

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


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_what_was_shown_follows_the_text_as_blocks(engine: Engine, mode: str) -> None:
    """Whole here, and with its measures in the record; what is over the budget is kept."""
    async with Client(build_server(engine), mode=mode) as client:
        result = await client.call_tool("run_python", {"code": CODE})
        text, picture, table, page, *links = result.content
        assert isinstance(text, types.TextContent)
        assert text.text.startswith("printed\n")
        assert isinstance(picture, types.ImageContent)
        assert picture.mime_type == "image/png"
        pixels = read_png(base64.b64decode(picture.data))
        assert (pixels.width, pixels.height) == (6, 4)
        assert pixels.rows[3][0] == (250, 120, 0)
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
