"""How people read of placeholders in what a program has written."""

from __future__ import annotations

import sys
from typing import Any

from bridge.guest import placeholders
from tests.guest.held_rig import PLAN, token, whole


def test_people_read_labels() -> None:
    calls = {1: "git.create"}

    def label(value: Any) -> Any:
        return placeholders.readable(value, PLAN, lambda number: calls.get(number, ""))

    other = placeholders.write("f" * 16, 1)
    assert label(f"a {token('url')}, {token(0, 'b c')}.") == (
        'a ‹result of #1 git.create›.url, ‹result of #1 git.create›[0]["b c"].'
    )
    assert label([{token(): whole("id")}, 1, None, {"a": 1}]) == [
        {"‹result of #1 git.create›": "‹result of #1 git.create›.id"},
        1,
        None,
        {"a": 1},
    ]
    for same in (other, token(number=2), token()[:-4], token()[:20] + "0" + token()[21:], "held"):
        assert label(same) == same
    long = label(token(*["x" * 50] * 10))
    assert len(long) < 300


def test_labels_go_as_deep_as_results_may() -> None:
    deep: Any = token()
    for _ in range(sys.getrecursionlimit() - 200):
        deep = [deep]
    assert placeholders.readable(deep, PLAN, lambda number: "a.b") == deep
