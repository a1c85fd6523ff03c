"""Which programs name all that they can get at."""

from __future__ import annotations

import ast

import pytest

from bridge.catalog.program.server_references import Reach, references
from bridge.catalog.program.survey import Survey

ALIASES = {"git-hub": "git_hub", "time": "time"}


def of(code: str) -> Reach | None:
    return references(Survey(ast.parse(code)), ALIASES).reach


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
