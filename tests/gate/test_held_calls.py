"""What a run in plan mode holds back."""

from __future__ import annotations

import contextlib
import html
import json
import re
import shlex
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import InvalidRequestError
from bridge.gate import held_calls
from bridge.gate.held_calls import (
    MAX_DEPTH,
    MAX_RESOLVED,
    CallResult,
    HeldCalls,
    add_labels,
    find_referred,
    mentions,
    readable,
    resolve,
    shown,
)
from bridge.gate.policy import CallFacts, Decision, FlowState, no_mask
from bridge.guest.protocol.placeholders import LABEL, PREFIX, SEAL, WHOLE, checksum, write
from bridge.model import Tool
from tests.raised import raises_code

ALLOW = Decision(action="allow", rule="no policy")
ASK = Decision(action="ask", rule="default for writes")


def call(tool: str = "create", /, **arguments: Any) -> CallFacts:
    return CallFacts(server="tickets", tool=tool, arguments=arguments)


def held(count: int = 1, **arguments: Any) -> HeldCalls:
    found = HeldCalls()
    for _ in range(count):
        found.hold(call(**arguments), ALLOW)
    return found


def test_a_held_call_keeps_what_it_takes_to_make_it() -> None:
    holds, flow = HeldCalls(), FlowState()
    tool = Tool(server="tickets", name="create", description="Create.")
    flow.add_call("web", "fetch", frozenset({"untrusted-input"}))
    rule = Decision(action="ask", rule="flow rule 'x'")
    holds.hold(call(), ALLOW)
    facts = replace(call(parent={WHOLE: write(holds.plan, 1, ["id"])}), definition=tool)
    base = replace(ASK, effect="destructive")
    holds.hold(facts, base, [base, rule, ALLOW], flow)
    flow.add_call("mail", "read", frozenset({"private-data"}))
    first, second = holds.requests
    assert (first.digest, first.uses, first.asked) == ("", frozenset(), frozenset())
    assert second.digest.startswith("sha256:")
    assert second.uses == {1}
    assert second.effect == "destructive"
    assert second.asked == {"default for writes", "flow rule 'x'"}
    assert [second.flow.read([label]) for label in ("untrusted-input", "private-data")] == [
        True,
        False,
    ]
    shown = holds.shown()[1]
    assert shown.arguments == {"parent": "‹result of #1 tickets.create›.id"}
    assert (shown.action, shown.effect) == ("ask", "destructive")
    assert shown.rule == "default for writes and flow rule 'x'"


def test_a_plan_holds_a_bounded_number_of_calls_and_of_bytes() -> None:
    holds = held(held_calls.MAX_CALLS)
    with raises_code("call_budget", match="1,000 calls at most"):
        holds.hold(call(), ALLOW)
    holds = HeldCalls()
    large = "x" * (held_calls.MAX_CHARACTERS // 2 - 100)
    holds.hold(call(body=large), ALLOW)
    holds.hold(call(body=large), ALLOW)
    with raises_code("call_budget", match="characters of JSON"):
        holds.hold(call(body=large), ALLOW)
    assert holds.count == 2


def test_a_call_that_is_refused_is_no_part_of_the_plan() -> None:
    holds = held()
    mark = write(holds.plan, 1)
    for facts in (
        call(body=write(holds.plan, 2)),
        call(body=mark[:-3]),
        call("create", **{mark: "1"}),
        call(f"x{write('f' * 16, 1)}"),
    ):
        with raises_code("held_result"):
            holds.hold(facts, ALLOW)
    assert holds.count == 1


PLAN = "0123456789abcdef"
OTHER = "fedcba9876543210"

Step = str | int


def calls(count: int) -> dict[int, str]:
    return dict.fromkeys(range(1, count + 1), "git.tag")


def whole(number: int, *path: Step) -> dict[str, Any]:
    return {WHOLE: write(PLAN, number, list(path))}


def text(number: int, *path: Step) -> str:
    return write(PLAN, number, list(path))


def known(value: Any, number: int = 1) -> CallResult:
    return CallResult(call=f"#{number} git.log", shape={"json": value})


ISSUE = {"number": 7, "title": 'a "b"', "labels": ["x", None], "open": True, "ratio": 1.5}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (("nmber",), r"has no \.nmber: it has the keys number, title, labels, open, ratio\."),
        (("labels", 5), r"has no \.labels\[5\]: its \.labels is a list of 2 items\."),
        (("labels", "x"), r"has no \.labels\.x: its \.labels is a list of 2 items\."),
        (("number", "x"), r"has no \.number\.x: its \.number is a number\."),
        (("labels", 1, "x"), r"its \.labels\[1\] is null\."),
        ((0,), r"has no \[0\]: it has the keys"),
        (("a b",), r'has no \["a b"\]'),
    ],
)
def test_a_part_that_is_not_there_is_told_with_what_is(path: tuple[Step, ...], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"The result of #1 git\.log .*{told}"):
        resolve({"a": whole(1, *path)}, {1: known(ISSUE)})


