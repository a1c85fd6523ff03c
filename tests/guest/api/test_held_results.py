"""Placeholders for the results of held calls: what passes them on, and what they stop."""

from __future__ import annotations

import threading

import pytest

from bridge.errors import HeldResultError as RefusedError
from bridge.gate.held_calls.placeholders import referred
from bridge.guest.api import held_results as held
from bridge.guest.api.held_results import HeldResultError, Placeholder
from bridge.guest.api.program_files import FILENAME
from bridge.guest.protocol.wire import Done
from tests.guest.held_operations import ALLOWED, MATCHES, PUZZLED, QUOTED, STOPPED
from tests.guest.held_rig import PLAN, execute, token, x

__all__ = ["x"]


@pytest.mark.parametrize("expression", ALLOWED)
def test_what_only_passes_it_on_goes_on(x: Placeholder, expression: str) -> None:
    execute(f"y = {expression}", x)
    assert held.ending(Done("ok")) == Done("ok")


@pytest.mark.parametrize(("statement", "doing"), [*STOPPED, *MATCHES])
def test_what_looks_at_it_stops_and_says_so(x: Placeholder, statement: str, doing: str) -> None:
    with pytest.raises(HeldResultError) as caught:
        execute(statement, x)
    message = str(caught.value)
    assert message.startswith("line ")
    assert doing in message
    assert "‹result of #1 git-hub.create-issue›" in message
    assert message.endswith(held.ADVICE)


def test_a_placeholder_says_what_it_stands_for(x: Placeholder) -> None:
    names = execute("y = repr(x.labels[0]['a b'].name)\nz = str(x.labels[-1])", x)
    assert names["y"] == '‹result of #1 git-hub.create-issue›.labels[0]["a b"].name'
    assert names["z"] == token("labels", -1)


def test_texts_are_made_with_it(x: Placeholder) -> None:
    names = execute("y = 'a' + x.title + 'b'\nz = f'{x.title}, {x.number}'", x)
    assert names["z"] == f"{token('title')}, {token('number')}"
    assert names["y"] == f"a{token('title')}b"
    joined = execute("y = ', '.join(['%s' % x.id, f'{x.url}', 'a'])", x)["y"]
    assert joined == f"{token('id')}, {token('url')}, a"


@pytest.mark.parametrize(("expression", "told"), PUZZLED)
def test_c_code_that_is_puzzled_by_it_stops_in_its_own_words(
    x: Placeholder, expression: str, told: str
) -> None:
    with pytest.raises(TypeError) as caught:
        execute(f"\n{expression}", x)
    held.blame(caught.value)
    error = held.ending(Done("ok")).error
    assert error.startswith("line 2")
    assert told in error
    assert error.endswith(held.ADVICE)


@pytest.mark.parametrize("expression", QUOTED)
def test_a_text_that_was_quoted_cut_or_changed_cannot_be_sent(
    x: Placeholder, expression: str
) -> None:
    text = execute(f"y = {expression}", x)["y"]
    for arguments in ({"a": text}, {"a": [{"b": f"see {text}."}]}):
        with pytest.raises(RefusedError):
            referred(arguments, PLAN, 1)


def test_the_message_tells_line_and_source(x: Placeholder) -> None:
    import linecache

    code = "def check(issue):\n    return issue.state == 'open'\n\ncheck(x)"
    lines = code.splitlines(keepends=True)
    linecache.cache[FILENAME] = (len(code), None, lines, FILENAME)
    try:
        with pytest.raises(HeldResultError) as caught:
            execute(code, x)
    finally:
        del linecache.cache[FILENAME]
    assert str(caught.value) == (
        "line 2, `return issue.state == 'open'`: it compares "
        "‹result of #1 git-hub.create-issue›.state: its value is unknown. " + held.ADVICE
    )


def test_the_first_stop_is_the_one_that_is_told(x: Placeholder) -> None:
    for statement in ("len(x)", "int(x)"):
        with pytest.raises(HeldResultError, match="takes the length of"):
            execute(statement, x)
    ended = held.ending(Done("ok", has_result=True, result=1))
    assert (ended.outcome, ended.exit_code, ended.has_result) == ("exception", 1, False)
    assert ended.error_type == "HeldResultError"
    assert "takes the length of" in ended.error


def test_libraries_may_ask_for_its_type(x: Placeholder) -> None:
    assert [isinstance(x, kind) for kind in (dict, str, list, Placeholder)] == [0, 0, 0, 1]
    assert held.ending(Done("ok")) == Done("ok")


def test_c_code_that_fails_in_a_group_is_blamed_on_it(x: Placeholder) -> None:
    with pytest.raises(TypeError) as caught:
        execute("', '.join([x.title])", x)
    held.blame(ExceptionGroup("several", [OSError("no file"), caught.value]))
    assert held.ending(Done("ok")).error.startswith("line 1: sequence item 0")


def test_pickling_in_another_thread_is_an_error_that_pools_survive(x: Placeholder) -> None:
    caught: list[BaseException] = []

    def pickle_it() -> None:
        try:
            execute("pickle.dumps(x)", x)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=pickle_it)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [TypeError]
    assert held.ending(Done("ok")).error_type == "HeldResultError"
