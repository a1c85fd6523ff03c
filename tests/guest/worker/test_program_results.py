"""A program's last value and its failures, on the oldest and the newest Python."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.protocol.wire import Call, Done
from tests.guest.finished import Case, programs


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("(1, [2.5, None], {'a': True})", [1, [2.5, None], {"a": True}]),
        ("'ünï'", "ünï"),
        ("__import__('collections').OrderedDict(a=1)", {"a": 1}),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", [1, 2]),
        ("10 ** 400", 10**400),
        ("{1: 'a', None: b'x', True: []}", {"1": [], "null": "x"}),
        ("__import__('datetime').timedelta(seconds=5)", "0:00:05"),
        ("{'q': __import__('collections').deque([{2: b'\\xff'}])}", {"q": [{"2": "\\xff"}]}),
        ("if 1 > 2:\n    3\nelif 2:\n    4\nelse:\n    5", 4),
        ("match 2:\n    case 1: 3\n    case _: 4", 4),
        ("x = [1]", [1]),
        ("x: int = 1", 1),
        ("if __name__ == '__main__':\n    [1]", [1]),
        ("import contextlib\nwith contextlib.suppress(OSError):\n    'in'", "in"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    'caught'", "caught"),
        ("try:\n    x = 1\nexcept OSError:\n    pass\nelse:\n    'else'", "else"),
        ("import datetime\ndatetime.date(2026, 1, 2)", "2026-01-02"),
        ("{2, 1}", [1, 2]),
        ("import decimal\n[decimal.Decimal('1.10'), decimal.Decimal('2.5')]", ["1.10", 2.5]),
        ("import enum\nclass E(enum.Enum):\n    A = 'a'\n[E.A]", ["a"]),
        ("import pathlib\n{'p': pathlib.PurePath('/a')}", {"p": "/a"}),
        ("(i * i for i in range(3))", [0, 1, 4]),
        ("{'m': map(str, (1, 2))}", {"m": ["1", "2"]}),
        ("async def f(i):\n    return i\n(await f(i) for i in range(2))", [0, 1]),
    ],
)
def test_the_last_statements_value_is_the_result(make_guest: Any, program: str, value: Any) -> None:
    assert make_guest().run(program).value == value


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("float('nan')", "nan"),
        ("{1: 'a', '1': 'b'}", "{1: 'a', '1': 'b'}"),
        ("b'x'", "b'x'"),
        ("10 ** 5000", "<int object; its repr raised ValueError>"),
        ("(lambda a: a.append(a) or a)([])", "[[...]]"),
    ],
)
def test_values_that_json_cannot_hold_are_shown_by_repr(
    make_guest: Any, expression: str, shown: str
) -> None:
    done = make_guest().run(expression).outcome
    assert (done.outcome, done.has_result, done.result_repr) == ("ok", False, shown)


def test_a_hostile_repr_and_an_overlong_one_are_bounded(make_guest: Any) -> None:
    code = "class A:\n    def __repr__(self): raise SystemExit(9)\nA()"
    done = make_guest().run(code).outcome
    assert (done.exit_code, done.result_repr) == (0, "<A object; its repr raised SystemExit>")
    code = "class A:\n    def __getattribute__(self, name): raise SystemExit(9)\nA()"
    done = make_guest().run(code).outcome
    assert done.outcome in ("ok", "exit")
    finished = make_guest().run("class A:\n    def __repr__(self): return 'a' * 9000\nA()")
    assert finished.outcome.result_repr == "A, printed to stdout as repr"
    assert finished.stdout == "a" * 9000 + "\n"


@pytest.mark.parametrize("code", ["", "None", "x = 1\ndel x"])
def test_a_program_without_a_last_value_has_no_result(guest_on: Any, code: str) -> None:
    assert guest_on.run(code).outcome == Done("ok")


def test_an_assigned_value_in_a_session_and_one_that_is_no_data_is_no_result(
    make_guest: Any,
) -> None:
    assert make_guest().run("x = 1\nprint(x)\ny = 2").outcome.assigned
    assert make_guest().run("f = lambda: 1").outcome == Done("ok")


def test_a_result_that_costs_its_reader_too_much_goes_where_output_goes(make_guest: Any) -> None:
    limits = {"result_bytes": 1000}
    finished = make_guest().run("list(range(1000))", limits=limits)
    told = "list of 1,000, printed to stdout as JSON, an item a line"
    assert finished.outcome == Done("ok", result_repr=told)
    assert finished.stdout.startswith("[\n0,\n1,\n")
    assert finished.stdout.endswith("999\n]\n")
    code = "{'rows': [{'id': n, 'of': [1]} for n in range(100)], 'n': 100}"
    finished = make_guest().run(code, limits=limits)
    told = "dict of 2 ('rows': list of 100, 'n': int), printed to stdout as JSON, an item a line"
    assert finished.outcome.result_repr == told
    lines = finished.stdout.splitlines()
    assert lines[:3] == ["{", '"rows": [', '{"id": 0, "of": [1]},']
    assert lines[-3:] == ["],", '"n": 100', "}"]
    finished = make_guest().run("'x' * 1500", limits=limits)
    assert finished.outcome.result_repr == "text of 1,500 characters, printed to stdout"
    assert finished.stdout == "x" * 1500 + "\n"
    lines = make_guest().run("'line\\n' * 400", limits=limits)
    assert lines.stdout == "line\n" * 400
    assert make_guest().run("'x' * 500", limits=limits).value == "x" * 500


@pytest.mark.parametrize(
    ("code", "lines", "shape"),
    [
        ("{n + 0j for n in range(900)}", 902, "set of 900"),
        ("{(n, n): 'value' for n in range(500)}", 502, "dict of 500"),
        ("[{'at': complex(n), 'of': [n]} for n in range(300)]", 302, "list of 300"),
        ("(1j,) * 2000", 2002, "tuple of 2,000"),
    ],
)
def test_what_json_cannot_hold_is_printed_as_a_whole_when_it_is_long(
    make_guest: Any, code: str, lines: int, shape: str
) -> None:
    finished = make_guest().run(code)
    told = f"{shape}, printed to stdout as repr, an item a line"
    assert finished.outcome == Done("ok", result_repr=told)
    assert len(finished.stdout.splitlines()) == lines
    assert eval(finished.stdout) == eval(code)


def test_a_large_value_is_printed_past_what_a_program_put_in_place_of_stdout(
    make_guest: Any,
) -> None:
    limits = {"result_bytes": 1000}
    code = "import io, sys\nsys.stdout = io.StringIO()\nprint('captured')\nlist(range(1000))"
    finished = make_guest().run(code, limits=limits)
    assert finished.stdout.startswith("[\n0,\n1,\n")
    code = "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n"
    code += "sys.stdout.write('first\\n')\nlist(range(1000))"
    finished = make_guest().run(code, limits=limits)
    assert finished.stdout.startswith("first\n[\n0,\n1,\n")


def test_a_large_value_that_cannot_be_printed_is_told_about(make_guest: Any) -> None:
    code = "import sys\nsys.stdout.close()\nlist(range(1000))"
    finished = make_guest().run(code, limits={"result_bytes": 1000})
    told = "list of 1,000; it cannot be printed: ValueError"
    assert finished.outcome == Done("ok", result_repr=told)


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("x = [1, 'a']", [1, "a"]),
        ("x = (print('side', i) for i in range(3))", None),
        ("import itertools\nx = itertools.count()", None),
        ("x = ['a' * 30] * 100_000", None),
        ("x = []\nx.append(x)\ny = x", None),
        ("x = float('nan')", None),
    ],
)
def test_a_last_assignment_is_a_result_if_it_is_small_data(
    guest_on: Any, program: str, result: Any
) -> None:
    finished = guest_on.run(program)
    assert (finished.error, finished.result, finished.stdout) == ("", result, "")


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
