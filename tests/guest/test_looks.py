"""Programs in plan mode that look at a placeholder without Python asking it."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from bridge.guest import held
from bridge.guest.held import HeldResult, HeldResultError
from bridge.guest.looks import plainly
from bridge.guest.program import compile_program
from bridge.guest.wire import Done
from tests.guest.held_operations import ALLOWED, SETUP, STOPPED
from tests.guest.held_rig import token, x

__all__ = ["x"]

LOOKS = (
    ("x.parent is None", "compares"),
    ("x.get('error') is not None", "compares"),
    ("x.done is True", "compares"),
    ("x is False", "compares"),
    ("type(x) is dict", "asks for the type of"),
    ("type(x.number).__name__", "asks for the type of"),
    ("hasattr(x, 'number')", "asks for the fields of"),
    ("callable(x)", "asks for"),
    ("len(f'a {x.title} b') > 9", "takes the length of"),
    ("f'a {x.title} b'[:9]", "takes a part of"),
    ("f'a {x.title} b' == 'a b'", "compares"),
    ("'a' in f'a {x.title} b'", "looks into"),
    ("f'a {x.title} b'.upper()", "calls .upper() of"),
    ("{f'a {x.title} b': 1}", "uses"),
    ("('a %s' % x.title)[:9]", "takes a part of"),
    ("len('a {}'.format(x.title))", "takes the length of"),
    ("len(', '.join([str(x.title), 'a']))", "takes the length of"),
    ("len(string.Template('a $b').substitute(b=x.title))", "takes the length of"),
    ("str(x.title) in 'abc'", "looks for"),
    ("x.title not in 'abc'", "looks for"),
    ("re.search('a', str(x.title))", "searches in"),
    ("re.compile('a').match(f'a {x.title}')", "searches in"),
    ("re.sub('a', 'b', string=str(x.title))", "searches in"),
    ("'abc'.startswith(str(x.title))", "searches for"),
    ("'abc'.replace(str(x.title), 'b')", "replaces"),
    ("str.lower(str(x.title))", "searches for"),
    ("json.loads(str(x))", "parses"),
    ("bytes(f'a {x.title}', 'utf-8')", "looks into"),
    ("open(f'/nowhere/{x.title}')", "looks into"),
    ("fnmatch.fnmatch(f'a {x.title}', 'a*')", "looks into"),
    ("f'{x.title}{x.id}' or 1", "tests"),
    ("f'{x.title} '.strip()", "calls .strip() of"),
    ("f'a{x.title}, '.rstrip(', ')", "calls .rstrip() of"),
    ("kind(x)", "asks for the type of"),
)

PASSES = (
    ("x is None", False),
    ("x is not None", True),
    ("None is x", False),
    ("type(1) is int", True),
    ("type('Made', (), {}).__name__", "Made"),
    ("callable(len) and hasattr([], 'append')", True),
    ("re.sub('a', 'b', 'abc')", "bbc"),
    ("'abc'.replace('b', str(x.title)) != 1 if False else 'b' in 'abc'", True),
    ("f\"{'a':>{1 + 2}}|{2 % 2}\"", "  a|0"),
    ("[y for y in (1, 2) if y in (2,)]", [2]),
    ("1 is None", False),
    ("Inner().name()", "base"),
    ("bool(f'a {x.title}')", True),
    ("within()", ["a", 3, True]),
    ("json.loads(json.dumps({'a': [1]}))", {"a": [1]}),
)

MORE = """
import fnmatch, functools, re, string
@functools.singledispatch
def kind(value): return 'other'
class Base:
    def name(self): return 'base'
"""

IN_PROGRAM = """
class Inner(Base):
    def name(self): return super().name()
def within():
    a = 1
    return [*sorted(locals()), eval("a + 2"), exec("a") is None]