def test_several_blocks_are_a_list_and_binary_ones_are_refused() -> None:
    blob = {"blob": {"mimeType": "image/png", "data": "AAAA"}}
    mixed = CallResult(
        call="#1 s.t", shape={"blocks": [{"json": "note"}, {"json": {"a": 1}}, blob]}
    )
    results = {1: mixed}
    assert resolve({"a": whole(1, 0), "b": whole(1, -2, "a")}, results) == {"a": "note", "b": 1}
    for path in ((), (2,), (2, "data")):
        with pytest.raises(InvalidRequestError, match=r"The result of #1 s\.t is binary"):
            resolve({"a": whole(1, *path)}, results)
    with pytest.raises(InvalidRequestError, match=r"is a list of 3 items"):
        resolve({"a": whole(1, 3)}, results)
    with pytest.raises(InvalidRequestError, match="binary"):
        resolve({"a": text(1)}, {1: CallResult(call="#1 s.t", shape=blob)})


def test_a_result_that_is_not_known_is_an_error_and_not_a_null() -> None:
    with pytest.raises(InvalidRequestError, match="#2 is not known"):
        resolve({"a": whole(2)}, {1: known(1)})


def test_a_result_cannot_be_multiplied_without_end() -> None:
    results = {1: known("x" * (1024 * 1024))}
    with pytest.raises(InvalidRequestError, match=rf"longer than {MAX_RESOLVED:,}"):
        resolve({"a": text(1) * 17}, results)
    with pytest.raises(InvalidRequestError, match="longer than"):
        resolve({"a": [whole(1)] * 17}, results)


def test_calls_that_arguments_refer_to_are_found_at_any_depth() -> None:
    arguments = {"a": f"{text(1)} {text(2, 'x')}", "b": [{"c": whole(3, "y")}], "d": None}
    assert find_referred(arguments, PLAN, 3) == {1, 2, 3}
    assert mentions(arguments, PLAN)
    assert find_referred({"a": 1, "b": ["c"]}, PLAN, 3) == frozenset()
    assert not mentions({"a": 1, "b": ["c", {"d": True}]}, PLAN)


@pytest.mark.parametrize(
    "value",
    [
        text(1)[:-1],
        text(1)[1:],
        text(1)[:12],
        text(1)[-12:],
        f"{text(1)[11:27]} alone",
        text(1).lower(),
        text(1).strip(),
        text(1, "id").replace("n1p", "n1p5b"),
        json.dumps(text(1)),
        text(1) + text(2)[5:],
        text(1).replace(PREFIX, ""),
        text(1).replace(SEAL, ""),
        write(PLAN, 1, ["x" * 500]),
        text(1).upper(),
        text(1).replace("n1p", "n2p"),
        {WHOLE: text(1), "more": 1},
        {WHOLE: f"{text(1)} and more"},
        {WHOLE: 7},
        {WHOLE: ""},
        {WHOLE: text(1) * 2},
    ],
)
def test_a_placeholder_that_was_changed_is_refused(value: Any) -> None:
    with raises_code("held_result", match="was cut or changed"):
        find_referred({"a": value}, PLAN, 2)
    assert mentions({"a": value}, PLAN)


@pytest.mark.parametrize(
    "key", [text(1), f"x{text(1)}", text(1)[:14], text(1).upper(), f"{LABEL}1"]
)
def test_a_placeholder_cannot_be_a_key(key: str) -> None:
    with raises_code("held_result", match="cannot be a key"):
        find_referred({"a": {key: 1}}, PLAN, 2)
    assert mentions({"a": {key: 1}}, PLAN)


def test_a_placeholder_of_another_run_or_of_no_call_is_refused() -> None:
    with raises_code("held_result", match="of another run"):
        find_referred({"a": write(OTHER, 1)}, PLAN, 2)
    for number in (0, 3):
        with raises_code("held_result", match="this plan holds 2"):
            find_referred({"a": text(number)}, PLAN, 2)


