"""Programs that once got wrong advice, or none: each works now, or its answer names the fix."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.upstream.launch import explain_spawn_failure
from tests.first_try.test_first_try import HERE, corpus, server

ISSUE, LISTED = '"Issue 7: crash"|Issue 7', "total"

WORKING = [  # name, program, pattern of what its run shows
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
    ("generator", "(n for n in range(20, 24))", r"23"),
    ("from servers", "from servers.tracker import get_issue\nawait get_issue(id=7)", ISSUE),
    (
        "names of servers in the environment",
        "import os\nprint(os.environ['MCP_DISCOVERED_SERVERS'])",
        r'\["tracker"\]',
    ),
    ("servers", "import servers.tracker as t\nawait t.get_issue({'id': 7})", ISSUE),
    (
        "gather in run_until_complete",
        (
            "import asyncio\nloop = asyncio.get_event_loop()\n"
            "calls = [mcp_tracker.get_issue(id=n) for n in (7, 8)]\n"
            "print(loop.run_until_complete(asyncio.gather(*calls))[0])"
        ),
        ISSUE,
    ),
    (
        "task in run_until_complete, between others",
        (
            "import asyncio\nloop = asyncio.get_event_loop()\n"
            "others = [asyncio.create_task(asyncio.sleep(0)) for _ in range(20)]\n"
            "issue = loop.run_until_complete(loop.create_task(mcp_tracker.get_issue(id=7)))\n"
            "await asyncio.gather(*others)\nissue"
        ),
        ISSUE,
    ),
    (
        "exit in run_until_complete",
        (
            "import asyncio, sys\nasync def main():\n    print(await mcp_tracker.get_issue(id=7))\n"
            "    sys.exit(0)\nasyncio.get_event_loop().run_until_complete(main())\n"
            "await asyncio.sleep(0)"
        ),
        r"Issue 7: crash[^\n]*\n*\[run [0-9a-f]{8}\]\Z",
    ),
    ("module", "print(datetime.datetime(2026, 1, 2) + datetime.timedelta(days=1))", "2026-01-03"),
    ("class", "print(datetime.strptime('2026-01-02', '%Y-%m-%d').isoformat())", "2026-01-02T"),
    ("function", "pprint({'n': 23})", "23"),
    (
        "error",
        "try:\n    await mcp_tracker.get_issue(id=999)\nexcept ToolError as e:\n    print(e)",
        "404",
    ),
    ("final answer", "i = await mcp_tracker.get_issue(id=7)\nfinal_answer(i)", ISSUE),
    ("awaited print", "i = await mcp_tracker.get_issue(id=7)\nawait print(i)", ISSUE),
    ("awaited for gather", "await asyncio.gather(await mcp_tracker.get_issue(id=7))", ISSUE),
    ("list for gather", "await asyncio.gather([mcp_tracker.get_issue(id=7)])", ISSUE),
    ("loaded servers", "print(runtime.list_servers_sync())", "tracker"),
    ("getattr", 'await getattr(mcp_tracker, "list-issues")()', LISTED),
    ("camel case", "await mcp_tracker.getIssue(id=7)", ISSUE),
    ("camel case, bare", "await getIssue(id=7)", ISSUE),
    ("camel case, by name", 'await runtime.call_tool("tracker", "getIssue", {"id": 7})', ISSUE),
    ("server's name before the tool's", "await mcp_tracker.tracker_get_issue(id=7)", ISSUE),
    ("server in camel case", "await mcpTracker.get_issue(id=7)", ISSUE),
    ("server in capitals", "await MCP_TRACKER.get_issue(id=7)", ISSUE),
    ("tools of a server", "await mcp_tracker.tools.get_issue(id=7)", ISSUE),
    ("call_tool of a server", 'await mcp_tracker.call_tool("get_issue", {"id": 7})', ISSUE),
    ("its keywords", 'await mcp_tracker.call_tool(name="get_issue", arguments={"id": 7})', ISSUE),
    ("keywords of the tool", 'await runtime.call_tool("tracker", "get_issue", id=7)', ISSUE),
    ("keywords, one name", 'await call_tool("get_issue", id=7)', ISSUE),
    ("parameter in camel case", "await mcp_tracker.list_issues_page(page=1, perPage=8)", ISSUE),
    ("arguments", 'await mcp_tracker.get_issue(arguments={"id": 7})', ISSUE),
    ("arguments in a variable", "a = dict(id=7)\nawait mcp_tracker.get_issue(arguments=a)", ISSUE),
    (
        "tool key",
        'tools = await runtime.list_tools("tracker")\n[t["name"] for t in tools]',
        "list_issues",
    ),
]

HELPED: list[dict[str, Any]] = [
    {
        "name": "keyword",
        "code": 'u = mcp_tracker.get_issue\nawait u(class="x", id=7)',
        "answer": r"write `class_=\.\.\.` for a tool, and `\*\*\{\"class\": \.\.\.\}` elsewhere",
        # It fails for another reason: the tool has no such parameter.
        "fix": [('class="x", ', "")],
        "shows": ISSUE,
    },
    {
        "name": "coroutines to wait",
        "code": "done, _ = await asyncio.wait([mcp_tracker.get_issue(id=7)])\nprint(done)",
        "answer": r"await asyncio\.gather\(\*calls\) gives the values",
        "fix": [("done, _ = await asyncio.wait([", "done = await asyncio.gather(*[")],
        "shows": ISSUE,
    },
    {
        "name": "run that is awaited",
        "code": (
            "import asyncio\nasync def main():\n    return await mcp_tracker.get_issue(id=7)\n"
            "print(await asyncio.run(main()))"
        ),
        "answer": r"asyncio\.run\(\.\.\.\) itself waits",
        "fix": [("await asyncio.run", "asyncio.run")],
        "shows": ISSUE,
    },
    {
        "name": "key of a text",
        "code": 'r = await mcp_tracker.search_issues(query="crash")\nprint(r.get("items", 0))',
        "answer": "no key 'items': this result is text: use it as it is",
        "fix": [('.get("items", 0)', "")],
        "shows": "crash",
    },
    {
        "name": "key of a list",
        "code": 'r = await mcp_tracker.list_issues_page(page=1)\nprint(r.get("title"))',
        "answer": r"this result is a list of 25 items: loop over it, or take one, as in x\[0\]",
        "fix": [('r.get("title")', 'r[0].get("title")')],
        "shows": "Issue 1",
    },
    {
        "name": "all that is wrong with a call",
        "code": "d = dict(body=object(), titel=2)\nawait mcp_tracker.create_issue(**d)",
        "answer": "not JSON: body is a object.*no parameter `titel`",
        "fix": [("body=object(), titel=2", "title='n'")],
        "shows": "58",
    },
    {
        "name": "text for a list",
        "code": 'await mcp_tracker.create_issue(title="x", labels="bug, p1")',
        "answer": r"must be a list, not 'bug, p1'; write \['bug', 'p1'\]",
        "fix": [('"bug, p1"', '["bug", "p1"]')],
        "shows": r'\["bug", ?"p1"\]',
    },
    {
        "name": "module and class of one name",
        "code": "print(datetime.now() - datetime.timedelta(days=1))\nmcp_tracker",
        "answer": "`datetime` is not defined",
        "fix": [("datetime.now", "datetime.datetime.now")],
        "shows": "-",
    },
    {
        "name": "tool with another verb",
        "code": "await mcp_tracker.update_issue(id=7)\n",
        # Not `create_issue`, which would make one.
        "answer": "has no tool `update_issue`. Tools: list_issues, ",
        "fix": [("update_issue", "get_issue")],
        "shows": ISSUE,
    },
    {
        "name": "parameter that is not there",
        "code": "await mcp_tracker.list_issues(sort='id')",
        # Not `cursor`.
        "answer": r"has no parameter `sort`\. Signature",
        "fix": [("sort='id'", "")],
        "shows": LISTED,
    },
    {
        "name": "picture",
        "code": "import json\np = await mcp_tracker.get_screenshot(id=7)\nprint(json.dumps(p))",
        "answer": "end with it, or `display` it",
        "fix": [("print(json.dumps(p))", "p")],
        "shows": "Screenshot of 7",
    },
    {
        "name": "main",
        "code": "async def main():\n    print(await mcp_tracker.get_issue(id=7))\n",
        "answer": r"end the program with `await main\(\)`",
        "fix": [("id=7))\n", "id=7))\nawait main()")],
        "shows": ISSUE,
    },
    {
        "name": "lost line",
        "code": 'r = await mcp_tracker.get_issue(id=7)\nfor x in [1]:\n    y = r["title"]\n',
        "answer": "(?s)retry_of=.*line 3: what this line makes is not shown; print it",
        "fix": [("y = ", "y = 0; print("), ('["title"]', '["title"])')],
        "shows": ISSUE,
    },
    {
        "name": "credential",
        "code": 'import os\nos.environ["GITHUB_TOKEN"]\nawait mcp_tracker.get_issue(id=7)',
        "answer": "no credentials and settings of the user's are inside",
        "fix": [('os.environ["GITHUB_TOKEN"]\n', "")],
        "shows": ISSUE,
    },
]
"""Programs whose answer names the fix, in the form of `programs.toml`."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_no_program_gets_wrong_advice(tmp_path: Path) -> None:
    wrong = {}
    async with corpus(tmp_path) as programs:
        for name, code, shows in WORKING:
            found, text = await programs.outcome({"name": name, "code": code, "shows": shows})
            if found != "first try":
                wrong[name] = text
        for program in HELPED:
            found, text = await programs.outcome(program)
            if found != "one more try":
                wrong[program["name"]] = text
    assert wrong == {}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_name_that_python_cannot_write_reaches_its_tool(tmp_path: Path) -> None:
    dashed = tmp_path / "dashed"
    source = (HERE / "tracker.py").read_text().replace('"get_issue"', '"get-issue"')
    log = f"import os\nos.environ['TRACKER_LOG'] = {str(tmp_path / 'log')!r}\n"
    source = source.replace("import base64\n", f"import base64\n{log}")
    dashed.write_text(f"#!{sys.executable}\n{source}")
    dashed.chmod(0o755)
    async with corpus(tmp_path, q=str(dashed)) as programs:
        for call in ('getattr(mcp_q, "get-issue")', 'mcp_q["get-issue"]', "mcp_q.get_issue"):
            text, calls, failed = await programs.run(f"await {call}(id=7)", None)
            assert not failed, text
            assert [one.split()[0] for one in calls] == ["get-issue"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_line_that_would_have_printed_is_not_said_to_be_lost(tmp_path: Path) -> None:
    code = "r = await mcp_tracker.get_issue(id=7)\nif not r:\n    print(r)"
    async with corpus(tmp_path) as programs:
        text, _, _ = await programs.run(code, None)
    assert "retry_of=" in text
    assert "not shown" not in text


@pytest.mark.parametrize(
    ("place", "written", "advice"),
    [
        (".local/bin", "own-command", "Give its full path, '$/own-command', as `command`"),
        (".nvm/versions/node/v22.1.0/bin", "own-command", "Give its full path, '$/own-command',"),
        ("tools", "~/tools/own-command", "Write its full path, '$/own-command', as `command`"),
        ("tools", "$HOME/tools/own-command", "Write its full path, '$/own-command', as `command`"),
        ("tools", "${HOME}/no/own-command", "as `command` in /t.json, once it is there"),
        ("on path", "own-command -y x", 'Write "command": "own-command", "args": ["-y", "x"]'),
        ("tools", "own-command", "Install it, or give its full path as `command`"),
        ("tools", "/no/own-command", "Correct `command`"),
    ],
)
def test_a_command_that_is_not_found_is_explained(
    tmp_path: Path, place: str, written: str, advice: str
) -> None:
    command = tmp_path / place / "own-command"
    command.parent.mkdir(parents=True)
    command.touch(mode=0o755)
    environ = {"HOME": str(tmp_path), "PATH": f"/usr/bin:{tmp_path}/on path"}
    _, remedy = explain_spawn_failure(server("s", written), environ, FileNotFoundError())
    assert advice.replace("$", str(command.parent), 1) in remedy
