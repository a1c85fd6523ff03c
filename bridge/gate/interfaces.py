"""What the gate's pipeline asks of its parts: Protocols, which tests implement with fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bridge.errors import UpstreamError
from bridge.gate.approval import Approval
from bridge.gate.audit.records import CallKind
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import FlowState
from bridge.gate.held_calls import Placeholder
from bridge.gate.outcomes import Outcome
from bridge.model import Effect, Json, Plan, Provenance, Tool
from bridge.settings.policy import PolicySpec


class CallPolicy(Protocol):
    """The rules on calls; see `bridge.gate.policy.Policy`."""

    @property
    def spec(self) -> PolicySpec:
        """The policy as it was written; not `present` where there is none."""

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        """Decide on a call; `effect` overrides what the policy takes it to do."""

    def labels(self, server: str, tool: str, definition: Tool | None) -> frozenset[str]:
        """Return a tool's labels."""


class FlowRules(Protocol):
    """The rules on what may follow what; see `bridge.gate.flow.Flow`."""

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        """Decide on a call by the calls before it; None if no rule applies."""


class CallBudget(Protocol):
    """What a run may still call; see `bridge.gate.budget.RunBudget`."""

    def spend(self, server: str) -> None:
        """Count one call against the budget, or raise `CallBudgetError`."""

    def took_in(self, size: int) -> None:
        """Count the bytes of a result."""


class PinnedTools(Protocol):
    """Tools as they were when they were allowed; see `bridge.gate.pins.Pins`."""

    async def refresh(self, tool: Tool | None = None, server_definition: str = "") -> None:
        """Read what is remembered, if that may have changed."""

    def change(self, tool: Tool, server_definition: str = "") -> str:
        """Return what has changed of a tool; empty if nothing."""

    async def keep(self, tool: Tool, server_definition: str = "", *, anew: bool = False) -> str:
        """Remember a tool that is allowed; return what is noted about it."""


class CallApprover(Protocol):
    """Asks a person; see `bridge.gate.approval.Approver`."""

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        """Return the approval of a call, or raise `RefusedError`."""

    async def approve_plan(self, plan: Plan, shown: str, whole: Sequence[int]) -> Approval:
        """Return the approval of a plan, or raise `RefusedError`."""


class CallAudit(Protocol):
    """Records a run's calls; see `bridge.gate.audit.run.RunAudit`. Raises `AuditError`."""

    async def calling(
        self, number: int, call: CallFacts, decision: Decision, approval: Approval | None, note: str
    ) -> None:
        """Record a call that is sent next, with what is noted about its tool."""

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        """Record the outcome of a call; never fails."""

    async def refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Record a call that is not made."""

    def count_refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Count a call that is not made."""

    async def unsent(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None = None
    ) -> None:
        """Record a call that is held back, or answered from a journal."""

    async def found(self, what: str, provenance: Provenance) -> None:
        """Record that the run got something that was kept."""


class PersonalData(Protocol):
    """Puts tokens in place of personal data, and back; see `bridge.gate.privacy.Vault`."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to hide and nothing to reveal."""

    def hide(self, server: str, value: dict[str, Json]) -> dict[str, Json]:
        """Return a server's result with tokens in place of personal data."""

    def hidden(self, server: str, value: Json) -> Json:
        """Return any JSON of a server with tokens in place of personal data."""

    def hide_error(self, server: str, error: UpstreamError) -> None:
        """Put tokens in place of personal data in a server's error."""

    def conceal(self, text: str) -> str:
        """Return a text of the bridge with tokens in place of personal data."""

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with personal data in place of tokens, or raise `CallDeniedError`."""


class RecordedCalls(Protocol):
    """The calls of the run that is retried; see `bridge.gate.journal.Replay`."""

    def answer(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Json],
        effect: Effect,
        server_definition: str = "",
    ) -> dict[str, Json] | None:
        """Return the recorded result of a call, or raise `OutcomeUnknownError`."""


class CallHolder(Protocol):
    """Holds calls back for a plan; see `bridge.gate.held_calls.HeldCalls`."""

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        """Return whether arguments hold a placeholder."""

    def reading(self, call: CallFacts) -> None:
        """Record a call that reads."""

    def hold(
        self,
        call: CallFacts,
        decision: Decision,
        asks: Sequence[Decision] = (),
        flow: FlowState | None = None,
    ) -> Placeholder:
        """Hold a call back, and return its placeholder."""

    def spoil(self, why: str) -> None:
        """Make the plan one that cannot be applied."""
