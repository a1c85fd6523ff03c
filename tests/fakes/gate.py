"""The gate's parts as fakes that take notes; they implement `bridge.gate.interfaces`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bridge.errors import (
    ApprovalRefusedError,
    AuditError,
    CallBudgetError,
    OutcomeUnknownError,
    UpstreamError,
)
from bridge.gate.approval import Approval
from bridge.gate.audit.records import CallKind
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import FlowState
from bridge.gate.held_calls import Placeholder
from bridge.gate.journal import Entry, RunJournal
from bridge.gate.outcomes import Outcome
from bridge.model import Action, Effect, Json, Plan, Provenance, Tool
from bridge.settings.policy import PolicySpec

Notes = list[str]


class FakePolicy:
    """Always decides the same."""

    def __init__(self, notes: Notes, action: Action = "allow", effect: Effect = "write") -> None:
        self.spec = PolicySpec(present=True)
        self._notes = notes
        self._decision = Decision(action=action, rule="rule 'x'", effect=effect)

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        self._notes.append(f"decide {dict(call.arguments)}")
        return replace(self._decision, effect=effect or self._decision.effect)

    def labels(self, server: str, tool: str, definition: Tool | None) -> frozenset[str]:
        return frozenset()


class FakeFlow:
    """Decides the same for every call; None for no rule."""

    def __init__(self, action: Action | None = None) -> None:
        self._action = action

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        if self._action is None:
            return None
        return Decision(action=self._action, rule="flow rule 'y'")


class NotedState(FlowState):
    """Notes each call; a record of the run, and so not a part to stand in for."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def add_call(self, server: str, tool: str, labels: frozenset[str]) -> None:
        self._notes.append("flow note")


class FakePins:
    """Says the same change of every tool."""

    def __init__(self, notes: Notes, change: str = "") -> None:
        self._notes = notes
        self._change = change

    async def refresh(self, tool: Tool | None = None, server_definition: str = "") -> None:
        """Do nothing: nothing is stored."""

    def change(self, tool: Tool, server_definition: str = "") -> str:
        return self._change

    async def keep(self, tool: Tool, server_definition: str = "", *, anew: bool = False) -> str:
        self._notes.append("pin for good" if anew else "pin")
        return ""


class FakeApprover:
    """Approves of every call, or of none."""

    def __init__(self, notes: Notes, *, says: bool = True) -> None:
        self._notes = notes
        self._says = says

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        self._notes.append(f"ask {[ask.rule for ask in asks]}")
        if not self._says:
            message = "no"
            raise ApprovalRefusedError(message)
        return Approval(holds="run")

    async def approve_plan(self, plan: Plan, shown: str, whole: Sequence[int]) -> Approval:
        self._notes.append("ask about a plan")
        return Approval()


class FakeAudit:
    """Notes each record; `full` refuses those of calls that are sent next."""

    def __init__(self, notes: Notes, *, full: bool = False) -> None:
        self._notes = notes
        self._full = full

    async def calling(
        self, number: int, call: CallFacts, decision: Decision, approval: Approval | None, note: str
    ) -> None:
        if self._full:
            message = "no space left"
            raise AuditError(message)
        holds = "" if approval is None else f" for {approval.holds}"
        self._notes.append(f"audit calling {number} {decision.action}{holds} {call.arguments}")

    async def called(self, number: int, outcome: Outcome, *, size: int, ms: float) -> None:
        self._notes.append(f"audit called {number} {outcome}")

    async def refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        self._notes.append(f"audit refused {number} {why}")

    async def unsent(
        self, kind: CallKind, number: int, call: CallFacts, decision: Decision | None = None
    ) -> None:
        self._notes.append(f"audit {kind} {number}")

    def count_refused(self, number: int, call: CallFacts, decision: Decision, why: str) -> None:
        """Note nothing: no record is made."""

    async def found(self, what: str, provenance: Provenance) -> None:
        self._notes.append(f"audit found {what}")


class NotedJournal(RunJournal):
    """Notes each entry; a record of the run, likewise."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def sent(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Json],
        effect: Effect,
        number: int = 0,
        *,
        server_definition: str = "",
    ) -> Entry:
        self._notes.append("journal sent")
        return super().sent(server, tool, arguments, effect, number)

    def settle(self, entry: Entry, outcome: Outcome, result: dict[str, Json] | None) -> None:
        self._notes.append(f"journal {outcome}")
        super().settle(entry, outcome, result)


class FakeBudget:
    """Has room for every call, or for none."""

    def __init__(self, notes: Notes, *, spent: bool = False) -> None:
        self._notes = notes
        self._spent = spent

    def spend(self, server: str) -> None:
        if self._spent:
            message = "too much"
            raise CallBudgetError(message)
        self._notes.append("spend")

    def took_in(self, size: int) -> None:
        """Count nothing."""


class FakeVault:
    """Marks what is hidden and what is revealed."""

    @property
    def idle(self) -> bool:
        return False

    def hide(self, server: str, value: dict[str, Json]) -> dict[str, Json]:
        return {**value, "hidden": True}

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        return {**arguments, "revealed": True}

    def hidden(self, server: str, value: Json) -> Json:
        return value

    def hide_error(self, server: str, error: UpstreamError) -> None:
        """Change nothing."""

    def conceal(self, text: str) -> str:
        return text


class FakeReplay:
    """Has the same answer for every call, or does not know the outcome of any."""

    def __init__(self, answer: dict[str, Json] | None, *, unknown: bool = False) -> None:
        self._answer = answer
        self._nobody_knows = unknown

    def answer(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Json],
        effect: Effect,
        server_definition: str = "",
    ) -> dict[str, Json] | None:
        if self._nobody_knows:
            message = "nobody knows"
            raise OutcomeUnknownError(message)
        return self._answer


class FakeHeldCalls:
    """Holds every call back under the same number."""

    def __init__(self, *, refers: bool = False) -> None:
        self._refers = refers

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        return self._refers

    def hold(
        self,
        call: CallFacts,
        decision: Decision,
        asks: Sequence[Decision] = (),
        flow: FlowState | None = None,
    ) -> Placeholder:
        return Placeholder(held={"number": 1})

    def reading(self, call: CallFacts) -> None:
        """Note nothing."""

    def spoil(self, why: str) -> None:
        """Note nothing."""
