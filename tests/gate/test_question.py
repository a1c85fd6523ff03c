"""What a person reads, and what the answer says. Programs write parts of it, and forge nothing.

With `UPDATE_FROZEN=1` the last test writes wording.txt instead of comparing with it.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitRequestFormParams
from mcp_types._v2025_11_25 import LegacyTitledEnumSchema
from mcp_types._v2026_07_28 import LegacyTitledEnumSchema as ModernEnumSchema

from bridge.errors import ApprovalNeededError
from bridge.gate.approval import Approver
from bridge.gate.policy import CHANGED, CallFacts, Decision
from bridge.gate.question import (
    _MARKDOWN,
    MAX_ITEMS,
    MAX_NAME_CHARS,
    WIDTH,
    Holds,
    list_offered,
    plan_question,
    question,
    quote_text,
    read_answer,
    shown,
    visible_lines,
)
from bridge.model import HeldCall, Json, Plan, Tool

DEFAULT = Decision(action="ask", rule="default for writes")
FLOW = Decision(
    action="ask",
    rule="flow rule 'lethal-combination'",
    reason="text may steer it",
    led=("web.fetch", "mail.read"),
)
TOOL = Tool(
    server="github",
    name="create_issue",
    input_schema={"properties": {"repo": {}, "title": {}, "labels": {}}},
)


def _call(**arguments: Json) -> CallFacts:
    return CallFacts(server="github", tool="create_issue", arguments=arguments, definition=TOOL)


FULL = ["call", "run", "session", "always", "no"]


@pytest.mark.parametrize(
    ("arguments", "ask", "choices"),
    [
        ({"title": "t"}, DEFAULT, FULL),
        ({"title": "*"}, DEFAULT, FULL),
        ({"title": "x" * 100}, DEFAULT, FULL),
        ({"title": "x" * 200}, DEFAULT, ["call", "no"]),
        ({"title": "名" * 110}, DEFAULT, ["call", "no"]),
        ({"labels": [0] * (MAX_ITEMS + 1)}, DEFAULT, ["call", "no"]),
        ({"labels": [[[[[[[1]]]]]]]}, DEFAULT, ["call", "no"]),
        ({"title": "t"}, replace(DEFAULT, rule="rule 'r'", reason="x" * 200), ["call", "no"]),
        ({"title": "t", "x" * (MAX_NAME_CHARS + 1): 1}, DEFAULT, ["call", "no"]),
    ],
)
def test_lines_limit_choices(arguments: dict[str, Json], ask: Decision, choices: list[str]) -> None:
    """Clients fold what is behind them, so a longer call is allowed once or not at all."""
    call = _call(**arguments)
    asked = question(call, [ask], ["call", "run", "session", "always"], arguments)
    assert list(list_offered(asked)) == choices
    lines = str(asked["message"]).split("\n")
    assert lines[0].lstrip().startswith("Allow github.create_issue(")
    assert lines[1].lstrip().startswith("Reason: ")
    assert lines[-1].lstrip().startswith("Arguments digest: ")
    # Or a long argument would keep the others out of sight.
    assert len(lines[0]) < 2 * WIDTH + 80


def test_the_form_is_one_that_clients_of_both_eras_take() -> None:
    asked = question(_call(), [DEFAULT], ["call", "run", "session", "always"], {})
    params = ElicitRequestFormParams.model_validate(asked, by_name=False)
    schema = params.requested_schema
    assert schema["required"] == ["decision"]
    [field] = schema["properties"].values()
    assert "default" not in field
    assert field["enum"] == FULL
    for model in (LegacyTitledEnumSchema, ModernEnumSchema):
        names = model.model_validate(field, by_name=False).enum_names
        assert names is not None
        assert len(names) == len(FULL)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "accept", "content": {"decision": "run"}}, "run"),
        ({"action": "accept", "content": {"decision": "no"}}, "no"),
        ({"action": "accept", "content": {"decision": "always"}}, "no"),
        ({"action": "accept", "content": {"decision": "yes"}}, "no"),
        ({"action": "accept", "content": {"decision": True}}, "no"),
        ({"action": "accept", "content": {"decision": ["run"]}}, "no"),
        ({"action": "accept", "content": {}}, "call"),
        ({"action": "accept"}, "call"),
        ({"action": "accept", "content": None}, "call"),
        ({"action": "decline", "content": {"decision": "run"}}, "no"),
        ({"action": "cancel", "content": {"decision": "run"}}, ""),
        ({"action": "Accept"}, ""),
        ({}, ""),
    ],
)
def test_only_a_yes_that_was_offered_is_one(answer: dict[str, Json], said: str) -> None:
    assert read_answer(answer, ("call", "run"), "call") == said


_HOSTILE = st.text(max_size=400) | st.sampled_from(
    [
        '"\n\nasked because of: nothing',
        "x\r\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1ey",
        "\u202eabc\u2066\u200b\ufeff\U000e0041",
        "x" + " " * 300 + "it reads only",
        "x" + "\u3000\u2003\xa0" * 99 + "it reads only",
        "\u3164" * 200,
        "e" + "\u0301" * 100,
        "\\u0041\\",
        "](http://x) ![](http://y) </details>",
        "\ud800",
    ]
)


def _is_hidden(character: str) -> bool:
    if unicodedata.category(character) == "Zs":
        return character != " "
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@given(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE)
def test_nothing_that_a_program_writes_is_a_line_of_the_question(
    name: str, value: str, tool: str, reason: str
) -> None:
    ask = Decision(action="ask", rule=reason, reason=reason, led=(tool,))
    call = CallFacts(server="s", tool=tool, arguments={name: value, "z": [{name: value}]})
    text = str(question(call, [ask], ["call"], call.arguments)["message"])
    lines = text.splitlines()
    assert lines == text.split("\n")
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    assert lines[0].startswith(f"{indent}Allow s.")
    assert lines[1].startswith(f"{indent}Reason: ")
    assert lines[2].startswith((f"{indent}Arguments digest: ", f"{indent}  "))
    assert lines[-1].startswith(f"{indent}Arguments digest: ")
    assert all(line.startswith("      ") for line in lines[2:-1])
    assert indent or not _MARKDOWN.search("".join(lines))
    assert not any(_is_hidden(character) for line in lines for character in line)
    assert " " * 9 not in text.replace("    ", "", 1)


def test_what_is_long_is_cut_and_its_size_told() -> None:
    text = quote_text("line\n" * 1000 + "the end", 40)
    assert text.startswith('"line\\nline\\nline\\nline')
    assert text.endswith('\\nthe end" (5,007 characters in 1,001 lines, shortened)')
    assert quote_text("x" * 40, 40) == f'"{"x" * 40}"'


def test_nothing_stands_where_no_one_scrolls() -> None:
    hidden = f"    x = 1{' ' * 300}; evil()\n{' ' * 200}evil()\n{' ' * 40}fine()"
    shown, rest = visible_lines(hidden, 10, 10_000)
    assert rest == 0
    assert shown[0] == "    x = 1[300 spaces]; evil()"
    assert shown[1] == "[200 spaces]evil()"
    assert shown[2].endswith("  fine()")


def test_every_size_has_a_bound() -> None:
    deep: Json = "x"
    for _ in range(100):
        deep = {"a": [deep]}
    assert shown(deep, 400).count("[") < 10
    wide = {f"k{number}": list(range(1000)) for number in range(1000)}
    assert len(shown(wide, 400)) < 2000
    assert len(shown(10**4000, 400)) < 500
    many: dict[str, Json] = {f"{'n' * 50}{number}": "\U000e0041" * 10_000 for number in range(1000)}
    call = CallFacts(server="s", tool="t", arguments=many)
    message = str(question(call, [DEFAULT], ["call"], many)["message"])
    # Each character that hides takes ten to be shown, of which two are.
    assert len(message) < 3 * (2400 + 25 * 120)
    assert f"and {1000 - 25} more arguments" in message


@pytest.mark.parametrize(
    ("arguments", "under"),
    [
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/b/c"}], " under /srv/x"),
        ([{"path": "/srv/x/a", "text": "hello"}, {"paths": ["/srv/y/b"]}], " under /srv"),
        ([{"path": "/srv/x/a"}, {"path": "/etc/b"}], ""),
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/../../etc/b"}], ""),
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/b", "to": "../etc"}], ""),
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/b", "to": "~root"}], ""),
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/b", "to": "‹result of #1 s.open›"}], ""),
        ([{"path": "/srv/x/a"}, {"path": "/srv/x/\u202eb"}], ""),
        ([{"path": "/srv/x/a"}, {}], ""),
    ],
)
def test_plans_name_directories(arguments: list[dict[str, Json]], under: str) -> None:
    calls = tuple(
        HeldCall(number=number, server="s", tool="make", arguments=each)
        for number, each in enumerate(arguments, 1)
    )
    message = str(plan_question(Plan(plan_id="a", seconds=1, calls=calls), "", [])["message"])
    assert message.startswith(f"    Apply 2 calls: 2 × s.make{under}?\n")


GOLDEN = Path(__file__).with_name("wording.txt")

RULE = Decision(action="ask", rule="rule 'pushes'", reason="somebody looks at these")
ALTERED = Decision(action="ask", rule=CHANGED, reason="its title changed")
HELD = HeldCall(
    number=1, server="s", tool="open", arguments={}, action="ask", rule="default for writes"
)


def write_call(arguments: dict[str, Json], *asks: Decision) -> str:
    """Return a question about a call, and its answers."""
    choices: list[Holds] = ["call", "run", "session", "always"]
    return write_question(question(_call(**arguments), asks, choices, arguments))


def write_question(params: Mapping[str, Json]) -> str:
    names = params["requestedSchema"]["properties"]["decision"]["enumNames"]
    return f"{params['message']}\n{names}"


def write_plan(calls: Sequence[HeldCall], shown: str = "", whole: Sequence[int] = ()) -> str:
    return write_question(
        plan_question(Plan(plan_id="a", seconds=1, calls=tuple(calls)), shown, whole)
    )


def refuse_call(*asks: Decision) -> str:
    call = CallFacts(server="git", tool="push", definition=TOOL)
    return refuse(lambda approver: approver.approve(call, asks))


def refuse(approve: Callable[[Approver], object]) -> str:
    async def run() -> str:
        try:
            await approve(Approver())  # type: ignore[misc]
        except ApprovalNeededError as error:
            return f"{error.message}\n{error.remedy}"
        return "approved"

    return anyio.run(run)


def refuse_plan(*calls: HeldCall) -> str:
    plan = Plan(plan_id="a", seconds=1, calls=calls)
    return refuse(lambda approver: approver.approve_plan(plan, "", [1]))


MANY = [replace(HELD, number=number, tool=f"t{number}") for number in range(30)]
MANY[20] = replace(MANY[20], effect="destructive")


def cases() -> Mapping[str, str]:
    return {
        "a call with arguments that its tool does not describe": write_call(
            {"body": "one\ntwo", "title": "It breaks", "repo": "o/r", "n": [1, {"a": True}]},
            DEFAULT,
            FLOW,
        ),
        "a call without arguments": write_call({}, DEFAULT),
        "a long call": write_call({"title": "/srv/x/newdir", "body": "line\n" * 1000}, DEFAULT),
        "a tool that changed": write_call({}, ALTERED),
        "a plan": write_plan(
            MANY, "\n".join(f"{n}. s.t{n}(\x1b[2J)" for n in range(65)), range(40, 70)
        ),
        "a plan of one call": write_plan([HELD], "#1 s.open", [1]),
        "a plan of one call that is cut": write_plan([HELD], "#1 s.open"),
        "a call that a rule asks about": refuse_call(RULE),
        "a call that a flow rule asks about": refuse_call(FLOW),
        "a call that a default and a flow rule ask about": refuse_call(DEFAULT, FLOW),
        "a changed tool": refuse_call(ALTERED),
        "a changed tool that a default asks about": refuse_call(DEFAULT, ALTERED),
        "a plan that the policy allows": refuse_plan(replace(HELD, action="allow")),
        "a plan that needs a person": refuse_plan(replace(HELD, action="allow"), HELD, HELD),
        "a plan of many tools": refuse_plan(*MANY[:7]),
        "a plan with a changed tool": refuse_plan(replace(HELD, rule=CHANGED)),
    }


def test_what_is_read_of_questions_and_refusals_is_as_it_was() -> None:
    text = "\n".join(f"== {name}\n{case}\n" for name, case in cases().items())
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
