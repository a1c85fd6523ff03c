from __future__ import annotations

from collections.abc import Mapping

import pytest

from bridge.catalog.program.parsing import parse
from bridge.catalog.program.references import Reach, References, references
from bridge.catalog.program.survey import Survey
from bridge.model import Finding
from tests.golden_texts import programs

PROGRAMS = programs("server_programs.txt")
ALIASES = {"git-hub": "git_hub", "time": "time", "file system": "file_system"}


def referenced_servers(code: str, aliases: Mapping[str, str]) -> References:
    tree = parse(code)
    return References() if isinstance(tree, Finding) else references(Survey(tree), aliases)


@pytest.mark.parametrize("code", PROGRAMS["names git-hub"])
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


@pytest.mark.parametrize("code", PROGRAMS["uses all servers"])
def test_a_program_that_uses_all_servers_is_noticed(code: str) -> None:
    found = referenced_servers(code, ALIASES)
    assert found.dynamic
    assert found.unknown == {}


@pytest.mark.parametrize("code", PROGRAMS["computes names"])
def test_a_program_that_computes_names_gets_the_servers_that_its_texts_name(code: str) -> None:
    assert referenced_servers(code, ALIASES) == References()
    texts = "names = ['time', 'git_hub', 'mcp_file_system', 'the time', '', 'zzz']\n"
    found = referenced_servers(texts + code, ALIASES)
    assert {*found.mentioned} == {*ALIASES}
    assert found == References(mentioned=found.mentioned)
    assert referenced_servers(texts, ALIASES) == References()


@pytest.mark.parametrize("code", [*PROGRAMS["names no server"], ""])
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


@pytest.mark.parametrize("code", PROGRAMS["has names of its own"])
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
    assert referenced_servers(code, ALIASES).reach == expected


@pytest.mark.parametrize("code", PROGRAMS["may reach anything"])
def test_a_program_that_can_look_around_may_reach_anything(code: str) -> None:
    assert referenced_servers(code, ALIASES).reach is None
