from __future__ import annotations

from collections.abc import Mapping

import pytest

from bridge.catalog.program.parsing import Unread, parse
from bridge.catalog.program.references import Reach, References, references
from bridge.catalog.program.survey import Survey

ALIASES = {"git-hub": "git_hub", "time": "time", "file system": "file_system"}


def referenced_servers(code: str, aliases: Mapping[str, str]) -> References:
    tree = parse(code)
    return References() if isinstance(tree, Unread) else references(Survey(tree), aliases)


@pytest.mark.parametrize(
    "code",
    [
        "await mcp_git_hub.create_issue(repo='a')",
        "x = mcp_servers['git-hub']",
        "x = mcp_servers['git_hub']",
        "x = mcp_servers.get('git-hub')",
        "from mcp.servers import git_hub",
        "from mcp.servers import git_hub as g",
        "import mcp.servers.git_hub",
        "import mcp.servers.git_hub as g",
        "from mcp.servers.git_hub import create_issue",
        "from mcp.servers.git_hub import *",
        "import mcp\nawait mcp.servers.git_hub.create_issue()",
        "import mcp.servers as s\nawait s.git_hub.x()",
        "from mcp import servers\nawait servers.git_hub.x()",
        "from mcp import servers as s\nawait s.git_hub.x()",
        "await runtime.call_tool('git-hub', 'x')",
        "await runtime.call_tool('mcp_git_hub', 'x')",
        "await runtime.call_tool_raw(server='git-hub', tool='x')",
        "await mcp.runtime.list_tools('git-hub')",
        "from mcp import runtime as r\nawait r.query_tool_docs('git-hub')",
        "import mcp.runtime as r\nawait r.list_tools('git-hub')",
        "from mcp.runtime import call_tool as c\nawait c('git-hub', 'x')",
        "import importlib\nimportlib.import_module('mcp.servers.git_hub')",
        "from importlib import import_module\nimport_module('mcp.servers.git_hub')",
        "import mcp\ngetattr(mcp.servers, 'git_hub')",
        "async def f():\n    return [await mcp_git_hub.x(i) async for i in y]",
        "print(f'{await mcp_git_hub.x()}')",
    ],
)
def test_each_way_to_name_a_server_is_found(code: str) -> None:
    assert referenced_servers(code, ALIASES) == References(servers=("git-hub",))


@pytest.mark.parametrize(
    "code",
    [
        "vars(thing)",
        "eval(text)",
        "doc = (await runtime.search_tool_docs('x'))[0]\nawait runtime.call_tool(doc.server, 'x')",
    ],
)
def test_what_reaches_no_loaded_server_is_not_taken_for_run_time_choice(code: str) -> None:
    assert referenced_servers(code, ALIASES) == References()


def test_servers_come_in_order_of_first_appearance() -> None:
    code = (
        "def later():\n    return mcp_file_system.read()\n"
        "a = mcp_time.now(); b = mcp_servers['git-hub']; c = mcp_file_system.read()\n"
    )
    assert referenced_servers(code, ALIASES).servers == ("file system", "time", "git-hub")


@pytest.mark.parametrize(
    "code",
    [
        "for name in mcp_servers: print(name)",
        "mcp_servers.items()",
        "from mcp.servers import *",
        "for s in LOADED_MCP_SERVERS: print(s)",
    ],
)
def test_a_program_that_uses_all_servers_is_noticed(code: str) -> None:
    found = referenced_servers(code, ALIASES)
    assert found.dynamic
    assert found.unknown == {}


@pytest.mark.parametrize(
    "code",
    [
        "mcp_servers[name].x()",
        "mcp_servers.get(name)",
        "globals()['mcp_' + name]",
        "import importlib; importlib.import_module('mcp.servers.' + name)",
        "__import__(f'mcp.servers.{name}')",
        "import mcp\ngetattr(mcp.servers, name)",
        "from mcp import servers\ngetattr(servers, name)",
    ],
)
def test_a_program_that_computes_names_gets_the_servers_that_its_texts_name(code: str) -> None:
    assert referenced_servers(code, ALIASES) == References()
    texts = "names = ['time', 'git_hub', 'mcp_file_system', 'the time', '', 'zzz']\n"
    found = referenced_servers(texts + code, ALIASES)
    assert {*found.mentioned} == {*ALIASES}
    assert found == References(mentioned=found.mentioned)
    assert referenced_servers(texts, ALIASES) == References()


