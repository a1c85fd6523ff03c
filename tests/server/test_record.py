"""What of a result a model reads, and what only programs do, in both eras of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import jsonschema
import mcp_types as types
import pytest
from mcp import Client

from bridge.server.app import build_server
from bridge.server.arguments import OUTPUT_SCHEMA
from bridge.server.content import RECORD_KEY
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.record import record_of, texts_of


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def connected(settings: Settings, era: Any, name: str = "c") -> AsyncIterator[Client]:
    """Connect a client of this name to a bridge with these settings."""
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
    """With its schema, which the client holds it against, and then nowhere else."""
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
