"""What calls a program is seen to make, and where it may make others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.expected_calls import ExpectedCalls, expected_calls
from bridge.catalog.program.survey import Survey
from bridge.model import Tool
from tests.golden_texts import assert_golden


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


def _expect(code: str) -> ExpectedCalls:
    return expected_calls(Survey(ast.parse(code)), SERVERS)


CALLS = """\
await mcp_git_hub.create_issue(repo='o/r', title=t)
---
await mcp_git_hub.create_issue('o/r')
---
r = 'o/r'
await mcp_git_hub.create_issue(r)
---
r = 'a'
r = 'b'
await mcp_git_hub.search(r)
---
await mcp_git_hub.create_issue(**given)
---
await mcp_git_hub.create_issue(*given)
---
await mcp_git_hub.create_issue(**{'repo': 'x', 'count': '5'})
---
await mcp_git_hub.create_issue(count=5.0)
---
gh = mcp_git_hub
await gh.search('x')
---
find = mcp_servers['git-hub'].search
await find(query='x')
---
from mcp.servers.git_hub import search as s
await s('x')
---
await runtime.call_tool('git-hub', 'create-issue', {'repo': 'x', 'title': t})
---
await runtime.call_tool_raw('git_hub', 'search', a)
---
from mcp.runtime import call_tool
await call_tool('git-hub', 'search')
---
await mcp_git_hub.read_resource('repo://x')
---
await runtime.get_prompt('git-hub', 'review', {'topic': 'x'})
---
await runtime.watch_resource('git-hub', 'repo://x', timeout=5)
---
await mcp_mail.send(to='a', text=t)
---
list(map(mcp_git_hub.search, q))
---
try:
  await mcp_git_hub.search('x')
except runtime.MCPError:
  pass
"""


def test_a_call_is_found_with_what_can_be_seen_of_its_arguments() -> None:
    found = {}
    for code in CALLS.split("\n---\n"):
        foreseen = _expect(code)
        [call] = foreseen.calls
        assert foreseen.open == ()
        name = f"{call.server}.{call.tool}"
        found[code] = [call.line, name, dict(call.arguments), [*call.unseen], call.open]
    assert_golden(Path(__file__).with_name("calls.json"), found)


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
    assert server in {place.server for place in _expect(code).open}


def test_a_call_may_follow_what_stands_before_it_or_shares_a_loop_or_is_in_a_function() -> None:
    straight = _expect("await mcp_git_hub.search('a')\nawait mcp_git_hub.create_issue('b')").calls
    assert straight[1].may_follow(straight[0])
    assert not straight[0].may_follow(straight[1])
    looped = _expect(
        "for x in y:\n  await mcp_git_hub.search('a')\n  await mcp_git_hub.create_issue('b')"
    ).calls
    assert looped[0].may_follow(looped[1])
    later = _expect(
        "async def f():\n  await mcp_git_hub.search('a')\nawait mcp_git_hub.create_issue('b')"
    ).calls
    assert later[0].may_follow(later[1])


def test_a_tool_that_is_not_known_is_named() -> None:
    [place] = _expect("x = 1\nawait mcp_git_hub.serach('x')").open
    assert (place.line, place.server) == (2, "git-hub")
    assert place.why == "it has no known tool 'serach'"
