"""Asking a person whether a call may be made.

Owns the question's wording and form, the reading of the answer, and what an answer holds for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bridge.errors import ApprovalNeededError
from bridge.gate.decision import CallFacts, Decision
from bridge.model import Json, Plan

Ask = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Asks the client: MCP's `elicitation/create` parameters to its `ElicitResult`; raises
`CannotAskError`."""

Holds = Literal["call", "run", "session", "always"]
"""For how long an answer holds."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A person's yes.

    Attributes:
        holds: What it was given for.
        earlier: Whether it was given earlier, so that nobody was asked now.
    """

    holds: Holds = "call"
    earlier: bool = False


class Grants:
    """Answers that hold for more than a run, by whose they are."""


class Approver:
    """Asks on behalf of one run; one question at a time.

    Args:
        ask: None if nobody can be asked.
        grants: What holds for the session.
        owner: Whose session it is.
        mask: Takes out of arguments what nobody needs to see.
    """

    def __init__(
        self,
        ask: Ask | None = None,
        *,
        grants: Grants | None = None,
        owner: str = "",
        mask: Callable[[Json], Json] | None = None,
    ) -> None:
        self._ask = ask
        self._grants = grants or Grants()
        self._owner = owner
        self._mask = mask or (lambda value: value)

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        """Return a person's approval of a call that needs one.

        Args:
            asks: Every decision that wants it, in one question; what was approved earlier for one
                of them approves of no other.

        Raises:
            ApprovalNeededError: Nobody can be asked; says how the call can be allowed.
            ApprovalRefusedError: A person said no, or nothing.
        """
        message = f"{call} needs a person's approval ({asks[0].rule})."
        raise ApprovalNeededError(message)

    async def approve_plan(self, plan: Plan, shown: str) -> Approval:
        """Return a person's approval of a whole plan.

        Args:
            shown: The plan as a list to read.

        Raises:
            ApprovalNeededError: Nobody can be asked, and a call of the plan needs approval.
            ApprovalRefusedError: A person said no, or nothing.
        """
        message = "The plan needs a person's approval."
        raise ApprovalNeededError(message)
