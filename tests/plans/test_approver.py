"""Which calls the approval of a plan covers."""

from __future__ import annotations

import pytest

from bridge.errors import ApprovalNeededError
from bridge.gate.approval import Approval
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.held_calls import HeldCalls
from bridge.plans.approver import PlanApprover

ALLOW = Decision(action="allow", rule="no policy")
ASK = Decision(action="ask", rule="default for writes")
CALL = CallFacts(server="tickets", tool="create")


async def test_an_approval_covers_the_reasons_that_the_plan_showed_and_no_others() -> None:
    """What became stricter since stops the plan."""
    holds = HeldCalls()
    holds.hold(CALL, ASK, [ASK])
    covered = PlanApprover(Approval(), holds.requests[0])
    assert await covered.approve(CALL, [ASK]) == Approval()
    stricter = Decision(action="ask", rule="flow rule 'x'", reason="after web.fetch")
    with pytest.raises(
        ApprovalNeededError, match=r"did not show \(flow rule 'x': after web\.fetch"
    ):
        await covered.approve(CALL, [ASK, stricter])
    allowed = HeldCalls()
    allowed.hold(CALL, ALLOW, [ALLOW])
    with pytest.raises(ApprovalNeededError, match="default for writes"):
        await PlanApprover(Approval(), allowed.requests[0]).approve(CALL, [ASK])