def test_arguments_nested_too_deep_are_refused_and_looked_through_all_the_same() -> None:
    deep: Any = text(1)
    for _ in range(MAX_DEPTH * 50):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="levels deep"):
        find_referred({"a": deep}, PLAN, 1)
    assert mentions({"a": deep}, PLAN)


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("ab\"\\ ‹é'", max_size=4))

RESULTS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc. ", max_size=2), inner)
    ),
    max_leaves=8,
)


@st.composite
def arguments_and_expected(draw: st.DrawFn) -> tuple[Any, Any, dict[int, CallResult]]:
    """Return arguments with placeholders, what they have to become, and the results."""
    values = draw(st.lists(RESULTS, min_size=1, max_size=3))
    results = {number: known(value, number) for number, value in enumerate(values, 1)}

    def way() -> tuple[int, list[Step], Any]:
        number = draw(st.integers(1, len(values)))
        path: list[Step] = []
        value = values[number - 1]
        while isinstance(value, list | dict) and value and draw(st.booleans()):
            step: Any
            if isinstance(value, list):
                step = draw(st.integers(-len(value), len(value) - 1))
            else:
                step = draw(st.sampled_from(sorted(value)))
            path.append(step)
            value = value[step]
        return number, path, value

    def node(depth: int) -> tuple[Any, Any]:
        kind = draw(st.integers(0, 5 if depth < 3 else 3))
        if kind <= 1:
            plain = draw(PLAIN)
            return plain, plain
        number, path, value = way()
        if kind == 2:
            return {WHOLE: write(PLAN, number, path)}, value
        if kind == 3:
            before, after = draw(st.text("x ‹", max_size=3)), draw(st.text("y&", max_size=3))
            inside = str(value)
            return f"{before}{write(PLAN, number, path)}{after}", f"{before}{inside}{after}"
        inner = [node(depth + 1) for _ in range(draw(st.integers(0, 3)))]
        if kind == 4:
            return [one for one, _ in inner], [two for _, two in inner]
        keys = [f"k{number}" for number in range(len(inner))]
        pairs = list(zip(keys, inner, strict=True))
        return {key: one for key, (one, _) in pairs}, {key: two for key, (_, two) in pairs}

    written, expected = node(0)
    return {"a": written}, {"a": expected}, results


@given(arguments_and_expected())
def test_nested_placeholders_are_resolved(case: tuple[Any, Any, dict[int, CallResult]]) -> None:
    written, expected, results = case
    travelled = json.loads(json.dumps(written))
    find_referred(travelled, PLAN, len(results))
    resolved = resolve(travelled, results)
    assert json.dumps(resolved) == json.dumps(expected)
    assert not mentions(resolved, PLAN)
    assert "heldResult" not in json.dumps(readable(travelled, {1: "a.b", 2: "a.c", 3: "a.d"}))


def test_arguments_are_shown_with_placeholders_by_name_and_secrets_masked() -> None:
    seen: list[Any] = []

    def mask(value: Any, schema: Any) -> Any:
        seen.append(value)
        return {**value, "password": "***"}

    arguments = {"to": f"no {text(3, 'id')}!", "n": whole(1), "password": "hunter2"}
    found, _ = shown(call(**arguments), {1: "git.log", 3: "git.tag"}, mask)
    assert found == {
        "to": "no ‹result of #3 git.tag›.id!",
        "n": "‹result of #1 git.log›",
        "password": "***",
    }
    assert "heldResult" not in json.dumps(seen)


@pytest.mark.parametrize("like", [f"{LABEL}1 git.log›.id", json.dumps(f"{LABEL}1"), LABEL.upper()])
def test_a_text_cannot_pass_for_a_placeholder(like: str) -> None:
    with raises_code("held_result", match="only to be read"):
        find_referred({"a": [f"x {like}"]}, PLAN, 1)
    assert mentions({"a": like}, PLAN)


def test_what_was_held_is_looked_at_again_when_it_is_applied() -> None:
    """Nothing is sent in which a mark is not whole."""
    for value in (text(1)[:-1], {WHOLE: text(1), "more": 1}, [text(1).upper()]):
        with raises_code("held_result", match="was cut or changed"):
            resolve({"a": value}, {1: known(1)})


