"""What of a result a model reads, and what only programs do, in both eras of the protocol."""

from __future__ import annotations

import json
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
from bridge.tokens import count_tokens
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.record import record_of, texts_of

SUM_TOKENS = 12
"""What `print(1+1)` may cost a model."""

QWEN_SHOWS = 25_000
"""Characters of a result; of a longer one it shows its model the first 2,000."""

COPILOT_SHOWS = 500
"""Characters of a result that it finds too long, at some 30 KB."""


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> Any:
    """The era of the protocol that the client speaks."""
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


async def test_a_result_is_what_was_printed_and_its_run(settings: Settings, era: Any) -> None:
    """One text; the record is where no client looks for something to show."""
    async with connected(settings, era) as client:
        offered = (await client.list_tools()).tools
        result = await client.call_tool("run_python", {"code": "print(1+1)"})
        found = await client.call_tool("search_tools", {"query": "add two numbers"})
    assert [tool.output_schema for tool in offered] == [None, None]
    assert result.model_dump(mode="json", exclude_none=True)["content"] == [
        {"type": "text", "text": f"2\n\n[run {record_of(result)['runId'][:8]}]"}
    ]
    assert count_tokens(json.dumps(texts_of(result)[0])) <= SUM_TOKENS
    assert (result.structured_content, found.structured_content) == (None, None)
    record = record_of(result)
    assert (record["stdout"], record["status"]) == (["2"], "success")
    assert record["isolation"]["backend"]
    jsonschema.validate(record, OUTPUT_SCHEMA)
    assert record_of(found)["tools"][0]["tool"] == "add"


async def test_what_only_programs_need_is_not_in_the_text(settings: Settings, era: Any) -> None:
    """What separated the program from the host, what it used, and what its calls came to."""
    code = "print('called', (await mcp_work_shop.add(a=1, b=2)).sum)"
    async with connected(settings, era) as client:
        result = await client.call_tool("run_python", {"code": code})
    record = record_of(result)
    assert record["isolation"]["weaker"], "the backend of this test holds nothing"
    assert record["receipt"]["calls"] == {"work-shop": 1}
    assert texts_of(result) == ["called 3\n"]


async def test_a_failure_is_complete_in_the_text(settings: Settings, era: Any) -> None:
    """The error, what was printed before it, and how to go on without repeating calls."""
    code = "await mcp_work_shop.add(a=1, b=2)\nprint('so far')\n1/0"
    async with connected(settings, era) as client:
        result = await client.call_tool("run_python", {"code": code})
    (text,) = texts_of(result)
    assert text.startswith("so far\n[error]\n")
    assert "ZeroDivisionError: division by zero" in text
    assert f'retry_of="{record_of(result)["runId"]}"' in text


async def test_cut_output_says_in_the_text_how_to_read_on(settings: Settings, era: Any) -> None:
    """Once, in its first line, with the id of the run that has the rest.

    Qwen Code and Copilot show the beginning of what they find too long, Copilot 500 characters.
    """
    async with connected(settings, era) as client:
        result = await client.call_tool("run_python", {"code": "print('line\\n' * 100_000)"})
    record = record_of(result)
    assert record["truncated"]["stdout"]
    told, rest = texts_of(result)[0].split("\n", 1)
    assert f'await runtime.read_output("{record["runId"]}", find="..."' in told
    assert len(told) < COPILOT_SHOWS
    assert record["runId"] not in rest
    assert len(told + rest) < QWEN_SHOWS


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
