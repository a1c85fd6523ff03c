"""Which frames of a traceback are shown, and how much of it."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable

from bridge.guest.api import tracebacks
from bridge.guest.api.program_files import FILENAME
from bridge.guest.api.tracebacks import MAX_TEXT_CHARS, describe, describe_syntax
from bridge.guest.protocol.wire import Done
from bridge.guest.worker.program import compile_program

OURS = frozenset({__file__})


def failure(source: str, call: Callable[..., object] = print) -> BaseException:
    compiled = compile_program(source)
    assert isinstance(compiled, tuple)
    try:
        exec(compiled[0], {"call": call})
    except BaseException as error:
        return error
    raise AssertionError("the program did not fail")


def test_frames_around_the_program_are_left_out() -> None:
    def ours() -> None:
        raise ValueError("refused")

    text = describe(failure("def f():\n    call()\nf()", ours), OURS)
    assert text == (
        "Traceback (most recent call last):\n"
        '  File "<run_python>", line 3, in <module>\n    f()\n'
        '  File "<run_python>", line 2, in f\n    call()\n'
        "ValueError: refused"
    )


def test_frames_between_the_programs_own_are_left_out_too() -> None:
    def through(function: Callable[[], object]) -> None:
        function()

    text = describe(failure("def g(): 1 / 0\ncall(g)", through), OURS)
    assert "through" not in text
    assert text.count("File") == 2


def test_what_a_library_did_for_the_program_is_shown() -> None:
    inside: dict[str, Callable[..., object]] = {}
    exec(compile("def look(): return [][0]", "/x/site-packages/library.py", "exec"), inside)
    assert "library.py" in describe(failure("call()", inside["look"]), OURS)


def test_lines_of_the_standard_library_and_carets_are_left_out() -> None:
    text = describe(failure("import json\nx = [json.loads('{'), 1]"), OURS)
    assert text.startswith(
        "Traceback (most recent call last):\n"
        '  File "<run_python>", line 2, in <module>\n'
        "    x = [json.loads('{'), 1]\n"
        "json.decoder.JSONDecodeError: "
    )
    source = "import functools\ncall(lambda a, b: a / 0, [1, 2])"
    between = failure(source, lambda key, items: functools.reduce(key, items))
    assert "functools.py" not in describe(between, OURS)


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    assert describe(ValueError("x"), OURS) == "ValueError: x"
    text = describe(ValueError("a" + "x" * 100_000 + "z"), OURS)
    assert len(text) < MAX_TEXT_CHARS + 100
    assert text.startswith("ValueError: axx")
    assert text.endswith("xxz")
    assert "characters of traceback left out" in text


def test_chains_that_bite_their_own_tail_end() -> None:
    error = ValueError("a")
    other = KeyError("b")
    error.__cause__, other.__cause__ = other, error
    assert "ValueError: a" in describe(error, OURS)


def test_an_unprintable_error_is_named() -> None:
    class Rude(Exception):
        def __getattribute__(self, name: str) -> object:
            raise SystemExit

    assert "Rude" in describe(Rude(), OURS)


def test_syntax_errors_show_the_line_without_frames() -> None:
    refused = compile_program("x = (1,, 2)\n")
    assert isinstance(refused, Done)
    assert "^" in refused.error
    refused = compile_program("x = 1\nreturn x\n")
    assert isinstance(refused, Done)
    assert 'File "<run_python>", line 2\n    return x' in refused.error
    assert describe_syntax(SyntaxError("odd")) == "SyntaxError: odd"


def test_registered_source_is_what_tracebacks_read() -> None:
    tracebacks.register_source("first\r\nsecond\x0cstill\u2028second")
    summary = traceback.FrameSummary(FILENAME, 2, "f")
    assert summary.line == "second\x0cstill\u2028second"


def test_the_middle_of_a_long_way_through_a_library_is_left_out() -> None:
    library = "def one(n):\n    return one(n - 1) if n else [][0]"
    inside: dict[str, Callable[..., object]] = {}
    exec(compile(library, "library.py", "exec"), inside)
    lines = describe(failure("call(9)", inside["one"]), OURS).splitlines()
    assert lines.count("  [... 7 calls inside the library left out ...]") == 1
    # The program's, the one that it called, and two where it went wrong.
    assert sum(line.startswith("  File") for line in lines) == 4
    short = describe(failure("call(2)", inside["one"]), OURS)
    assert "left out" not in short
