"""What a program can name: servers, tools, helpers; and what their errors are called."""

from __future__ import annotations

import keyword
import re
from typing import Any

from mcp import Client

from tests.older_bridge.crowd import HOSTILE, MANY
from tests.older_bridge.rig import run, value_of

ADVERTISED_CHARS = 20_000
"""More than the description of the tool may take, however many tools there are."""

AWAITABLE = {
    "call_tool",
    "call_tool_raw",
    "complete",
    "get_prompt",
    "list_prompts",
    "list_resource_templates",
    "list_resources",
    "list_servers",
    "list_tools",
    "query_tool_docs",
    "read_output",
    "read_resource",
    "search_tool_docs",
    "watch_resource",
}


async def _advertised(client: Client) -> str:
    """Return all that a model reads of what a program can do."""
    tool, _ = (await client.list_tools()).tools
    guide = (await client.read_resource("bridge://capabilities")).contents[0]
    inside = await value_of(client, "runtime.capability_summary()", servers=["work-shop"])
    return "\n".join([tool.description or "", getattr(guide, "text", ""), inside])


async def test_a_hundred_and_fifty_tools_with_long_descriptions_are_usable(bridge: Client) -> None:
    """Described in full to the program that asks, and briefly to the model."""
    code = """
docs = runtime.query_tool_docs_sync("crowd", detail="full")
last = await mcp_crowd.tool_149(what="x")
[len(docs), {len(entry["description"]) for entry in docs} == {1000}, last.name]
"""
    assert await value_of(bridge, code) == [MANY, True, "tool_149"]
    everything = "servers = list(mcp_servers)\nprint(servers)\nlen(servers)"
    names = ["crowd", '{code}"""', "work-shop", "raw"]
    assert await value_of(bridge, everything, servers=names) == len(names)
    tool, _ = (await bridge.list_tools()).tools
    assert len(tool.description or "") < ADVERTISED_CHARS


async def test_what_a_server_writes_is_never_taken_for_code_or_a_template(bridge: Client) -> None:
    """Descriptions, names and arguments arrive as they are, and the program runs as it is."""
    code = """
# __CODE_LITERAL__ {code} ${CODE} %(code)s
name = "{code}" + '"' * 3
[server] = [entry for entry in runtime.discovered_servers(detailed=True) if entry.name == name]
docs = runtime.query_tool_docs_sync(name, detail="full")
calls = [
    await mcp_servers[name][entry["tool"]](**{list(entry["inputSchema"]["properties"])[0]: "x"})
    for entry in docs
]
print("__CODE_LITERAL__ {code} ${CODE} %(code)s")
[server.description, docs, calls, [await getattr(mcp_servers[name], docs[0]["toolAlias"])("y")]]
"""
    document = await run(bridge, code, servers=['{code}"""'])
    assert document["status"] == "success", document
    assert document["stdout"] == ["__CODE_LITERAL__ {code} ${CODE} %(code)s"]
    description, docs, calls, [by_alias] = document["result"]
    names = [f"{n}{text}" for n, text in enumerate(HOSTILE)]
    assert description == "__CODE_LITERAL__ {code}"
    assert [entry["description"] for entry in docs] == list(HOSTILE)
    assert [entry["tool"] for entry in docs] == names
    assert [entry["inputSchema"]["properties"] for entry in docs] == [
        {text: {"type": "string", "description": text}} for text in HOSTILE
    ]
    for sent in (*calls, by_alias):
        # The token for progress.
        sent.pop("_meta", None)
    assert calls == [
        {"name": name, "arguments": {text: "x"}} for name, text in zip(names, HOSTILE, strict=True)
    ]
    assert by_alias == {"name": names[0], "arguments": {HOSTILE[0]: "y"}}


async def test_a_tools_error_is_raised_and_its_raw_result_can_be_had(bridge: Client) -> None:
    """A result that is marked as an error never passes for a value."""
    code = """
try:
    await mcp_work_shop.fail()
    caught = None
except runtime.MCPError as error:
    caught = [error.server, error.tool, error.data, "the shelf is empty" in str(error)]
raw = await runtime.call_tool_raw("work-shop", "fail")
[caught, raw["isError"]]
"""
    assert await value_of(bridge, code) == [["work-shop", "fail", {"shelf": 7}, True], True]


async def test_every_failed_call_raises_the_one_documented_error(bridge: Client) -> None:
    """Whatever failed, `except MCPError` catches it, and the error says what it was."""
    statements = [
        "mcp_work_shop.fail()",
        "mcp_raw.refuse()",
        "mcp_raw.deep(depth=5000)",
        "mcp_raw.ask_user()",
        "mcp_raw.crash()",
        "mcp_raw.killed()",
        "runtime.call_tool('work-shop', 'no_such_tool')",
        "runtime.call_tool(nobody, 'x')",
        "runtime.call_tool('bro' + 'ken', 'x')",
        "runtime.call_tool_raw(nobody, 'x')",
        "runtime.list_tools(nobody)",
        "runtime.list_tools('bro' + 'ken')",
        "runtime.query_tool_docs(nobody)",
        "runtime.query_tool_docs('work-shop', 'no_such_tool')",
        "runtime.search_tool_docs('?!')",
    ]
    code = f"""
nobody = "no" + "body"
found = []
async def attempt(statement):
    try:
        await eval(statement)
    except runtime.MCPError as error:
        found.append([statement, type(error).__name__, str(error).strip() != ""])
    except BaseException as error:
        found.append([statement, type(error).__name__, repr(error)])
    else:
        found.append([statement, None, False])
for statement in {statements!r}:
    await attempt(statement)
found
"""
    found = await value_of(bridge, code, servers=["work-shop", "raw"])
    assert found == [[statement, "MCPError", True] for statement in statements]


