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


def test_causes_and_contexts_keep_their_lines(guest_on: Any) -> None:
    finished = guest_on.run(
        """
def f():
    try:
        {}["k"]
    except KeyError as e:
        raise ValueError("outer") from e
f()
"""
    )
    error = finished.outcome.error
    assert "KeyError: 'k'" in error
    assert "direct cause" in error
    assert error.endswith("ValueError: outer")


def test_groups_and_notes_are_shown(make_guest: Any) -> None:
    finished = make_guest().run(
        """
import asyncio
async def bad(n):
    raise ValueError(f"no {n}")
try:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bad(1))
        tasks.create_task(bad(2))
except ExceptionGroup as group:
    group.add_note("both failed")
    raise
"""
    )
    error = finished.outcome.error
    assert "ValueError: no 1" in error
    assert "ValueError: no 2" in error
    assert "both failed" in error


def test_endless_recursion_gives_a_short_traceback(guest_on: Any) -> None:
    finished = guest_on.run("def f(n):\n    return f(n + 1)\nf(0)")
    assert finished.outcome.error_type == "RecursionError"
    assert "more times]" in finished.outcome.error
    assert len(finished.outcome.error) < 2000


def test_a_recursion_of_any_depth_is_told_in_time(guest_on: Any) -> None:
    finished = guest_on.run(
        "def f(n):\n    if n:\n        f(n - 1)\n    else:\n        1 / 0\n"
        "import sys, threading\nsys.setrecursionlimit(300_000)\nthreading.stack_size(512 << 20)\n"
        "failed = []\n"
        "def run():\n    try:\n        f(100_000)\n    except ZeroDivisionError as e:\n"
        "        failed.append(e)\n"
        "thread = threading.Thread(target=run)\nthread.start()\nthread.join()\nraise failed[0]"
    )
    assert "more times]" in finished.outcome.error
    assert finished.outcome.error.endswith("ZeroDivisionError: division by zero")
    assert len(finished.outcome.error) < 3000


def test_get_event_loop_works_as_it_used_to(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import asyncio
async def main(): return 3
first = asyncio.get_event_loop().run_until_complete(main())
asyncio.run(main())
[first, asyncio.get_event_loop().run_until_complete(main())]
"""
    )
    assert finished.value == [3, 3]
    assert finished.stderr == ""


def test_mutual_recursion_and_huge_messages_are_cut(guest_on: Any) -> None:
    finished = guest_on.run(
        "def f(): g()\ndef g(): h()\ndef h(): f()\n"
        "try:\n    f()\nexcept RecursionError as e:\n    raise ValueError('y' * 1_000_000) from e"
    )
    assert "left out" in finished.outcome.error
    assert len(finished.outcome.error) < 30_000


def test_an_exception_whose_text_raises_is_still_reported(guest_on: Any) -> None:
    finished = guest_on.run(
        "class Bad(Exception):\n    def __str__(self): raise SystemExit\nraise Bad()"
    )
    assert finished.outcome.outcome == "exception"
    assert finished.outcome.error_type == "Bad"
    assert "Bad" in finished.outcome.error


def test_keyboard_interrupt_is_an_exception_like_others(guest_on: Any) -> None:
    finished = guest_on.run("raise KeyboardInterrupt")
    assert finished.outcome.outcome == "exception"
    assert finished.outcome.error_type == "KeyboardInterrupt"


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
