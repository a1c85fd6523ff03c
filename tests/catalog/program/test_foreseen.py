"""What calls a program is seen to make, and where it may make others."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.expected_calls import ExpectedCalls, expected_calls
from bridge.catalog.program.survey import Survey
from bridge.model import Tool


def _tool(name: str, **types: str) -> ToolEntry:
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in types.items()}}
    return ToolEntry(
        tool=Tool(server="s", name=name, input_schema={**schema, "additionalProperties": False}),
        alias=name.replace("-", "_"),
    )


SERVERS = (
    ServerEntry(
        name="git-hub",
        alias="git_hub",
        tools=(
            _tool("create-issue", repo="string", title="string", labels="array", count="integer"),
            _tool("search", query="string"),
        ),
        known=True,
    ),
    ServerEntry(name="mail", alias="mail"),
)


def _foreseen(code: str) -> ExpectedCalls:
    return expected_calls(Survey(ast.parse(code)), SERVERS)


def _one(code: str) -> tuple[Any, ...]:
    found = _foreseen(code)
    assert found.open == ()
    [call] = found.calls
    return call.line, f"{call.server}.{call.tool}", dict(call.arguments), call.unseen, call.open


CREATE = "git-hub.create-issue"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "await mcp_git_hub.create_issue(repo='o/r', title=t)",
            (1, CREATE, {"repo": "o/r"}, ("title",), False),
        ),
        ("await mcp_git_hub.create_issue('o/r')", (1, CREATE, {"repo": "o/r"}, (), False)),
        ("r = 'o/r'\nawait mcp_git_hub.create_issue(r)", (2, CREATE, {"repo": "o/r"}, (), False)),
        (
            "r = 'a'\nr = 'b'\nawait mcp_git_hub.search(r)",
            (3, "git-hub.search", {}, ("query",), False),
        ),
        ("await mcp_git_hub.create_issue(**given)", (1, CREATE, {}, (), True)),
        ("await mcp_git_hub.create_issue(*given)", (1, CREATE, {}, (), True)),
        (
            "await mcp_git_hub.create_issue(**{'repo': 'x', 'count': '5'})",
            (1, CREATE, {"repo": "x", "count": 5}, (), False),
        ),
        ("await mcp_git_hub.create_issue(count=5.0)", (1, CREATE, {"count": 5}, (), False)),
        (
            "gh = mcp_git_hub\nawait gh.search('x')",
            (2, "git-hub.search", {"query": "x"}, (), False),
        ),
        (
            "find = mcp_servers['git-hub'].search\nawait find(query='x')",
            (2, "git-hub.search", {"query": "x"}, (), False),
        ),
        (
            "from mcp.servers.git_hub import search as s\nawait s('x')",
            (2, "git-hub.search", {"query": "x"}, (), False),
        ),
        (
            "await runtime.call_tool('git-hub', 'create-issue', {'repo': 'x', 'title': t})",
            (1, CREATE, {"repo": "x"}, ("title",), False),
        ),
        (
            "await runtime.call_tool_raw('git_hub', 'search', a)",
            (1, "git-hub.search", {}, (), True),
        ),
        (
            "from mcp.runtime import call_tool\nawait call_tool('git-hub', 'search')",
            (2, "git-hub.search", {}, (), False),
        ),
        (
            "await mcp_git_hub.read_resource('repo://x')",
            (1, "git-hub.resources/read", {"uri": "repo://x"}, (), False),
        ),
        (
            "await runtime.get_prompt('git-hub', 'review', {'topic': 'x'})",
            (1, "git-hub.prompts/get", {"name": "review", "arguments": {"topic": "x"}}, (), False),
        ),
        (
            "await runtime.watch_resource('git-hub', 'repo://x', timeout=5)",
            (1, "git-hub.resources/read", {"uri": "repo://x"}, (), True),
        ),
        ("await mcp_mail.send(to='a', text=t)", (1, "mail.send", {"to": "a"}, ("text",), False)),
        ("list(map(mcp_git_hub.search, q))", (1, "git-hub.search", {}, (), True)),
        (
            "try:\n  await mcp_git_hub.search('x')\nexcept runtime.MCPError:\n  pass",
            (2, "git-hub.search", {"query": "x"}, (), False),
        ),
    ],
)
def test_a_call_is_found_with_what_can_be_seen_of_its_arguments(
    code: str, found: tuple[Any, ...]
) -> None:
    assert _one(code) == found


@pytest.mark.parametrize(
    ("code", "server"),
    [
        ("await getattr(mcp_git_hub, name)()", "git-hub"),
        ("for s in (mcp_git_hub,):\n  await s.search('x')", "git-hub"),
        ("await runtime.call_tool('git-hub', name, {})", "git-hub"),
        ("await runtime.call_tool(server, 'search', {})", None),
        ("await runtime.call_tool(*given)", None),
        ("await runtime.read_resource('repo://x')", None),
        ("await runtime.complete('git-hub', 'repo://{x}', 'x')", "git-hub"),
        ("await mcp_servers[name].search('x')", None),
        ("exec(text)", None),
        ("from mcp.servers.git_hub import *\nawait search('x')", None),
        ("call = runtime.call_tool\nawait each(call)", None),
        ("def f():\n  global g\n  g = 1\ng = mcp_git_hub\nawait g.search('x')", "git-hub"),
    ],
)
def test_where_anything_may_be_called_the_place_is_named(code: str, server: str | None) -> None:
    assert server in {place.server for place in _foreseen(code).open}


def test_a_call_may_follow_what_stands_before_it_or_shares_a_loop_or_is_in_a_function() -> None:
    straight = _foreseen("await mcp_git_hub.search('a')\nawait mcp_git_hub.create_issue('b')").calls
    assert straight[1].may_follow(straight[0])
    assert not straight[0].may_follow(straight[1])
    looped = _foreseen(
        "for x in y:\n  await mcp_git_hub.search('a')\n  await mcp_git_hub.create_issue('b')"
    ).calls
    assert looped[0].may_follow(looped[1])
    later = _foreseen(
        "async def f():\n  await mcp_git_hub.search('a')\nawait mcp_git_hub.create_issue('b')"
    ).calls
    assert later[0].may_follow(later[1])


def test_a_tool_that_is_not_known_is_named() -> None:
    [place] = _foreseen("x = 1\nawait mcp_git_hub.serach('x')").open
    assert (place.line, place.server) == (2, "git-hub")
    assert place.why == "it has no known tool 'serach'"
