"""A plan as a list to read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.model import Effect, HeldCall, Plan, RunResult
from bridge.render.plan import MAX_CHARACTERS, MAX_ROWS, plan_question, plan_summary, plan_text
from bridge.render.structured import MAX_PLAN_CHARACTERS, to_structured
from bridge.render.text import compact
from tests.golden_texts import assert_golden

ID = "ab" * 16


def held(
    number: int,
    tool: str = "create_issue",
    *,
    server: str = "github",
    effect: Effect = "write",
    asks: bool = True,
    **arguments: Any,
) -> HeldCall:
    return HeldCall(
        number=number,
        server=server,
        tool=tool,
        arguments=arguments,
        effect=effect,
        action="ask" if asks else "allow",
        rule="default for writes" if asks else "rule 'own'",
    )


def plan(*calls: HeldCall, plan_id: str = ID, stopped: str = "") -> Plan:
    return Plan(plan_id=plan_id, seconds=1800, calls=calls, stopped=stopped)


def issues(count: int, first: int = 1, **more: Any) -> list[HeldCall]:
    return [held(n, repo="o/r", title=f"Fix {n}", **more) for n in range(first, first + count)]


def test_a_long_plan_is_cut_and_says_how_much_is_left_out() -> None:
    calls = [*issues(999), held(1000, "drop", effect="destructive", table="t")]
    text = plan_text(plan(*calls))
    assert len(text) < MAX_CHARACTERS + 2_000
    assert text.splitlines()[1].startswith("  1 × github.drop (destructive")
    assert f"… and {999 - MAX_ROWS} calls more" in text
    many = [held(n, f"tool{n % 100}", text="x" * 900) for n in range(1, 1001)]
    text = plan_text(plan(*many))
    assert len(text) < MAX_CHARACTERS + 4_000
    assert "700 of 70 other kinds" in text
    assert "calls more: the audit log lists each." in text


def test_a_question_knows_which_calls_its_list_has_whole() -> None:
    def whole(*calls: HeldCall) -> list[str]:
        text, ends = plan_question(plan(*calls), 5_500)
        return [text.split("\n")[end - 1] for end in ends]

    assert len(whole(*issues(MAX_ROWS + 10))) == MAX_ROWS
    assert whole(*issues(2))[1].split() == ["#2", '"Fix', '2"']
    assert len(whole(*[held(n, a=1) for n in (1, 2, 3)])) == 3
    long = [held(n, a=f"{n}{'x' * 100}") for n in range(1, 9)]
    assert len(whole(*long)) == 3
    assert whole(held(1, a="x" * 2_000)) == []
    odd: dict[str, Any] = {"n" * 90: 1}
    assert whole(held(1, **odd), held(2, **{**odd, "b": 2})) == []
    assert whole(*[held(n, a="x" * 2_000, b=n) for n in (1, 2)]) == []
    assert whole(replace(held(1, a=1), cut=True)) == []
    assert whole(held(1, "t" * 200)) == []
    assert len(whole(*[held(n, f"t{n % 9}", text=f"{n}" + "x" * 900) for n in range(99)])) < 10


def test_the_structured_form_of_a_long_plan_is_cut_too() -> None:
    def told(count: int) -> dict[str, Any]:
        made = plan(*issues(count))
        result = RunResult(run_id="r", status="success", summary="s", plan=made)
        found: dict[str, Any] = to_structured(result)["plan"]
        return found

    assert len(told(100)["calls"]) == 100
    assert "callsOmitted" not in told(100)
    large = told(1_000)
    assert len(json.dumps(large)) < MAX_PLAN_CHARACTERS * 1.1
    assert [call["number"] for call in large["calls"][:2]] == [1, 2]
    assert large["callsOmitted"] == 1_000 - len(large["calls"]) > 100


def test_nothing_in_a_plan_can_forge_a_line_or_hide() -> None:
    nasty = "a\n#9 safe.tool (read; allowed: x)\r\u202e\u2028\x1b[2J"
    odd: dict[str, Any] = {nasty: nasty}
    calls = [held(1, nasty, **odd), held(2, asks=False, a=nasty), held(3, b=1)]
    text = plan_text(plan(*calls, stopped=nasty))
    assert not any(line.startswith("#9") for line in text.splitlines())
    assert all(character.isprintable() for character in text.replace("\n", ""))


def test_values_of_different_types_are_not_the_same() -> None:
    calls = [held(1, a=1), held(2, a=True), held(3, a=1.0)]
    for more in ([], [held(4)]):
        text = plan_text(plan(*calls, *more))
        assert "each with" not in text
        rows = [line.split() for line in text.splitlines() if line.startswith("  #")]
        assert rows[:3] == [["#1", "1"], ["#2", "true"], ["#3", "1.0"]]
        assert rows[3:] == [["#4", "–"]][: len(more)]


def test_no_text_passes_for_a_line_of_its_own() -> None:
    gap = " " * 60
    arguments: dict[str, Any] = {f"to{gap}#2 x.y": f"a{gap}#3 x.y"}
    text = plan_text(plan(held(1, **arguments)), how=False)
    assert gap not in text
    assert text.count("[60 spaces]") == 2
    same = plan_text(plan(held(1, a=f"{gap}"), held(2, a="[60 spaces]")), how=False)
    assert "each with" not in same


def turns() -> list[HeldCall]:
    pairs = ((*issues(1, n), held(n + 1, "comment", text=f"c{n}")) for n in range(1, 101, 2))
    return [call for pair in pairs for call in pair]


WIDE = [held(n, a=n, b=n, c=n, d=n, e=n, f=n) for n in range(1, 11)]
PLANS = {
    "several tools": plan(
        held(1, "create_label", asks=False, name="bug"),
        *issues(2, 2),
        held(4, "delete", server="m", effect="destructive", id="‹result of #3 github.x›.id"),
    ),
    "long values": plan(*[held(n, repo="o/r", body=f"{n}" + "b" * 300) for n in range(1, 7)]),
    "turns": plan(*turns()),
    "all alike": plan(*[held(n, repo="o/r") for n in (1, 2, 3)]),
    "an argument without a column": plan(
        *WIDE[:6], held(7, **WIDE[6].arguments, bcc="spy@example.org"), *WIDE[7:]
    ),
    "stopped": plan(held(1), stopped="line 3 looks"),
    "empty": plan(plan_id=""),
    "stopped before": plan(plan_id="", stopped="line 3 looks"),
    "failed": plan(held(1), plan_id=""),
    "no policy": plan(replace(held(1), rule="no policy")),
    "untrusted": plan(replace(held(1), rule="default for untrusted tools")),
    "no user to ask": replace(plan(*(held(n, f"t{n}") for n in range(8))), askable=False),
    "stale": replace(plan(held(1)), stale="a.b"),
}


def test_plans_are_told_as_the_file_says() -> None:
    told = {}
    for name, one in PLANS.items():
        lines = [*plan_text(one).splitlines(), "", *plan_text(one, how=False).splitlines()[-2:]]
        told[name] = {"text": lines, "summary": plan_summary(one)}
    result = RunResult(run_id="r", status="success", summary="s", stdout="out\n")
    assert compact(replace(result, plan=PLANS["failed"])).startswith("out\n[plan]\n1 call held")
    assert_golden(Path(__file__).with_name("plans.json"), told)
