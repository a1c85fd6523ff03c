"""The approval of a plan, as far as it covers each of its calls."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.errors import ApprovalNeededError
from bridge.gate.approval import Approval, Approver
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.held_calls import HeldRequest


class PlanApprover(Approver):
    """Approves one held call as far as the plan's approval covers it; asks no person."""

    def __init__(self, approval: Approval, request: HeldRequest) -> None:
        super().__init__()
        self._approval = approval
        self._request = request

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        """Return the plan's approval, which covers only the reasons that the plan showed.

        Raises:
            ApprovalNeededError: The call needs approval for a reason that the plan did not show.
        """
        news = [ask for ask in asks if ask.rule not in self._request.asked]
        if not news:
            return self._approval
        reasons = "; ".join(f"{ask.rule}: {ask.reason}" if ask.reason else ask.rule for ask in news)
        raise ApprovalNeededError(
            f"{call} needs a person's approval for a reason that the plan did not show "
            f"({reasons}).",
            remedy="Make this call, and what follows, in a run of its own, where it is asked "
            "about; or plan again.",
        )
