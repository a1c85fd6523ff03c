"""The names that a program finds are those that models read of, and their errors are one class."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from bridge.model import RunRequest, ServerSpec, Source
from bridge.runs import Engine
from bridge.server.app import build_server
from tests.engine_rig import WORKSHOP, ListFinder, workshop

RAW = WORKSHOP.with_name("raw.py")


FAILING = [
    *("mcp_work_shop.fail()", "mcp_raw.refuse()", "mcp_raw.ask_user()"),
    *("mcp_raw.crash()", "mcp_raw.killed()", "runtime.call_tool('work-shop', 'no_such_tool')"),
    *("runtime.call_tool(absent, 'x')", "runtime.call_tool('bro' + 'ken', 'x')"),
    *("runtime.call_tool_raw(absent, 'x')", "runtime.list_tools(absent)"),
    *("runtime.list_tools('bro' + 'ken')", "runtime.query_tool_docs(absent)"),
    "runtime.query_tool_docs('work-shop', 'no_such_tool')",
    "runtime.search_tool_docs('?!')",
]


@pytest.fixture
def finder(tmp_path: Path) -> ListFinder:
    """A good server, one that misbehaves on request, and one that does not start."""

    def spec(name: str, command: str, *args: str) -> ServerSpec:
        source = Source(client="Test", scope="user", path="/test.json", key=name)
        return ServerSpec(name=name, transport="stdio", source=source, command=command, args=args)

    broken = spec("broken", "/no/such/command")
    return ListFinder(workshop(), spec("raw", sys.executable, str(RAW)), broken)


async def value_of(engine: Engine, code: str, servers: tuple[str, ...] | None = None) -> Any:
    """Run a program that succeeds and return the value of its last expression."""
    with anyio.fail_after(120):
        result = await engine.run(RunRequest(code=code, servers=servers))
    assert result.status == "success", result
    return result.result


async def test_every_failed_call_raises_the_one_documented_error(engine: Engine) -> None:
    code = f"""
absent = "ab" + "sent"
errors = []
async def attempt(statement):
    try:
        await eval(statement)
    except runtime.MCPError as error:
        errors.append([statement, type(error).__name__, str(error).strip() != ""])
    except BaseException as error:
        errors.append([statement, type(error).__name__, repr(error)])
    else:
        errors.append([statement, None, False])
for statement in {FAILING!r}:
    await attempt(statement)
errors
"""
    errors = await value_of(engine, code, ("work-shop", "raw"))
    assert errors == [[statement, "MCPError", True] for statement in FAILING]


async def test_every_name_that_a_model_reads_is_in_a_programs_namespace(engine: Engine) -> None:
    async with Client(build_server(engine)) as client:
        tool, _ = (await client.list_tools()).tools
        [guide] = (await client.read_resource("bridge://capabilities")).contents
    inside = await value_of(engine, "runtime.capability_summary()", ("work-shop",))
    text = "\n".join([tool.description or "", getattr(guide, "text", ""), inside])
    names = set(re.findall(r"`([A-Za-z_]\w*)[`(.\[]", text))
    names |= set(re.findall(r"^(?:await )?([a-z_]+)[.\[]", text, re.MULTILINE))
    # `search_tools` is a tool for the model, and no name in programs.
    names -= {*keyword.kwlist, *tool.input_schema["properties"], "server", "value", "search_tools"}
    assert names >= {"LOADED_MCP_SERVERS", "MCPError", "mcp_work_shop", "runtime"}
    code = f"""
def is_missing(name):
    try:
        return eval(name) is None
    except NameError:
        return True
list(filter(is_missing, {sorted(names)!r}))
"""
    assert set(await value_of(engine, code, ("work-shop", "raw"))) <= {"mcp_broken"}


async def test_the_examples_in_tools_documentation_run_unchanged(engine: Engine) -> None:
    code = """
docs = await runtime.query_tool_docs("work-shop", detail="full")
harmless = ("add", "say", "get-Item.v2", "class")
[entry["example"] for entry in docs if entry["tool"] in harmless]
"""
    examples = await value_of(engine, code)
    assert len(examples) == 4
    for example in examples:
        await value_of(engine, example)


async def test_output_is_read_while_a_call_waits(engine: Engine) -> None:
    code = """
import asyncio
first = asyncio.ensure_future(mcp_work_shop.meet(count=2, party="output"))
await asyncio.sleep(0)
print("x" * 1_000_000)
print("y" * 1_000_000, file=__import__("sys").stderr)
[await mcp_work_shop.meet(count=2, party="output"), await first]
"""
    assert await value_of(engine, code) == ["met", "met"]
