"""Programs that once got wrong advice, or none: each works now, or its answer names the fix."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from bridge.runs import open_engine
from bridge.settings import load
from bridge.upstream.stdio import explain_spawn_failure
from tests.engine_rig import ListFinder
from tests.first_try.test_first_try import HERE, Corpus, server

ISSUE, LISTED = '"Issue 7: crash"|Issue 7', "total"

ROWS = [  # name, program, pattern of what its run shows
    (
        "JSON text",
        'await mcp_tracker.create_issue(title="x", labels=json.dumps(["bug"]))',
        r'\["bug"\]',
    ),
    ("bare name", "await list_issues()", LISTED),
    ("dict", "d = {'id': 7}\nt = mcp_tracker.get_issue\nawait t(d)", ISSUE),
    (
        "import runtime",
        'import runtime\nawait runtime.call_tool("tracker", "get_issue", {"id": 7})',
        ISSUE,
    ),
    (
        "from runtime",
        'from runtime import call_tool\nawait call_tool("tracker", "get_issue", {"id": 7})',
        ISSUE,
    ),
    (
        "other parameters",
        'await runtime.call_tool(server_name="tracker", tool_name="get_issue", args={"id": 7})',
        ISSUE,
    ),
    ("server and tool", "await tracker_list_issues()", LISTED),
    ("from mcp", "from mcp import tracker\nawait tracker.list_issues()", LISTED),
    (
        "match",
        'import re\nm = re.search("(.)$", "issue 7")\nawait mcp_tracker.get_issue(id=m.group(1))',
        ISSUE,
    ),
    ("text in a variable", 's = "7"\nawait mcp_tracker.get_issue(id=s)', ISSUE),
    ("keyword", 'u = mcp_tracker.get_issue\nawait u(class="x")', r"class_"),
    ("getattr", 'await getattr(mcp_tracker, "list-issues")()', "Did you mean 'list_issues'"),
    ("MCP double underscore", "await mcp__tracker__list_issues()", LISTED),
    ("call_tool by name", 'await call_tool("list_issues", {})', LISTED),
    ("dotted", 'await runtime.call_tool("tracker.list_issues", {})', LISTED),
    ("mcp_servers", "await mcp_servers.tracker.list_issues()", LISTED),
    ("mcp[]", 'import mcp\nawait mcp["tracker"].list_issues()', LISTED),
    ("mcp[] bare", 'await mcp["tracker"].list_issues()', LISTED),
    ("mcp.call_tool", 'await mcp.call_tool("tracker", "list_issues", {})', LISTED),
    ("prompts", ">>> x = 20 + 3\n>>> print(x)", "23"),
    ("entities", "print(1 if 2 &gt; 1 else 0, 20 + 3)", "23"),
    ("newline as two", "x = 20 + 3\\nprint(x)", "23"),
    ("no-break space", "x =\u00a020 + 3\nprint(x)", "23"),
    ("zero width", "x = 20\u200b + 3\nprint(x)", "23"),
    ("en dash", "print(26 \u2013 3)", "23"),
    (
        "picture",
        "import json\np = await mcp_tracker.get_screenshot(id=7)\nprint(json.dumps(p))",
        "end with it",
    ),
    (
        "lost line",
        'r = await mcp_tracker.get_issue(id=7)\nfor x in [1]:\n    y = r["title"]',
        r"retry_of=.*line 3: what this line makes is not shown",
    ),
    ("credential", 'import os\nos.environ["GITHUB_TOKEN"]', "credentials"),
    (
        "main",
        "async def main():\n    print(await mcp_tracker.get_issue(id=7))",
        "end the program with `await main",
    ),
    ("generator", "(n for n in range(20, 24))", r"23"),
    (
        "tool key",
        'tools = await runtime.list_tools("tracker")\n[t["name"] for t in tools]',
        "list_issues",
    ),
]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_no_program_gets_wrong_advice(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "s")}
    log = {"TRACKER_LOG": str(tmp_path / "log")}
    finder = ListFinder(server("tracker", sys.executable, str(HERE / "tracker.py"), **log))
    wrong = {}
    settings = load({"runtime": "bubblewrap", "warm": "1"}, environ)
    async with open_engine(settings, finder=finder) as engine:
        corpus = Corpus(engine, tmp_path)
        for name, code, right in ROWS:
            text, _, _ = await corpus.run(code, None)
            if not re.search(right, text, re.DOTALL):
                wrong[name] = text
    assert wrong == {}


def test_a_command_beside_the_path_is_named_with_its_full_path(tmp_path: Path) -> None:
    command = tmp_path / ".local" / "bin" / "own-command"
    command.parent.mkdir(parents=True)
    command.touch(mode=0o755)
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    _, remedy = explain_spawn_failure(server("s", command.name), environ, FileNotFoundError())
    assert f"Give its full path, {str(command)!r}, as `command`" in remedy
