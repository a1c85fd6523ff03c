"""Programs with one mistake each, as models make them, and what each is to be told.

`rule` is the preflight's; an empty one means that only running the program shows the mistake.
`phrases` are in the error; they name the fix. A forge with the tools of `tools.json` is configured
as "git-forge", so programs see it as `mcp_git_forge`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One program and what its author is to be told."""

    name: str
    code: str
    rule: str
    phrases: tuple[str, ...]


BEFORE = (
    # --- habits of other clients and languages ---------------------------------------------------
    Wrong(
        "keys without quotes",
        "r = await mcp_git_forge.search_issues({query: 'x'})",
        "undefined-name",
        ("Quote a dict's keys: `{'query': ...}`",),
    ),
    Wrong(
        "a tool misspelt in a text",
        "r = await runtime.call_tool('git-forge', 'serch_issues', {'query': 'x'})",
        "unknown-tool",
        ("search_issues",),
    ),
    Wrong(
        "a prompt's arguments by name",
        "p = await mcp_git_forge.get_prompt('review', city='Berlin')",
        "unknown-argument",
        ("`get_prompt(..., {'city': ...})`",),
    ),
    # --- tools that are not there ----------------------------------------------------------------
    Wrong(
        "a tool misspelt",
        "r = await mcp_git_forge.serch_issues(query='x')",
        "unknown-tool",
        ("Did you mean `mcp_git_forge.search_issues(query: str",),
    ),
    Wrong(
        "a tool that another server has",
        "r = await mcp_git_forge.send_email(to='a@example.org')",
        "unknown-tool",
        ("Tools: search_issues, get_issue, create_issue",),
    ),
    Wrong(
        "a tool misspelt through a second name",
        "forge = mcp_git_forge\nfor n in range(2):\n    print(await forge.get_isue(n))",
        "unknown-tool",
        ("line 3", "mcp_git_forge.get_issue("),
    ),
    Wrong(
        "a tool misspelt by the server's own name",
        "r = await mcp_servers['git-forge'].list_commit(owner='o', repo='r')",
        "unknown-tool",
        ("mcp_git_forge.list_commits(",),
    ),
    Wrong(
        "a tool misspelt in an import",
        "from mcp.servers.git_forge import get_issues\nr = await get_issues('o', 'r', 1)",
        "unknown-tool",
        ("mcp_git_forge.get_issue(",),
    ),
    Wrong(
        "the server called instead of a tool",
        "r = await mcp_git_forge('search_issues', query='x')",
        "not-a-tool",
        ("`await mcp_git_forge.<tool>(...)`", "search_issues"),
    ),
    Wrong(
        "a tool named and not called",
        "me = await mcp_git_forge.get_me",
        "not-called",
        ("`await mcp_git_forge.get_me(...)`",),
    ),
    # --- arguments -------------------------------------------------------------------------------
    Wrong(
        "an argument missing",
        "r = await mcp_git_forge.get_issue(owner='o', repo='r')",
        "missing-argument",
        ("`issue_number`", "Signature: `mcp_git_forge.get_issue("),
    ),
    Wrong(
        "an argument misspelt",
        "r = await mcp_git_forge.create_issue(owner='o', repo='r', titel='t')",
        "unknown-argument",
        ("did you mean `title`?",),
    ),
    Wrong(
        "an argument of another service's tool",
        "r = await mcp_git_forge.search_issues(q='is:open')",
        "unknown-argument",
        ("did you mean `query`?",),
    ),
    Wrong(
        "an argument that nothing is like",
        "r = await mcp_git_forge.get_me(verbose=True)",
        "unknown-argument",
        ("no parameter `verbose`", "Signature: `mcp_git_forge.get_me()"),
    ),
    Wrong(
        "a value that is not among the choices",
        "r = await mcp_git_forge.search_issues(query='x', state='opened')",
        "wrong-value",
        ("'open'", "'closed'"),
    ),
    Wrong(
        "a wrong value inside a dict that is only partly written out",
        "n = 1\nr = await mcp_git_forge.create_issue('o', 'r', 't', "
        "milestone={'number': 'one', 'due': str(n)})",
        "wrong-value",
        ("milestone.number must be an integer",),
    ),
    Wrong(
        "too many positional arguments",
        "r = await mcp_git_forge.get_file_contents('a.md', 'main', 'utf-8')",
        "too-many-arguments",
        ("at most 2",),
    ),
    Wrong(
        "an argument given twice",
        "r = await mcp_git_forge.get_file_contents('a.md', path='b.md')",
        "repeated-argument",
        ("`path` twice",),
    ),
    # --- await -----------------------------------------------------------------------------------
    Wrong(
        "a call that is never awaited",
        "mcp_git_forge.create_issue(owner='o', repo='r', title='t')\nprint('created')",
        "missing-await",
        ("nothing happens", "`await mcp_git_forge.create_issue(...)`"),
    ),
    Wrong(
        "a result that is indexed without await",
        "r = mcp_git_forge.search_issues(query='x')\nprint(r['total_count'])",
        "missing-await",
        ("line 2", "`r = await mcp_git_forge.search_issues(...)`"),
    ),
    Wrong(
        "a result that is printed without await",
        "print(mcp_git_forge.get_me())",
        "missing-await",
        ("`await mcp_git_forge.get_me(...)`",),
    ),
    Wrong(
        "a loop over a call without await",
        "for c in mcp_git_forge.list_commits(owner='o', repo='r'):\n    print(c.sha)",
        "missing-await",
        ("iterated over", "`await mcp_git_forge.list_commits(...)`"),
    ),
    Wrong(
        "an f-string with a call without await",
        "print(f'I am {mcp_git_forge.get_me()}')",
        "missing-await",
        ("`await mcp_git_forge.get_me(...)`",),
    ),
    Wrong(
        "an await that binds to the key",
        "items = await mcp_git_forge.search_issues(query='x')['items']",
        "missing-await",
        ("put parentheses", "`(await mcp_git_forge.search_issues(...))`"),
    ),
    Wrong(
        "json.dumps of a call without await",
        "import json\nprint(json.dumps(mcp_git_forge.get_me()))",
        "missing-await",
        ("`json.dumps`", "`await mcp_git_forge.get_me(...)`"),
    ),
    Wrong(
        "an own async function that is never awaited",
        "async def main():\n    print(await mcp_git_forge.get_me())\nmain()\nprint('done')",
        "missing-await",
        ("line 3", "`await main(...)`"),
    ),
    Wrong(
        "a call for its result's sake that nobody looks at",
        "r = mcp_git_forge.create_issue(owner='o', repo='r', title='t')\nprint('created')",
        "missing-await",
        ("nothing happens",),
    ),
    Wrong(
        "await in a plain function",
        "def who():\n    return await mcp_git_forge.get_me()\nprint(who())",
        "await-outside-async",
        ("`async def who(...)`",),
    ),
    Wrong(
        "await in a lambda",
        "get = lambda n: await mcp_git_forge.get_issue('o', 'r', n)\nprint(get(1))",
        "await-outside-async",
        ("write an `async def` instead",),
    ),
    Wrong(
        "gather of a list",
        "import asyncio\nr = await asyncio.gather([mcp_git_forge.get_me() for _ in range(3)])",
        "gather-list",
        ("put `*` before the list",),
    ),
    Wrong(
        "await of a list of calls",
        "r = await [mcp_git_forge.get_me() for _ in range(3)]",
        "not-awaitable",
        ("`await asyncio.gather(*[...])`",),
    ),
    Wrong(
        "a helper without await",
        "docs = runtime.search_tool_docs('issues')\nprint(docs[0])",
        "missing-await",
        ("`docs = await runtime.search_tool_docs(...)`",),
    ),
    # --- names and imports -----------------------------------------------------------------------
    Wrong(
        "a variable misspelt",
        "issues = await mcp_git_forge.search_issues(query='x')\nprint(isues.total_count)",
        "undefined-name",
        ("line 2", "Did you mean `issues`?"),
    ),
    Wrong(
        "a name of JavaScript",
        "found = await mcp_git_forge.get_me()\nconsole.log(found)",
        "undefined-name",
        ("`print(...)`",),
    ),
    Wrong(
        "a helper misspelt",
        "r = await runtime.search_tools('issues')",
        "unknown-helper",
        ("Did you mean `await runtime.search_tool_docs(query",),
    ),
    Wrong(
        "a helper misspelt in an import",
        "from mcp.runtime import calltool\nr = await calltool('git-forge', 'get_me')",
        "unknown-helper",
        ("runtime.call_tool(server, tool",),
    ),
    Wrong(
        "a result that is returned at the top",
        "me = await mcp_git_forge.get_me()\nreturn me",
        "syntax",
        ("last expression",),
    ),
)
"""What stops before anything is started."""

