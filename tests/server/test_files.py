"""`files` of a run over both transports: as much as is promised, and not a byte more."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from bridge.model import MEBIBYTE
from bridge.runs import Engine
from bridge.runs.input_files import MAX_BYTES
from tests.server.pipe_rig import hello, piped, request
from tests.server.web_rig import served

CODE = "import os\nos.path.getsize('a') + os.path.getsize('b')"


def call(size: int) -> dict[str, Any]:
    """Return a run that has two files, in base64 with ends of lines, and returns their size."""
    half = base64.encodebytes(b"\xff" * (size // 2)).decode().replace("\n", "\r\n")
    rest = base64.b64encode(b"\xff" * (size - size // 2)).decode()
    files = [{"name": "a", "data": half}, {"name": "b", "data": rest}]
    return request(
        7, "tools/call", {"name": "run_python", "arguments": {"code": CODE, "files": files}}
    )


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
