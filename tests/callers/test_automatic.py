"""An answer that a client gives by itself is no answer of a person."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bridge.callers import client as automatic
from bridge.callers.client import HEADLESS_SECONDS, RunCaller, answered_by
from bridge.clock import Clock
from bridge.errors import ApprovalRefusedError
from bridge.gate.approval import Approval, Approver
from bridge.gate.decision import CallFacts, Decision
from bridge.model import HeldCall, Json, Plan
from tests.fakes.client import FakeClient
from tests.raised import raises_code

CODEX = "codex-mcp-client 0.169.0"
CALL = CallFacts(server="git", tool="push", arguments={"branch": "main"})
ASK = Decision(action="ask", rule="default for writes")


@pytest.mark.parametrize(
    ("client", "action", "seconds", "answerer"),
    [
        (CODEX, "decline", 0.0, "`codex exec`"),
        (CODEX, "decline", HEADLESS_SECONDS - 0.1, "`codex exec`"),
        (CODEX, "decline", HEADLESS_SECONDS, ""),
        (CODEX, "accept", 0.5, ""),
        ("codex-mcp-client 0.9", "decline", 0.5, ""),
        ("claude-code 2.1.329", "cancel", 0.5, "`claude -p`"),
        ("claude-code 2.1.329", "decline", 0.5, ""),
        ("other 1.0", "decline", 0.1, "the client other 1.0"),
        ("other", "accept", 0.1, "the client other"),
        ("other", "decline", 0.15, ""),
        ("other", "decline", 60.0, ""),
    ],
)
def test_fast_answers_and_those_of_headless_clients_are_automatic(
    monkeypatch: pytest.MonkeyPatch, client: str, action: str, seconds: float, answerer: str
) -> None:
    monkeypatch.setattr(automatic, "AUTOMATIC_SECONDS", 0.15)
    assert answered_by(client, action, seconds) == answerer


def _approver(program: str, action: str) -> Approver:
    async def answer(params: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"action": action, "automatic": "a person"}

    client = FakeClient(answer=answer, program=program)
    return Approver(RunCaller(client, Clock(), identified=True).elicit, owner="me")


async def test_an_automatic_decline_says_so_and_which_rule_would_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automatic, "HEADLESS_SECONDS", 1e9)
    monkeypatch.setattr(automatic, "AUTOMATIC_SECONDS", 1e9)
    with raises_code("answered_automatically") as caught:
        await _approver(CODEX, "decline").approve(CALL, [ASK])
    assert caught.value.code == "answered_automatically"
    assert caught.value.message == (
        "git.push needs a person's approval (default for writes). No person saw the question: "
        "`codex exec` answered it, with 'decline'. It was not called."
    )
    assert '[[policy.rules]]\nname = "allow git.push"' in caught.value.remedy
    held = HeldCall(number=1, server="git", tool="push", arguments={})
    for action in ("ask", "allow"):
        call = HeldCall(**{**vars(held), "action": action})
        plan = Plan(plan_id="a" * 16, seconds=60, calls=(call,))
        with raises_code("answered_automatically", match="`codex exec` answered it"):
            await _approver(CODEX, "decline").approve_plan(plan, "", [1])
    approval = await _approver("other 1.0", "accept").approve(CALL, [ASK])
    assert approval == Approval(note="automatic: the client other 1.0 accepted it")


@pytest.mark.parametrize("program", [CODEX, ""])
async def test_a_persons_decline_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(automatic, "HEADLESS_SECONDS", 0.0)
    with pytest.raises(ApprovalRefusedError, match="declined"):
        await _approver(program, "decline").approve(CALL, [ASK])
