"""`mcp`, `mcp.servers` and `mcp.runtime` as programs find them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from bridge.guest.api import values
from bridge.guest.api.client import ChannelClient
from bridge.guest.api.runtime import PUBLIC, Runtime, build
from bridge.guest.api.values import ArgumentsError, MCPError
from bridge.guest.protocol.wire import Call, Run
from bridge.guest.worker.environment import show_help
from bridge.text import count_tokens
from tests.guest.finished import Case, programs


class FakeClient:
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], str]] = []
        self.answers: dict[str, Any] = {}

    async def call(self, method: str, params: dict[str, Any], subject: str) -> Any:
        self.calls.append((method, params, subject))
        if method in self.answers:
            return self.answers[method]
        return {"json": {"asked": method}} if method == "call_tool" else [method]

    def call_and_wait(self, method: str, params: dict[str, Any], subject: str) -> Any:
        self.calls.append((method, params, subject))
        return self.answers[method]


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    return {
        "name": name,
        "alias": name.replace("-", "_"),
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    }


SERVERS = [
    {
        "name": "git-hub",
        "alias": "git_hub",
        "description": "Repositories and issues",
        "tools": [
            tool("create-issue", "Open an issue in a repository.", title={"type": "string"}),
            tool("list-commits", "Return the commits of a branch.", branch={"type": "string"}),
        ],
    },
    {
        "name": "files",
        "alias": "files",
        "description": "",
        "tools": [{**tool("read", "Read a file."), "outputSchema": {"type": "object"}}],
    },
]

DISCOVERED = [
    {"name": "git-hub", "alias": "git_hub", "description": "Repositories and issues"},
    {"name": "mail", "alias": "mail_2", "description": "Letters"},
]


@pytest.fixture(autouse=True)
def _modules_stay_as_they_were() -> Iterator[None]:
    before, finders = dict(sys.modules), list(sys.meta_path)
    own = [
        each for each in vars(values).values() if getattr(each, "__module__", "") == values.__name__
    ]
    kinds = [each for each in own if isinstance(each, type)]
    yield
    for kind in kinds:
        kind.__module__ = values.__name__
    sys.modules.clear()
    sys.modules.update(before)
    sys.meta_path[:] = finders


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def runtime(client: FakeClient) -> Runtime:
    run = Run(code="", servers=SERVERS, discovered=DISCOVERED, capabilities="the guide")
    return Runtime(run, cast("ChannelClient", client))


async def test_calls_name_server_tool_and_arguments(runtime: Runtime, client: FakeClient) -> None:
    called = await runtime.call_tool("git_hub", "create_issue", {"title": "a"})
    assert called == {"asked": "call_tool"}
    await runtime.call_tool_raw("mail_2", "send")
    await runtime.call_tool("unknown", "x")
    names = ("server", "tool", "arguments", "raw")
    assert [tuple(params[name] for name in names) for _, params, _ in client.calls] == [
        ("git-hub", "create-issue", {"title": "a"}, False),
        ("mail", "send", {}, True),
        ("unknown", "x", {}, False),
    ]


async def test_calls_by_name_are_checked_unless_they_are_raw(
    runtime: Runtime, client: FakeClient
) -> None:
    with pytest.raises(TypeError, match=r"git-hub.create-issue\(\) has no parameter `titel`"):
        await runtime.call_tool("git-hub", "create-issue", {"titel": "a"})
    with pytest.raises(TypeError, match="title must be a string, not int 1"):
        await runtime.call_tool("git-hub", "create-issue", {"title": 1})
    with pytest.raises(MCPError) as caught:
        await runtime.call_tool("git-hub", "create-issue", {"title": 1})
    assert isinstance(caught.value, ArgumentsError)
    assert (caught.value.server, caught.value.tool) == ("git-hub", "create-issue")
    assert str(caught.value).startswith("git-hub.create-issue() is given a value")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ArgumentsError)
    await runtime.call_tool_raw("git-hub", "create-issue", {"titel": 1})
    assert [params["arguments"] for _, params, _ in client.calls] == [{"titel": 1}]


async def test_questions_go_to_the_host(runtime: Runtime, client: FakeClient) -> None:
    client.answers["list_tools"] = [{"tool": "t", "inputSchema": {"type": "object"}}]
    await runtime.list_servers()
    [tool] = await runtime.list_tools("mcp_git_hub")
    assert (tool["name"], tool["input_schema"]) == ("t", tool["inputSchema"])
    await runtime.query_tool_docs("mail")
    await runtime.query_tool_docs("git-hub", "create_issue", "full")
    await runtime.search_tool_docs("send", limit=1000)
    assert [(method, params) for method, params, _ in client.calls] == [
        ("list_servers", {}),
        ("list_tools", {"server": "git-hub"}),
        ("query_tool_docs", {"server": "mail", "tool": None, "detail": "summary"}),
        ("query_tool_docs", {"server": "git-hub", "tool": "create-issue", "detail": "full"}),
        ("search_tool_docs", {"query": "send", "limit": 1000, "detail": "summary"}),
    ]


@pytest.mark.parametrize(
    ("method", "args", "error", "message"),
    [
        ("call_tool", (1, "t"), TypeError, "server must be a string, not int"),
        ("call_tool", ("s", ""), ValueError, "tool is empty"),
        ("call_tool", ("s", "t", [1]), TypeError, "arguments must be a dict .* not a list"),
        ("call_tool", ("s", "t", {"a": {1}}), TypeError, r"arguments of s.t\['a'\] is a set"),
        ("call_tool", ("s", "t", {1: 2}), TypeError, r"use str\(key\)"),
        ("list_tools", (None,), TypeError, "server must be a string, not NoneType"),
        ("query_tool_docs", ("s", {"tool": 3}), TypeError, "tool must be a string, not int"),
        ("search_tool_docs", (["q"],), TypeError, "query must be a string"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    runtime: Runtime, client: FakeClient, method: str, args: Any, error: Any, message: str
) -> None:
    *args, last = args
    kwargs = last if isinstance(last, dict) and method != "call_tool" else {}
    with pytest.raises(error, match=message):
        await getattr(runtime, method)(*args, *(() if kwargs else (last,)), **kwargs)
    assert client.calls == []


def test_the_runs_own_data_answers_at_once(runtime: Runtime) -> None:
    assert runtime.list_servers_sync() == ("git-hub", "files")
    assert runtime.discovered_servers() == ("git-hub", "mail", "files")
    detailed = runtime.discovered_servers(detailed=True)
    assert detailed[1] == {**DISCOVERED[1], "loaded": False}
    tools = runtime.list_tools_sync("git_hub")
    assert [entry["name"] for entry in tools] == ["create-issue", "list-commits"]
    assert runtime.capability_summary() == "the guide"
    described = runtime.describe_server("mail")
    assert (described["loaded"], described["tools"]) == (False, [])
    loaded = runtime.list_loaded_server_metadata()
    assert [entry["name"] for entry in loaded] == ["git-hub", "files"]


def test_documentation_is_asked_of_the_host(runtime: Runtime, client: FakeClient) -> None:
    client.answers["query_tool_docs"] = {"tool": "create-issue"}
    assert runtime.query_tool_docs_sync("git_hub", "create_issue") == [{"tool": "create-issue"}]
    asked = {"server": "git-hub", "tool": "create-issue", "detail": "summary"}
    assert client.calls[-1] == ("query_tool_docs", asked, "query_tool_docs")
    found = [{"server": name, "tool": "t"} for name in ("git-hub", "mail", "files")]
    client.answers["search_tool_docs"] = found
    assert runtime.search_tool_docs_sync("x") == [found[0], found[2]]
    assert runtime.search_tool_docs_sync("x", limit=1) == found[:1]


def test_names_that_are_not_there_name_those_that_are(runtime: Runtime) -> None:
    with pytest.raises(KeyError, match=r"'mail' is loaded.*Loaded: git-hub, files"):
        runtime.list_tools_sync("mail")
    with pytest.raises(KeyError, match="Did you mean 'git-hub'"):
        runtime.describe_server("git-hup")
    with pytest.raises(TypeError, match="needs a server: git-hub, files"):
        runtime.list_tools_sync()


PROGRAMS = """
## every documented import: value=['x', 'y']
import mcp
import mcp.runtime
import mcp.servers.git_hub as module
from mcp import runtime as r, servers
from mcp.runtime import MCPError as E, call_tool
from mcp.servers import git_hub
from mcp.servers.git_hub import echo, TOOLS, TOOL_MAP
from mcp.servers.git_hub import *
assert r is runtime is mcp.runtime and E is MCPError
assert echo is mcp_git_hub.echo is git_hub.echo is mcp_servers["git-hub"].echo
assert create_issue is mcp_git_hub["create-issue"]
assert list(TOOL_MAP) == ["echo", "create_issue"]
assert TOOL_MAP["echo"] is echo
assert TOOL_MAP["create-issue"] is TOOL_MAP["create_issue"]
assert [tool["name"] for tool in TOOLS] == ["echo", "create-issue"]
assert LOADED_MCP_SERVERS == ("git-hub",)
assert "echo" in dir(git_hub) and "call_tool" in dir(r)
[(await call_tool("git-hub", "echo", {"text": "x"})).text, (await echo("y")).text]
## a module of the same name in the working directory: value=['runtime', 'servers']
import mcp, subprocess
mcp.__all__
"""


@programs(PROGRAMS)
def test_modules_are_importable_in_every_documented_way(guest_on: Any, case: Case) -> None:
    (guest_on.cwd / "mcp.py").write_text("raise SystemExit('the wrong one')")
    case.check(guest_on)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from mcp.servers import git_hup", "Did you mean 'git_hub'? Loaded: git_hub"),
        ("import mcp.servers.nope", "no server 'nope' is loaded"),
        ("import mcp.types", "the bridge's own"),
        ("from mcp import ClientSession", "the bridge's own"),
        ("from mcp.servers.git_hub import ecco", "cannot import name 'ecco'"),
        ("mcp_git_hub.ecco", "Did you mean 'echo'"),
        ("list(mcp_servers['mail'])", "its tools are not known yet"),
        ("mcp.servers.nope", "nope"),
    ],
)
def test_what_is_not_there_is_said_so(make_guest: Any, statement: str, message: str) -> None:
    finished = make_guest().run(statement)
    assert message in finished.outcome.error
    assert "guest" not in finished.outcome.error


def test_results_errors_and_blobs_show_an_importable_home(guest_on: Any) -> None:
    def answer(guest: Any, call: Call) -> None:
        picture = {"type": "image", "mimeType": "a/b", "data": "aGk="}
        guest.reply(call.id, {"parts": {"content": [picture]}})

    code = """