def test_a_way_of_odd_steps_is_no_placeholder() -> None:
    for path in ([True], [1.5], [None], [["a"]], {"id": 1}):
        with raises_code("held_result", match="was cut or changed"):
            find_referred({"a": forge(path)}, PLAN, 1)
    whole_way = [0, "a b", "é", -1]
    assert find_referred({"a": forge(whole_way)}, PLAN, 1) == {1}
    shown_way = readable(forge(whole_way), {1: "a.b"})
    assert shown_way == '‹result of #1 a.b›[0]["a b"].é[-1]'


def forge(path: Any) -> str:
    core = f"{PLAN}n1p{json.dumps(path).encode().hex()}"
    return text(1).replace(f"{PLAN}n1pk{checksum(f'{PLAN}n1p')}", f"{core}k{checksum(core)}")


@pytest.mark.parametrize(
    "quote",
    [
        str,
        json.dumps,
        lambda mark: json.dumps(mark, ensure_ascii=False),
        repr,
        str.upper,
        html.escape,
        urllib.parse.quote,
        shlex.quote,
        str.strip,
    ],
)
def test_people_read_labels_of_marks_however_they_are_quoted(quote: Callable[[str], str]) -> None:
    names = {1: "git.create"}
    read = add_labels(f"a {quote(text(1, 'url'))}, {quote(text(1, 0, 'b c'))}.", PLAN, names)
    assert re.fullmatch(
        r"""a ['"]?‹result of #1 git.create›.url['"]?, """
        r"""['"]?‹result of #1 git.create›\[0\]\["b c"\]['"]?\.""",
        str(read),
    )


def test_no_mark_is_read_otherwise_than_it_was_written() -> None:
    for number in range(500):
        plan = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"
        mark = write(plan, 1, ["id"])
        assert find_referred({"a": mark}, plan, 1) == {1}
        for read in (mark, repr(mark)[1:-1], mark.upper()):
            assert add_labels(read, plan, {1: "a.b"}) == "‹result of #1 a.b›.id"


def test_people_read_labels_of_the_runs_own_marks() -> None:
    names = {1: "git.create"}
    assert add_labels([{text(1): whole(1, "id")}, 1, None, {"a": 1}], PLAN, names) == [
        {"‹result of #1 git.create›": "‹result of #1 git.create›.id"},
        1,
        None,
        {"a": 1},
    ]
    for same in (write(OTHER, 1), text(2), text(1)[:-20], "held", {WHOLE: 7}):
        assert add_labels(same, PLAN, names) in (same, 7)


def test_labels_go_as_deep_as_results_may() -> None:
    deep: Any = text(1)
    for _ in range(sys.getrecursionlimit() - 200):
        deep = [deep]
    assert add_labels(deep, PLAN, {1: "a.b"}) == deep


def test_a_text_of_half_marks_is_looked_through_in_time() -> None:
    core = text(1, "id").partition("aA")[0]
    for piece in (PREFIX, core, core + "x" * 590, text(1)[:-1], text(1)):
        much = piece * (256 * 1024 // len(piece))
        add_labels(much, PLAN, {1: "a.b"})
        assert mentions({"a": much}, PLAN)
        with contextlib.suppress(InvalidRequestError):
            find_referred({"a": much}, PLAN, 1)


def test_long_arguments_are_cut_and_the_cut_is_told() -> None:
    arguments = {"long": "x" * 100_000, "list": list(range(100_000)), "more": {"k": "v"}}
    found, told = shown(call(**arguments), calls(60), no_mask)
    assert told
    assert len(json.dumps(found)) < 1_500
    assert "more characters) …xxx" in found["long"]
    many, _ = shown(call(**{f"k{number}": number for number in range(9_000)}), calls(120), no_mask)
    assert len(json.dumps(many)) < 1_500
    assert str(many["…"]).endswith("more keys)")
    listed, _ = shown(call(a=list(range(9_000))), calls(120), no_mask)
    assert "more characters" in str(listed["a"])


def test_what_is_shown_of_each_call_depends_on_how_many_there_are() -> None:
    def length(count: int) -> int:
        return len(shown(call(a="x" * 9_000), calls(count), no_mask)[0]["a"])

    assert 8_000 < length(1) == length(8) < 8_000 + 60
    assert length(8) > length(100) > length(1_000) >= 64


def test_keys_that_are_shown_alike_hide_no_values() -> None:
    cut, _ = shown(call(**{"…": "seen", "b": "x" * 100, "c": 1}), calls(1_000), no_mask)
    assert [cut["…"], cut["… (3)"]] == ["seen", "(1 more keys)"]