"""


def run(code: str, x: HeldResult) -> dict[str, Any]:
    """Run a program that makes a plan; return its globals."""
    names: dict[str, Any] = {}
    exec(SETUP + MORE, names)
    names["x"] = x
    lines = linecache.cache.get(held.PROGRAM)
    try:
        program, _ = compile_program(code, names)
    finally:
        linecache.cache.pop(held.PROGRAM, None)
        if lines is not None:
            linecache.cache[held.PROGRAM] = lines
    exec(program, names)
    return names


@pytest.mark.parametrize(("expression", "doing"), LOOKS)
def test_a_look_that_python_does_not_ask_about_stops(
    x: HeldResult, expression: str, doing: str
) -> None:
    with pytest.raises(HeldResultError) as caught:
        run(f"y = {expression}", x)
    assert str(caught.value).startswith("line 1: it ")
    assert f"it {doing} ‹result of #1 git-hub.create-issue›" in str(caught.value)


@pytest.mark.parametrize(("expression", "value"), PASSES)
def test_what_does_not_look_is_as_ever(x: HeldResult, expression: str, value: Any) -> None:
    assert run(f"{IN_PROGRAM}y = {expression}", x)["y"] == value
    assert held.ending(Done("ok")) == Done("ok")


def test_whoever_wants_to_keep_a_part_is_told_what_can_be_kept(x: HeldResult) -> None:
    with pytest.raises(HeldResultError, match="keep that, and not a part of it"):
        run("y = x.id is None", x)


@pytest.mark.parametrize(
    "expression", [one for one in ALLOWED if not one.startswith(("type(", "hasattr("))]
)
def test_what_only_passes_it_on_goes_on(x: HeldResult, expression: str) -> None:
    run(f"y = {expression}", x)
    assert held.ending(Done("ok")) == Done("ok")


@pytest.mark.parametrize("statement", [statement for statement, _ in STOPPED])
def test_what_stops_stops_here_too(x: HeldResult, statement: str) -> None:
    with pytest.raises(HeldResultError):
        run(statement, x)


def test_texts_that_are_made_with_it_can_be_passed_on(x: HeldResult) -> None:
    made = run("y = 'see ' + f'{x.id}: {x.url}' + ', '.join(['%s' % x.id, 'a'])", x)["y"]
    assert str.__str__(made) == f"see {token('id')}: {token('url')}{token('id')}, a"


@pytest.mark.parametrize(
    "expression",
    [
        "json.dumps({'a': x}, default=str)",
        "json.dumps([f'a {x.id}'])",
        "json.dumps([f'a {x.id}']) + '.'",
        "f'[{str(x.id)!r}]'",
        "str([f'a {x.id}'])",
    ],
)
def test_what_is_quoted_is_for_reading_only(x: HeldResult, expression: str) -> None:
    """What will stand there would not be quoted."""
    made = str.__str__(run(f"y = {expression}", x)["y"])
    assert made.startswith(("[", "{"))
    with pytest.raises(HeldResultError, match="it passes on what is only to be read"):
        held.check(made.encode())


def test_json_in_a_file_is_a_look(x: HeldResult) -> None:
    with pytest.raises(HeldResultError, match="as JSON into a file"):
        run("json.dump({'a': f'{x.a} b'}, io.StringIO())", x)


def test_an_error_of_the_programs_own_stays_one(x: HeldResult) -> None:
    """To describe it is no look of the program's."""
    with pytest.raises(ValueError, match="heldresult") as caught:
        run("try:\n 1 / 0\nfinally: raise ValueError(f'{x.a}', x)", x)
    plainly(caught.value)
    assert "‹result of #1" in str(caught.value)
    assert [type(arg) for arg in caught.value.args] == [str, str]
    assert held.ending(Done("ok")) == Done("ok")


def test_what_is_known_of_a_text_can_be_stripped(x: HeldResult) -> None:
    """Programs write their longer texts between three quotes and strip them."""
    made = run("y = f'  a {x.a} b '.strip(), f' a {x.a}'.lstrip(), f'{x.a}, b '.rstrip()", x)["y"]
    assert list(map(str.__str__, made)) == [
        f"a {token('a')} b",
        f"a {token('a')}",
        f"{token('a')}, b",
    ]