DURING = (
    Wrong(
        "a list used as a dict",
        "commits = await mcp_git_forge.list_commits('o', 'r')\nprint(commits['sha'])",
        "",
        ("take an item",),
    ),
    Wrong(
        "a field of a list",
        "commits = await mcp_git_forge.list_commits('o', 'r')\nprint(commits.sha)",
        "",
        ("take an item",),
    ),
    Wrong(
        "a coroutine out of a helper of its own",
        "def who():\n    return mcp_git_forge.get_me()\nprint(who()['login'])",
        "",
        ("only after `await`",),
    ),
    Wrong(
        "the network",
        "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=2)",
        "",
        ("no network",),
    ),
    Wrong(
        "an attribute that dicts have themselves",
        "r = await mcp_git_forge.search_issues(query='x')\nfor i in r.items: print(i)",
        "",
        ('x["items"]',),
    ),
    # --- syntax ----------------------------------------------------------------------------------
    Wrong(
        "JavaScript",
        "const me = await mcp_git_forge.get_me();\nprint(me)",
        "",
        ("without const or let",),
    ),
    Wrong(
        "a shell command",
        "!ls -la\nimport requests",
        "",
        ("This is a shell command; write Python.",),
    ),
    Wrong(
        "Python 2's print",
        "me = await mcp_git_forge.get_me()\nprint me",
        "",
        ("`print(...)`",),
    ),
    Wrong(
        "a block that is not indented",
        "for n in range(3):\nprint(n)",
        "",
        ("line 2", "Indent the block's lines"),
    ),
    Wrong(
        "a sum over awaited values",
        "n = sum(len(await mcp_git_forge.list_commits('o', r)) for r in ('a', 'b'))",
        "",
        ("[await f(x) for x in xs]",),
    ),
)
"""What only running the program shows."""
