"""How a program's failures are reported, on the oldest and the newest Python."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.protocol.wire import Call
from tests.guest.finished import Case, programs


def test_a_tools_error_points_at_the_call_and_carries_its_data(guest_on: Any) -> None:
    def refuse(guest: Any, call: Call) -> None:
        error = {"kind": "tool", "message": "no such repo", "server": "git-hub", "tool": "echo"}
        guest.reply(call.id, error={**error, "data": {"x": 1}})

    finished = guest_on.run(
        """
try:
    await mcp_git_hub.echo("a")
except RuntimeError as e:
    assert type(e) is MCPError is mcp.runtime.MCPError
    print(e.server, e.tool, e.data.x, e.kind)
await mcp_git_hub.echo("b")
""",
        refuse,
    )
    assert finished.stdout == "git-hub echo 1 tool\n"
    assert 'line 7, in <module>\n    await mcp_git_hub.echo("b")' in finished.error
    assert finished.error.endswith("MCPError: git-hub.echo: no such repo")
    assert "client.py" not in finished.error


PROGRAMS = r"""
## its frames and lines: error=('line 4, in <module>\n    inner(0)', 'line 2, in inner\n')
def inner(n):
    return 1 / n
await mcp_git_hub.echo("a")
inner(0)
## a cause: error=("KeyError: 'k'", 'direct cause', 'ValueError: outer'), error_type='ValueError'
try:
    {}['k']
except KeyError as e:
    raise ValueError('outer') from e
## recursion: error=('more times]',), error_type='RecursionError'
def f(n):
    return f(n + 1)
f(0)
## a deep stack: error=('more times]', 'by zero'), error_type='ZeroDivisionError'
def f(n):
    if n:
        f(n - 1)
    else:
        1 / 0
import sys, threading
sys.setrecursionlimit(300_000)
threading.stack_size(512 << 20)
failed = []
def run():
    try:
        f(100_000)
    except ZeroDivisionError as e:
        failed.append(e)
thread = threading.Thread(target=run)
thread.start()
thread.join()
raise failed[0]
## mutual recursion with a long text: error=('left out',), error_type='ValueError'
def f(): g()
def g(): h()
def h(): f()
try:
    f()
except RecursionError as e:
    raise ValueError('y' * 1_000_000) from e
## a text that exits: error=('Bad',), error_type='Bad'
class Bad(Exception):
    def __str__(self): raise SystemExit
raise Bad()
## KeyboardInterrupt: error=(), error_type='KeyboardInterrupt'
raise KeyboardInterrupt
## return outside of a function: error=('last expression',)
return 5
## await in a plain function: error=('`async def`',)
def f():
    await g()
## no Python: error=('SyntaxError',)
x = = 1
## indentation: error=('IndentationError',)
if True:
        a = 1
   b = 2
## yield: error=('no generator',)
yield 1
## JSON in a result, in a comprehension: error=("has the keys: 'text'.",)
import json
tree = await mcp_git_hub.echo('[]')
[x['name'] for x in tree]
## JSON in a result, in a loop: error=("has the keys: 'text'.",)
import json
tree = await mcp_git_hub.echo('[]')
for x in tree: x.name
"""


@programs(PROGRAMS)
def test_an_error_is_short_and_shows_nothing_of_the_guest(guest_on: Any, case: Case) -> None:
    error = case.check(guest_on).error
    assert len(error) < (30_000 if "left out" in error else 3000)
    assert "guest" not in error
    assert "asyncio" not in error


GROUP = """
async def bad(n):
    raise ValueError(f"no {n}")
try:
    async with __import__("asyncio").TaskGroup() as tasks:
        tasks.create_task(bad(1))
        tasks.create_task(bad(2))
except ExceptionGroup as group:
    group.add_note("both failed")
    raise
"""


def test_groups_and_notes_are_shown(make_guest: Any) -> None:
    error = make_guest().run(GROUP).error
    assert all(text in error for text in ("ValueError: no 1", "ValueError: no 2", "both failed"))


@pytest.mark.parametrize(
    ("code", "fragment"),
    [
        ("x = 'a\0b'", "null byte"),
        ("x = '\ud800'", "SyntaxError"),
        ("(" * 5000 + ")" * 5000, "SyntaxError"),
        ("s = 'a\u2028b'\r\nt = '\x0c'\r\n1 / 0  # here", "line 3, in <module>\n    1 / 0  # here"),
    ],
)
def test_an_error_in_odd_text_names_its_kind_and_line(
    guest_on: Any, code: str, fragment: str
) -> None:
    error = guest_on.run(code).error
    assert fragment in error
    assert "guest" not in error


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\r\nif x:\r\n    x = 2\r\nx",
        "# -*- coding: latin-1 -*-\nx = len('é') + 1\nx",
        "\ufefffrom __future__ import annotations\ndef f(a: Nope): pass\n2",
        "'doc'\n2",
        "    x = 1\n    x + 1",
        "s = 'a\\u2028b\x0c'\n\nlen(s) - 2",
        "import sys; 2;",
    ],
)
def test_unusual_but_valid_programs_run(guest_on: Any, code: str) -> None:
    assert guest_on.run(code).value == 2


def test_carets_are_under_the_culprit_without_a_final_newline(make_guest: Any) -> None:
    lines = make_guest().run("x = 1\nx/0").error.splitlines()
    culprit = next(index for index, line in enumerate(lines) if line.strip() == "x/0")
    carets = lines[culprit + 1]
    if set(carets.strip()) <= set("^~"):  # Pythons before 3.11 draw none
        assert carets.index(carets.strip()[0]) == lines[culprit].index("x/0")
