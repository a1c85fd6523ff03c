"""What becomes of a program's last expression."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.wire import Done

pytestmark = pytest.mark.usefixtures("tmp_path")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(1, [2.5, None], {'a': True})", [1, [2.5, None], {"a": True}]),
        ("'ünï'", "ünï"),
        ("__import__('collections').OrderedDict(a=1)", {"a": 1}),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", [1, 2]),
        ("10 ** 400", 10**400),
    ],
)
def test_values_that_json_holds_are_the_result(
    make_guest: Any, expression: str, expected: Any
) -> None:
    assert make_guest().run(expression).value == expected


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("float('nan')", "nan"),
        ("{1: 'a'}", "{1: 'a'}"),
        ("{3, 4}", "{3, 4}"),
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
    done = make_guest().run("{frozenset(range(100000))}").outcome
    assert len(done.result_repr) < 5000


def test_a_result_over_the_limit_is_dropped_with_its_size(guest_on: Any) -> None:
    done = guest_on.run("'x' * 5000", limits={"result_bytes": 1000}).outcome
    assert done.has_result is False
    assert done.result_dropped > 5000


def test_a_program_without_a_last_expression_has_no_result(guest_on: Any) -> None:
    done = guest_on.run("x = 1").outcome
    assert done == Done("ok")


def test_an_empty_program_succeeds(guest_on: Any) -> None:
    assert guest_on.run("").outcome == Done("ok")


def test_a_result_that_costs_its_reader_too_much_goes_where_output_goes(make_guest: Any) -> None:
    """Of that the ends are shown, and all of it is kept."""
    finished = make_guest().run("list(range(1000))", limits={"told_bytes": 1000})
    assert finished.outcome == Done("ok")
    assert finished.stdout.startswith("[\n0,\n1,\n")
    code = "{'rows': [{'id': n, 'of': [1]} for n in range(100)], 'n': 100}"
    finished = make_guest().run(code, limits={"told_bytes": 1000})
    lines = finished.stdout.splitlines()
    assert lines[:3] == ["{", '"rows": [', '{"id": 0, "of": [1]},']
    assert lines[-3:] == ["],", '"n": 100', "}"]
    finished = make_guest().run("list(range(1000))", limits={"told_bytes": 1000})
    assert finished.stdout.endswith("999\n]\n")
    assert make_guest().run("'x' * 500", limits={"told_bytes": 1000}).value == "x" * 500
