"""What a person and a program read of questions and of approvals that no one can give.

With `UPDATE_FROZEN=1` the test writes wording.txt instead of comparing with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from bridge.errors import ApprovalNeededError
from bridge.gate.approval import Approver
from bridge.gate.decision import CHANGED, CallFacts, Decision
from bridge.gate.question import Holds, plan_question, question
from bridge.model import HeldCall, Json, Plan, Tool

GOLDEN = Path(__file__).with_name("wording.txt")

TOOL = Tool(
    server="github",
    name="create_issue",
    input_schema={"properties": {"repo": {}, "title": {}, "labels": {}}},
)
DEFAULT = Decision(action="ask", rule="default for writes")
RULE = Decision(action="ask", rule="rule 'pushes'", reason="somebody looks at these")
FLOW = Decision(
    action="ask",
    rule="flow rule 'lethal-combination'",
    reason="text may steer it",
    led=("web.fetch", "mail.read"),
)
ALTERED = Decision(action="ask", rule=CHANGED, reason="its title changed")
HELD = HeldCall(
    number=1, server="s", tool="open", arguments={}, action="ask", rule="default for writes"
)


def asked(arguments: dict[str, Json], *asks: Decision) -> str:
    """Return a question about a call, and its answers."""
    choices: list[Holds] = ["call", "run", "session", "always"]
    call = CallFacts(server="github", tool="create_issue", arguments=arguments, definition=TOOL)
    return written(question(call, asks, choices, arguments))


def written(params: Mapping[str, Json]) -> str:
    names = params["requestedSchema"]["properties"]["decision"]["enumNames"]
    return f"{params['message']}\n{names}"


def planned(calls: Sequence[HeldCall], shown: str = "", whole: Sequence[int] = ()) -> str:
    return written(plan_question(Plan(plan_id="a", seconds=1, calls=tuple(calls)), shown, whole))


def needed(*asks: Decision) -> str:
    call = CallFacts(server="git", tool="push", definition=TOOL)
    return refused(lambda approver: approver.approve(call, asks))


def refused(approve: Callable[[Approver], object]) -> str:
    async def run() -> str:
        try:
            await approve(Approver())  # type: ignore[misc]
        except ApprovalNeededError as error:
            return f"{error.message}\n{error.remedy}"
        return "approved"

    return anyio.run(run)


def plan_needed(*calls: HeldCall) -> str:
    plan = Plan(plan_id="a", seconds=1, calls=calls)
    return refused(lambda approver: approver.approve_plan(plan, "", [1]))


MANY = [replace(HELD, number=number, tool=f"t{number}") for number in range(30)]
MANY[20] = replace(MANY[20], effect="destructive")


def cases() -> Mapping[str, str]:
    return {
        "a call with arguments that its tool does not describe": asked(
            {"body": "one\ntwo", "title": "It breaks", "repo": "o/r", "n": [1, {"a": True}]},
            DEFAULT,
            FLOW,
        ),
        "a call without arguments": asked({}, DEFAULT),
        "a long call": asked({"title": "/srv/x/newdir", "body": "line\n" * 1000}, DEFAULT),
        "a tool that changed": asked({}, ALTERED),
        "a plan": planned(
            MANY, "\n".join(f"{n}. s.t{n}(\x1b[2J)" for n in range(65)), range(40, 70)
        ),
        "a plan of one call": planned([HELD], "#1 s.open", [1]),
        "a plan of one call that is cut": planned([HELD], "#1 s.open"),
        "a call that a rule asks about": needed(RULE),
        "a call that a flow rule asks about": needed(FLOW),
        "a call that a default and a flow rule ask about": needed(DEFAULT, FLOW),
        "a changed tool": needed(ALTERED),
        "a changed tool that a default asks about": needed(DEFAULT, ALTERED),
        "a plan that the policy allows": plan_needed(replace(HELD, action="allow")),
        "a plan that needs a person": plan_needed(replace(HELD, action="allow"), HELD, HELD),
        "a plan of many tools": plan_needed(*MANY[:7]),
        "a plan with a changed tool": plan_needed(replace(HELD, rule=CHANGED)),
    }


def test_what_is_read_of_questions_and_refusals_is_as_it_was() -> None:
    text = "\n".join(f"== {name}\n{case}\n" for name, case in cases().items())
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