import pickle
blob = await mcp_git_hub.echo("x")
assert pickle.loads(pickle.dumps(blob)) == blob
blob.save("out.bin")
print(open("out.bin").read(), blob)
print(runtime.describe_server("git-hub").nope)
"""
    finished = guest_on.run(code, answer)
    assert finished.stdout == "hi <Blob a/b, 2 bytes>\n"
    assert "no key 'nope' in this result" in finished.error


def test_hundreds_of_tools_with_long_descriptions_are_no_burden(guest_on: Any) -> None:
    tools = [tool(f"t{n}", "__CODE_LITERAL__ " + "d" * 5000) for n in range(300)]
    servers = [{"name": name, "alias": name, "description": "", "tools": tools} for name in "ab"]
    assert guest_on.run("(await mcp_b.t299()) == {}", servers=servers).value is True


async def test_a_prompt_s_arguments_are_sent_as_texts(runtime: Runtime, client: FakeClient) -> None:
    picture = {"type": "image", "data": "aGk=", "mimeType": "x/y"}
    client.answers["get_prompt"] = {
        "messages": [{"role": "user", "content": {"parts": {"content": [picture]}}}]
    }
    arguments = {"text": "a", "n": 5, "flag": True, "many": [1, "ü"]}
    prompt = await runtime.get_prompt("git-hub", "review", arguments)
    assert prompt["messages"][0]["content"].data == b"hi"
    ((_, params, _),) = client.calls
    assert params["arguments"] == {"text": "a", "n": "5", "flag": "true", "many": '[1, "ü"]'}
    with pytest.raises(TypeError, match="arguments must be a dict of the prompt's arguments"):
        await runtime.get_prompt("git-hub", "review", ["a"])  # type: ignore[arg-type]


Help = Callable[[Any], list[str]]


@pytest.fixture
def help_lines(capsys: pytest.CaptureFixture[str]) -> Help:
    def show(thing: Any) -> list[str]:
        show_help(thing)
        return capsys.readouterr().out.splitlines()

    return show


@pytest.fixture
def given(client: FakeClient) -> dict[str, Any]:
    run = Run(code="", servers=SERVERS, discovered=DISCOVERED)
    return build(run, cast("ChannelClient", client))


def test_help_on_a_server_lists_its_tools(help_lines: Help, given: dict[str, Any]) -> None:
    for thing in (given["mcp_git_hub"], sys.modules["mcp.servers.git_hub"]):
        assert help_lines(thing) == [
            "mcp_git_hub: Repositories and issues",
            "  .create_issue(title: str = ...)  # Open an issue in a repository.",
            "  .list_commits(branch: str = ...)  # Return the commits of a branch.",
            "Each call needs `await`. All of one tool: help(mcp_git_hub.name)",
        ]


def test_help_on_a_server_writes_objects_out(help_lines: Help, client: FakeClient) -> None:
    properties: dict[str, Any] = {"name": {"type": "string"}, "size": {}}
    item = {"type": "object", "properties": properties, "required": ["name"]}
    long = {"type": "object", "properties": {f"field_{n}": {} for n in range(40)}}
    nested: dict[str, Any] = {"type": "object", "properties": {}}
    nested["properties"]["inner"] = {"$ref": "#"}
    made = tool("put", "", items={"type": "array", "items": item}, long=long)
    made["outputSchema"] = nested
    server = {"name": "s", "alias": "s", "description": "", "tools": [made]}
    given = build(Run(code="", servers=[server]), cast("ChannelClient", client))
    assert help_lines(given["mcp_s"])[1] == (
        "  .put(items: list[{'name': str, 'size'?: Any}] = ..., long: dict = ...)"
        " -> {'inner'?: Any}"
    )


def test_help_on_runtime_is_a_line_for_each_helper(help_lines: Help, given: dict[str, Any]) -> None:
    lines = help_lines(given["runtime"])
    assert {"await list_tools(server)", "save_memory(key, value, metadata=None)"} <= set(lines)
    text = "\n".join(lines)
    assert all(name in text for name in PUBLIC)
    assert "__" not in text
    assert count_tokens(text) <= 410
    assert "Return the number of items in a container." in "\n".join(help_lines(len))


def test_a_host_that_reads_no_more_until_its_answers_are_taken_is_no_deadlock(
    guest_on: Any,
) -> None:
    text = "x" * 100_000

    def answer(guest: Any, call: Any) -> None:
        guest.reply(call.id, {"json": {"text": text}})
        guest.flush()

    code = """
import asyncio, threading
async def main():
    calls = [mcp_git_hub.echo("x" * 100_000) for _ in range(40)]
    return [len(answer.text) for answer in await asyncio.gather(*calls)]
(asyncio.run(main()), threading.active_count())
"""
    finished = guest_on.run(code, answer, limits={"timeout": 20.0})
    assert finished.value == [[100_000] * 40, 2]
