"""What a person sees of an approval: captures that `tests.clients.screens` makes."""

from __future__ import annotations

import re
from itertools import product

import pytest

from bridge.gate.decision import CallFacts, Decision
from bridge.gate.question import TITLES, plan_question, question
from bridge.model import HeldCall, Json, Plan, Tool
from tests.clients.screens import SCREENS, SIZES

RULE = "default for untrusted tools"
SIZE = [columns for columns, _ in SIZES]


def _seen(name: str) -> str:
    return " ".join((SCREENS / f"{name}.txt").read_text(encoding="utf-8").split())


def _words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize(
    ("program", "columns"),
    [*product(["claude", "codex"], SIZE), ("copilot", 80)],
)
def test_a_call_is_seen_whole_with_its_reason(program: str, columns: int) -> None:
    """In the terminal that the captures were made in; a new wording needs new ones."""
    arguments: dict[str, Json] = {"path": "/srv/x/newdir"}
    schema = {"properties": {"path": {"type": "string"}}}
    tool = Tool(server="filesystem", name="create_directory", input_schema=schema)
    call = CallFacts(
        server="filesystem", tool="create_directory", arguments=arguments, definition=tool
    )
    asks = [Decision(action="ask", rule=RULE)]
    asked = question(call, asks, ["call", "run", "session", "always"], arguments)
    seen = _seen(f"{program}-call-{columns}")
    for line in str(asked["message"]).splitlines():
        assert _words(line) in seen
    if program == "codex":
        shown = re.findall(r"\d\. (.*?)(?= \d\.| enter)", seen)
        assert shown == list(TITLES.values())


@pytest.mark.parametrize("program", ["claude", "codex"])
@pytest.mark.parametrize("columns", SIZE)
def test_the_first_lines_of_a_plan_are_seen(program: str, columns: int) -> None:
    calls = tuple(
        HeldCall(
            number=number + 1,
            server="filesystem",
            tool="create_directory",
            arguments={"path": f"/srv/x/newdir{number}"},
            action="ask",
            rule=RULE,
        )
        for number in range(30)
    )
    asked = plan_question(Plan(plan_id="a", seconds=1, calls=calls), "", [1] * 30)
    first, second, *_ = str(asked["message"]).splitlines()
    seen = _seen(f"{program}-plan-{columns}")
    assert _words(first) in seen
    assert _words(second) in seen


@pytest.mark.parametrize("program", ["gemini", "opencode", "qwen"])
def test_a_client_that_cannot_be_asked_goes_on(program: str) -> None:
    """Its model was told what the user can do; nothing waits for an answer that cannot come."""
    assert "done" in _seen(f"{program}-call-80")