@pytest.mark.parametrize(
    "code",
    [
        "print('mcp_git_hub')  # mcp_time",
        "x.mcp_git_hub",
        "results = {}\nresults.get('git-hub')",
        "mcp_servers = 1",
        "runtime.call_tool",
        "await runtime.call_tool()",
        "await other.call_tool('git-hub')",
        "await runtime.search_tool_docs('git-hub')",
        "await runtime.call_tool(name, 'x')",
        "await runtime.call_tool(server=name, tool='x')",
        "await runtime.call_tool(**arguments)",
        "vars(thing); locals(); eval('1'); exec(text); globals",
        "import importlib; importlib.import_module('json'); importlib.import_module(name)",
        "getattr(thing, name); getattr(mcp.servers, 'nothing')",
        "from . import servers\nfrom .mcp.servers import git_hub",
        "import os, mcp.servers, mcp.runtime, mcp",
        "from mcp import runtime, client",
        "from mcp.runtime import MCPError",
        "servers.git_hub",
        "mcp_servers.get()",
        "mcp_servers.get('nothing')",
        "import mcp\nprint(mcp.servers.__doc__)",
        "call_tool('git-hub')",
        "",
    ],
)
def test_what_names_no_server_is_left_alone(code: str) -> None:
    found = referenced_servers(code, ALIASES)
    assert found.servers == ()
    assert found.unknown == {}


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        (
            "\nawait mcp_githb.x()",
            "line 2: no server is called `mcp_githb`. Did you mean `mcp_git_hub`?",
        ),
        (
            "mcp_servers['Git-Hub']",
            "line 1: no server is called 'Git-Hub'. Did you mean 'git-hub'?",
        ),
        ("from mcp.servers import tim", "line 1: no server is called 'tim'. Did you mean 'time'?"),
        ("import mcp.servers.zzz", "line 1: no server is called 'zzz'."),
        ("import mcp\nmcp.servers.zzz.x()", "line 2: no server is called 'zzz'."),
        ("mcp_zzz.x()", "line 1: no server is called `mcp_zzz`."),
        (
            "def f(mcp_time):\n    mcp_time.x()\nmcp_tim.y()",
            "line 3: no server is called `mcp_tim`. Did you mean `mcp_time`?",
        ),
    ],
)
def test_a_misspelt_server_is_reported_with_what_may_be_meant(code: str, unknown: str) -> None:
    found = referenced_servers(code, ALIASES)
    assert [*found.unknown.values()] == [unknown]


@pytest.mark.parametrize(
    "code",
    [
        "mcp_results = []\nmcp_results.append(1)",
        "def f(mcp_client): return mcp_client",
        "def mcp_f(): ...\nmcp_f()",
        "class mcp_c: ...\nmcp_c()",
        "import mcp_tools\nmcp_tools.x()",
        "from a import b as mcp_b\nmcp_b()",
        "from a import *\nmcp_anything()",
        "try: ...\nexcept E as mcp_e: print(mcp_e)",
        "match x:\n    case [*mcp_rest] as mcp_all: print(mcp_rest, mcp_all)",
    ],
)
def test_the_programs_own_names_are_not_taken_for_servers(code: str) -> None:
    assert referenced_servers(code, ALIASES).unknown == {}


def test_each_unknown_name_is_reported_once_and_only_so_many() -> None:
    code = "\n".join(f"mcp_nowhere{n}.x(mcp_nowhere{n})" for n in range(50))
    unknown = referenced_servers(code, ALIASES).unknown
    assert len(unknown) == 16


def test_a_very_long_unknown_name_is_cut() -> None:
    (unknown,) = referenced_servers(f"mcp_{'x' * 10_000}.y()", ALIASES).unknown.values()
    assert len(unknown) < 130


def test_reading_a_resource_names_its_server_but_not_the_resource() -> None:
    code = """
from mcp.runtime import get_prompt
await runtime.read_resource("one", "a://b")
await runtime.list_resources("two")
await get_prompt("three", "x")
await runtime.read_resource("books://emma")
"""
    found = referenced_servers(code, {"one": "one", "two": "two", "three": "three"})
    assert found.servers == ("one", "two", "three")
    assert not found.unknown
    wrong = referenced_servers('await runtime.read_resource("oen", "a://b")', {"one": "one"})
    assert [*wrong.unknown.values()] == ["line 1: no server is called 'oen'. Did you mean 'one'?"]


def of(code: str) -> Reach | None:
    return referenced_servers(code, ALIASES).reach


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 + 1", {}),
        ("await mcp_time.now()", {"time": frozenset({"now"})}),
        (
            "import asyncio, json\nawait asyncio.gather(mcp_git_hub.a(x=1), mcp_git_hub.b())",
            {"git-hub": frozenset({"a", "b"})},
        ),
        ("call = mcp_time.now\nawait call()", {"time": frozenset({"now"})}),
        (
            "try:\n    await mcp_time.now()\nexcept runtime.MCPError as e: print(type(e).__name__)",
            {"time": frozenset({"now"})},
        ),
        ("await mcp_time.query('x')", {"time": frozenset({"query"})}),
        ("print(mcp_time)", {"time": None}),
        ("for tool in mcp_time: print(tool)", {"time": None}),
        ("s = mcp_time\nawait mcp_git_hub.a()", {"time": None, "git-hub": frozenset({"a"})}),
        ("await mcp_time['a tool']()", {"time": None}),
        ("mcp_time._tools", {"time": None}),
        ("mcp_unknown = 1\nmcp_unknown.x", {}),
        ("def f(mcp_time):\n    return mcp_time.now()", {}),
    ],
)
def test_a_program_that_names_what_it_uses_reaches_that(code: str, expected: Reach) -> None:
    assert of(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "await mcp_servers['time'].now()",
        "await runtime.call_tool('time', 'now')",
        "print(runtime)",
        "import mcp",
        "from mcp.servers import time",
        "from mcp.runtime import MCPError",
        "import sys",
        "import importlib",
        "import helper_of_my_own",
        "from . import x",
        "from os import sys",
        "import os\nos.sys.modules",
        "eval('1')",
        "exec(input())",
        "globals()['x']",
        "getattr(mcp_time, 'now')",
        "x = lambda: 0\nx.__globals__",
        "match x:\n    case object(__globals__=g): pass",
        "'{0.__globals__}'.format(print)",
        "name = 'mcp_time'",
        "open('x.py', 'w').write('import mcp')",
        "__builtins__",
        "import pandas\npandas.DataFrame().query('a > 1')",
        "mcp.servers",
    ],
)
def test_a_program_that_can_look_around_may_reach_anything(code: str) -> None:
    assert of(code) is None