async def test_a_positional_argument_is_an_argument(bridge: Client) -> None:
    """Even when it is the name of another tool; any spelling of the call takes it."""
    code = """
from mcp.servers import work_shop
import mcp.servers.work_shop as module
[
    await mcp_work_shop.say("crash"),
    await mcp_servers["work-shop"].say("fail"),
    await work_shop.say("add"),
    await module.say("rows"),
    (await mcp_work_shop.add(1, b=2)).sum,
]
"""
    assert await value_of(bridge, code) == ["crash", "fail", "add", "rows", 3]


async def test_a_tool_that_does_not_exist_is_no_attribute(bridge: Client) -> None:
    """A misspelt name fails at the name, with the nearest, and not at the server."""
    code = """
import mcp.servers.work_shop as module
found = []
for holder in (mcp_work_shop, mcp_servers["work-shop"], module):
    try:
        holder.ecko
    except AttributeError as error:
        found.append("echo" in str(error))
    found.append(hasattr(holder, "sya"))
found
"""
    document = await run(bridge, code)
    assert document["result"] == [True, False] * 3, document
    assert document["usage"].get("toolCalls", 0) == 0


async def test_every_helper_that_is_advertised_is_there_and_awaited_as_shown(
    bridge: Client,
) -> None:
    """Exactly what a model reads can be typed: by its name, with `await` or without."""
    text = await _advertised(bridge)
    shown = sorted(set(re.findall(r"(await )?\b(runtime\.\w+)\(", text)))
    assert len(shown) >= 6
    code = f"""
import inspect
[[inspect.iscoroutinefunction(eval(name)), name] for _, name in {shown!r}]
"""
    found = await value_of(bridge, code)
    assert found == [[bool(awaited), name] for awaited, name in shown]


async def test_every_name_that_is_advertised_is_in_a_programs_namespace(bridge: Client) -> None:
    """Without an import; and nothing is advertised that is only planned."""
    text = await _advertised(bridge)
    tool, _ = (await bridge.list_tools()).tools
    names = set(re.findall(r"`([A-Za-z_]\w*)[`(.\[]", text))
    names |= set(re.findall(r"^(?:await )?([a-z_]+)[.\[]", text, re.MULTILINE))
    # The other tool is the model's to call, and not a program's.
    names -= {*keyword.kwlist, *tool.input_schema["properties"], "server", "value", "search_tools"}
    assert names >= {"LOADED_MCP_SERVERS", "MCPError", "mcp_work_shop", "runtime"}
    code = f"""
import importlib
def there(name):
    try:
        return eval(name) is not None
    except NameError:
        return False
[name for name in {sorted(names)!r} if not there(name)]
"""
    servers = ["work-shop", "raw", "crowd", '{code}"""']
    missing = await value_of(bridge, code, servers=servers)
    assert set(missing) <= {"mcp_broken"}
    assert "save_tool" not in text
    assert "/projects" not in text


async def test_helpers_are_asynchronous_or_not_as_documented(bridge: Client) -> None:
    """All of them, also those that no example shows; importing them gives the same objects."""
    code = """
import inspect
from mcp import runtime as imported
names = [name for name in dir(runtime) if not name.startswith("_") and name != "MCPError"]
[imported is runtime, runtime.MCPError is MCPError,
 [[name, inspect.iscoroutinefunction(getattr(runtime, name))] for name in names]]
"""
    same, same_error, found = await value_of(bridge, code)
    assert same
    assert same_error
    assert {name for name, asynchronous in found if asynchronous} == AWAITABLE
    assert {name for name, asynchronous in found if not asynchronous} >= {
        "capability_summary",
        "describe_server",
        "discovered_servers",
        "list_loaded_server_metadata",
        "list_servers_sync",
        "list_tools_sync",
        "progress",
        "query_tool_docs_sync",
        "search_tool_docs_sync",
    }


async def test_the_examples_in_tools_documentation_run_as_they_stand(bridge: Client) -> None:
    """As programs of their own, which load the server because they name it."""
    code = """
docs = await runtime.query_tool_docs("work-shop", detail="full")
harmless = ("add", "say", "get-Item.v2", "class")
[entry["example"] for entry in docs if entry["tool"] in harmless]
"""
    examples = await value_of(bridge, code)
    assert len(examples) == 4
    for example in examples:
        assert (await run(bridge, example))["status"] == "success", example


async def test_tools_of_servers_nobody_loaded_are_found_and_called_in_the_same_run(
    bridge: Client,
) -> None:
    """Discovery needs no second run; what is found can be called by the names it gives."""
    code = """
loaded = list(LOADED_MCP_SERVERS)
found = await runtime.search_tool_docs("add two numbers", limit=1)
value = await runtime.call_tool(found[0]["server"], found[0]["tool"], {"a": 1, "b": 2})
crowd = await runtime.search_tool_docs("number 149")
[loaded, found[0]["signature"].split("(")[0], value.sum, crowd[0]["server"]]
"""
    found: Any = await value_of(bridge, code, servers=[])
    assert found == [[], "mcp_work_shop.add", 3, "crowd"]
