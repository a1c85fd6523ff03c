"""How a program's failures are told, on the oldest and the newest Python."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.protocol.wire import Call

pytestmark = pytest.mark.usefixtures("tmp_path")


def test_a_traceback_shows_the_programs_frames_and_lines_only(guest_on: Any) -> None:
    finished = guest_on.run(
        """
def inner(n):
    return 1 / n

await mcp_git_hub.echo("a")
inner(0)
"""
    )
    error = finished.outcome.error
    assert error.startswith("Traceback (most recent call last):\n")
    assert 'File "<run_python>", line 6, in <module>\n    inner(0)' in error
    assert 'File "<run_python>", line 3, in inner\n    return 1 / n' in error
    assert error.endswith("ZeroDivisionError: division by zero")
    assert "guest" not in error
    assert "asyncio" not in error
    assert (finished.outcome.error_type, finished.exit.code) == ("ZeroDivisionError", 1)


def test_a_tools_error_points_at_the_call_and_carries_its_data(guest_on: Any) -> None:
    def refuse(guest: Any, call: Call) -> None:
        error = {
            "kind": "tool",
            "message": "no such repo",
            "server": "git-hub",
            "tool": "echo",
            "data": {"x": 1},
        }
        guest.reply(call.id, error=error)

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
    assert 'line 7, in <module>\n    await mcp_git_hub.echo("b")' in finished.outcome.error
    assert finished.outcome.error.endswith("MCPError: git-hub.echo: no such repo")
    assert "client.py" not in finished.outcome.error


DEEP = """
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
"""
MUTUAL = """
def f(): g()
def g(): h()
def h(): f()
try:
    f()
except RecursionError as e:
    raise ValueError('y' * 1_000_000) from e
"""
CAUSE = "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('outer') from e"
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
UNPRINTABLE = "class Bad(Exception):\n    def __str__(self): raise SystemExit\nraise Bad()"


@pytest.mark.parametrize(
    ("code", "kind", "fragments", "most"),
    [
        (CAUSE, "ValueError", ("KeyError: 'k'", "direct cause", "ValueError: outer"), 2000),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError", ("more times]",), 2000),
        (DEEP, "ZeroDivisionError", ("more times]", "division by zero"), 3000),
        (MUTUAL, "ValueError", ("left out",), 30_000),
        (UNPRINTABLE, "Bad", ("Bad",), 2000),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", (), 2000),
    ],
)
def test_an_error_is_told_in_short_whatever_it_is(
    guest_on: Any, code: str, kind: str, fragments: tuple[str, ...], most: int
) -> None:
    done = guest_on.run(code).outcome
    assert (done.outcome, done.error_type) == ("exception", kind)
    assert all(fragment in done.error for fragment in fragments)
    assert len(done.error) < most


def test_groups_and_notes_are_shown(make_guest: Any) -> None:
    error = make_guest().run(GROUP).outcome.error
    assert all(text in error for text in ("ValueError: no 1", "ValueError: no 2", "both failed"))


@pytest.mark.parametrize(
    ("code", "fragment"),
    [
        ("return 5", "last expression"),
        ("def f():\n    await g()", "`async def`"),
        ("x = = 1", "SyntaxError"),
        ("x = 'a\0b'", "null byte"),
        ("x = '\ud800'", "SyntaxError"),
        ("(" * 5000 + ")" * 5000, "SyntaxError"),
        ("if True:\n        a = 1\n   b = 2", "IndentationError"),
        ("yield 1", "no generator"),
    ],
)
def test_a_program_that_does_not_compile_is_told_why(
    guest_on: Any, code: str, fragment: str
) -> None:
    finished = guest_on.run(code)
    assert finished.outcome.outcome == "exception"
    assert fragment in finished.outcome.error
    assert "guest" not in finished.outcome.error


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


def test_line_numbers_survive_odd_line_ends(guest_on: Any) -> None:
    finished = guest_on.run("s = 'a\u2028b'\r\nt = '\x0c'\r\n1 / 0  # here")
    assert "line 3, in <module>\n    1 / 0  # here" in finished.outcome.error


def test_carets_stand_under_the_culprit_without_a_final_newline(make_guest: Any) -> None:
    finished = make_guest().run("x = 1\nx/0")
    lines = finished.done.error.splitlines()
    culprit = next(index for index, line in enumerate(lines) if line.strip() == "x/0")
    carets = lines[culprit + 1]
    if set(carets.strip()) <= set("^~"):  # Pythons before 3.11 draw none
        assert carets.index(carets.strip()[0]) == lines[culprit].index("x/0")


@pytest.mark.parametrize("use", ["[x['name'] for x in tree]", "for x in tree: x.name"])
def test_a_result_taken_for_the_json_in_it_is_told_with_its_keys(guest_on: Any, use: str) -> None:
    finished = guest_on.run(f"import json\ntree = await mcp_git_hub.echo('[]')\n{use}")
    assert "has the keys: 'text'." in finished.outcome.error
