"""What a person reads, and what the answer says. Programs write parts of it, and forge nothing."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitRequestFormParams
from mcp_types._v2025_11_25 import LegacyTitledEnumSchema
from mcp_types._v2026_07_28 import LegacyTitledEnumSchema as ModernEnumSchema

from bridge.gate.canonical import arguments_digest
from bridge.gate.decision import CHANGED, CallFacts, Decision
from bridge.gate.question import (
    _MARKDOWN,
    MAX_ITEMS,
    MAX_NAME_CHARS,
    MAX_PLAN_LINES,
    WIDTH,
    Holds,
    offered,
    plan_question,
    question,
    quoted,
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


def _message(call: CallFacts, *asks: Decision) -> str:
    choices: list[Holds] = ["call", "run", "session", "always"]
    asked = question(call, asks or (DEFAULT,), choices, call.arguments)
    return str(asked["message"])


def test_a_question_says_what_is_called_with_what_and_why_it_is_asked() -> None:
    call = _call(body="one\ntwo", title="It breaks", repo="o/r", private=None, n=[1, {"a": True}])
    digest = arguments_digest(call.arguments).removeprefix("sha256:")[:16]
    assert _message(call, DEFAULT, FLOW) == (
        '    Allow github.create_issue(repo="o/r", title="It breaks", body="one\\ntwo", '
        "private=null, n=[1, {a: true}])?\n"
        "    Reason: your policy asks before writes; flow rule 'lethal-combination' "
        "(text may steer it), after web.fetch, mail.read\n"
        "    The tool does not describe: body, private, n\n"
        '      repo = "o/r"\n'
        '      title = "It breaks"\n'
        '      body (the tool describes no such argument) = "one\\ntwo"\n'
        "      private (the tool describes no such argument) = null\n"
        "      n (the tool describes no such argument) = [1, {a: true}]\n"
        f"    Arguments digest: {digest}"
    )
    assert _message(_call()) == (
        "Allow github.create_issue()?\nReason: your policy asks before writes"
    )


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
def test_a_person_can_allow_no_more_than_three_lines_show(
    arguments: dict[str, Json], ask: Decision, choices: list[str]
) -> None:
    """Clients fold what is behind them, so a longer call is allowed once or not at all."""
    call = _call(**arguments)
    asked = question(call, [ask], ["call", "run", "session", "always"], arguments)
    assert list(offered(asked)) == choices
    lines = str(asked["message"]).split("\n")
    assert lines[0].lstrip().startswith("Allow github.create_issue(")
    assert lines[1].lstrip().startswith("Reason: ")
    assert lines[-1].lstrip().startswith("Arguments digest: ")
    # Or a long argument would keep the others out of sight.
    assert len(lines[0]) < 2 * WIDTH + 80


def test_the_first_line_of_a_long_call_has_its_short_arguments_whole() -> None:
    call = _call(title="/srv/x/newdir", body="line\n" * 1000)
    assert _message(call).startswith(
        '    Allow github.create_issue(title="/srv/x/newdir", '
        'body="line\\nline\\nline\\nline\\nlin" … "e\\nline\\n" '
        "(5,000 characters in 1,001 lines, shortened))?\n"
    )


def test_the_form_is_one_that_clients_of_both_eras_take() -> None:
    asked = question(_call(), [DEFAULT], ["call", "run", "session", "always"], {})
    params = ElicitRequestFormParams.model_validate(asked, by_name=False)
    schema = params.requested_schema
    assert schema["required"] == ["decision"]
    [field] = schema["properties"].values()
    assert "default" not in field
    assert field["enum"] == ["call", "run", "session", "always", "no"]
    for model in (LegacyTitledEnumSchema, ModernEnumSchema):
        read = model.model_validate(field, by_name=False)
        assert read.enum_names == [
            "Once",
            "This run, any arguments",
            "12 hours",
            "Always (adds a rule)",
            "No",
        ]


def test_what_always_means_for_a_tool_that_changed_is_said() -> None:
    changed = Decision(action="ask", rule=CHANGED, reason="its title changed")
    asked = question(_call(), [changed], ["always"], {})
    names = asked["requestedSchema"]["properties"]["decision"]["enumNames"]
    assert names[0] == "Always (accepts this definition)"
    assert (
        "    Reason: changed tool (its title changed). Effect: write\n"
        "    `mcp-code-bridge tools github.create_issue` shows its definition"
    ) in str(asked["message"])


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
    """To accept without a decision is one for this call alone."""
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


def _hidden(character: str) -> bool:
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
    assert not any(_hidden(character) for line in lines for character in line)
    assert " " * 9 not in text.replace("    ", "", 1)


def test_what_is_long_is_cut_and_its_size_told() -> None:
    text = "line\n" * 1000 + "the end"
    assert quoted(text, 40) == (
        '"line\\nline\\nline\\nline\\nline\\nline\\n" … "\\nthe end" '
        "(5,007 characters in 1,001 lines, shortened)"
    ).replace('… "\\nthe end"', f'… "{text[-10:]}"'.replace("\n", "\\n"))
    assert quoted("x" * 40, 40) == f'"{"x" * 40}"'


def test_nothing_stands_where_nobody_scrolls() -> None:
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
    message = _message(CallFacts(server="s", tool="t", arguments=many))
    # Each character that hides takes ten to be shown, of which two are.
    assert len(message) < 3 * (2400 + 25 * 120)
    assert f"and {1000 - 25} more arguments" in message


def test_a_plan_is_asked_about_by_counts_and_as_a_list() -> None:
    calls = [
        HeldCall(number=number, server="s", tool="close" if number > 37 else "open", arguments={})
        for number in range(1, 40)
    ]
    plan = Plan(plan_id="a" * 16, seconds=600, calls=tuple(calls))
    listed = "\n".join(f"{number}. s.open(\x1b[2J)" for number in range(MAX_PLAN_LINES + 5))
    whole = range(MAX_PLAN_LINES - 37, MAX_PLAN_LINES + 2)
    asked = plan_question(plan, listed, whole)
    message = str(asked["message"])
    assert message.startswith(
        "    Apply 39 calls: 37 × s.open, 2 × s.close?\n"
        "    Reason: the program ran as a plan, and changed nothing so far\n"
        "    Not shown whole: 1 of 39\n"
        "      0. s.open(\\x1b[2J)\n"
    )
    assert "\n    Cut: 5 more lines are in the result that the plan came with.\n" in message
    decision = asked["requestedSchema"]["properties"]["decision"]
    assert "Apply all 39, 1 not shown whole" in str(decision)
    assert asked["requestedSchema"]["properties"]["decision"]["enum"] == ["apply", "no"]
    one = Plan(plan_id="a", seconds=1, calls=(calls[0],))
    assert plan_question(one, "#1 s.open", [1])["message"] == (
        "    Apply 1 call: s.open()?\n"
        "    Reason: the program ran as a plan, and changed nothing so far\n"
        "      #1 s.open"
    )
    cut = plan_question(one, "#1 s.open", [])
    assert "    Not shown whole: 1 of 1\n" in str(cut["message"])
    assert "Apply it, 1 not shown whole" in str(cut)


def test_a_plan_of_many_tools_names_some() -> None:
    calls = [
        HeldCall(number=number, server="s", tool=f"t{number}", arguments={}) for number in range(30)
    ]
    calls[20] = replace(calls[20], effect="destructive")
    plan = Plan(plan_id="a", seconds=1, calls=tuple(calls))
    first, *_ = str(plan_question(plan, "", [])["message"]).split("\n")
    assert first == "    Apply 30 calls: 1 × s.t20, 1 × s.t0, 1 × s.t1, 27 of 27 other tools?"


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
def test_a_plan_names_a_directory_only_if_every_path_is_in_it(
    arguments: list[dict[str, Json]], under: str
) -> None:
    calls = tuple(
        HeldCall(number=number, server="s", tool="make", arguments=each)
        for number, each in enumerate(arguments, 1)
    )
    message = str(plan_question(Plan(plan_id="a", seconds=1, calls=calls), "", [])["message"])
    assert message.startswith(f"    Apply 2 calls: 2 × s.make{under}?\n")
