"""Placeholders for the results of held calls: what passes them on, and what they stop."""

from __future__ import annotations

import threading

import pytest

from bridge.guest import held
from bridge.guest.held import HeldResult, HeldResultError
from bridge.guest.wire import Done
from tests.guest.held_operations import ALLOWED, MATCHES, STOPPED
from tests.guest.held_rig import execute, token, x

__all__ = ["x"]


@pytest.mark.parametrize("expression", ALLOWED)
def test_what_only_passes_it_on_goes_on(x: HeldResult, expression: str) -> None:
    execute(f"y = {expression}", x)
    assert held.ending(Done("ok")) == Done("ok")


@pytest.mark.parametrize(("statement", "doing"), [*STOPPED, *MATCHES])
def test_what_looks_at_it_stops_and_says_so(x: HeldResult, statement: str, doing: str) -> None:
    with pytest.raises(HeldResultError) as caught:
        execute(statement, x)
    message = str(caught.value)
    assert message.startswith("line ")
    assert doing in message
    assert "‹result of #1 git-hub.create-issue›" in message
    assert message.endswith(held.ADVICE)


def test_a_placeholder_says_what_it_stands_for(x: HeldResult) -> None:
    names = execute("y = repr(x.labels[0]['a b'].name)\nz = str(x.labels[-1])", x)
    assert names["y"] == '‹result of #1 git-hub.create-issue›.labels[0]["a b"].name'
    assert str.__str__(names["z"]) == token("labels", -1)


def test_text_is_made_with_it_and_looked_at_no_more(x: HeldResult) -> None:
    names = execute("y = 'a' + x.title + 'b'\nz = f'{x.title}, {x.number}'", x)
    assert names["z"] == f"{token('title')}, {token('number')}"
    text = names["y"]
    assert str.__str__(text) == f"a{token('title')}b"
    with pytest.raises(HeldResultError, match="compares ‹result of #1 .*›.title"):
        _ = text == "open"


def test_the_message_tells_line_and_source(x: HeldResult) -> None:
    import linecache

    code = "def check(issue):\n    return issue.state == 'open'\n\ncheck(x)"
    lines = code.splitlines(keepends=True)
    linecache.cache[held.PROGRAM] = (len(code), None, lines, held.PROGRAM)
    try:
        with pytest.raises(HeldResultError) as caught:
            execute(code, x)
    finally:
        del linecache.cache[held.PROGRAM]
    assert str(caught.value) == (
        "line 2, `return issue.state == 'open'`: it compares "
        "‹result of #1 git-hub.create-issue›.state: nobody knows that yet. " + held.ADVICE
    )


def test_the_first_stop_is_the_one_that_is_told(x: HeldResult) -> None:
    for statement in ("len(x)", "int(x)"):
        with pytest.raises(HeldResultError, match="takes the length of"):
            execute(statement, x)
    ended = held.ending(Done("ok", has_result=True, result=1))
    assert (ended.outcome, ended.exit_code, ended.has_result) == ("exception", 1, False)
    assert ended.error_type == "HeldResultError"
    assert "takes the length of" in ended.error


def test_libraries_may_ask_for_its_type(x: HeldResult) -> None:
    assert [isinstance(x, kind) for kind in (dict, str, list, HeldResult)] == [0, 0, 0, 1]
    assert held.ending(Done("ok")) == Done("ok")


def test_c_code_that_fails_in_a_group_is_blamed_on_it(x: HeldResult) -> None:
    with pytest.raises(TypeError) as caught:
        execute("', '.join([x.title])", x)
    held.blame(ExceptionGroup("several", [OSError("no file"), caught.value]))
    assert held.ending(Done("ok")).error.startswith("line 1: sequence item 0")


def test_pickling_in_another_thread_is_an_error_that_pools_survive(x: HeldResult) -> None:
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
