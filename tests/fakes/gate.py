"""The gate's parts as fakes that take notes; each stands for a class of `bridge.gate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bridge.errors import (
    ApprovalRefusedError,
    AuditError,
    CallBudgetError,
    OutcomeUnknownError,
)
from bridge.gate.approval import Approval, Approver
from bridge.gate.audit import RunAudit
from bridge.gate.audit.records import CallKind
from bridge.gate.budget import RunBudget
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import Flow, FlowState
from bridge.gate.held_calls import HeldCalls, Placeholder
from bridge.gate.journal import Entry, Replay, RunJournal
from bridge.gate.outcomes import Outcome
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Action, Effect, Json, Provenance, Tool
from bridge.settings.policy import PolicySpec

Notes = list[str]


class FakePolicy(Policy):
    """Always decides the same."""

    def __init__(self, notes: Notes, action: Action = "allow", effect: Effect = "write") -> None:
        super().__init__(PolicySpec(present=True))
        self._notes = notes
        self._decision = Decision(action=action, rule="rule 'x'", effect=effect)

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        self._notes.append(f"decide {dict(call.arguments)}")
        return replace(self._decision, effect=effect or self._decision.effect)


class FakeFlow(Flow):
    """Decides the same for every call; None for no rule."""

    def __init__(self, action: Action | None = None) -> None:
        super().__init__()
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


class FakePins(Pins):
    """Says the same change of every tool."""

    def __init__(self, notes: Notes, change: str = "") -> None:
        super().__init__()
        self._notes = notes
        self._change = change

    def change(self, tool: Tool, server_definition: str = "") -> str:
        return self._change

    async def keep(self, tool: Tool, server_definition: str = "", *, anew: bool = False) -> str:
        self._notes.append("pin for good" if anew else "pin")
        return ""


class FakeApprover(Approver):
    """Approves of every call, or of none."""

    def __init__(self, notes: Notes, *, says: bool = True) -> None:
        super().__init__()
        self._notes = notes
        self._says = says

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        self._notes.append(f"ask {[ask.rule for ask in asks]}")
        if not self._says:
            message = "no"
            raise ApprovalRefusedError(message)
        return Approval(holds="run")


class FakeAudit(RunAudit):
    """Notes each record; `full` refuses those of calls that are sent next."""

    def __init__(self, notes: Notes, *, full: bool = False) -> None:
        super().__init__()
        self._notes = notes
        self._full = full

    async def calling(
        self,
        number: int,
        call: CallFacts,
        decision: Decision,
        approval: Approval | None,
        note: str = "",
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


class FakeBudget(RunBudget):
    """Has room for every call, or for none."""

    def __init__(self, notes: Notes, *, spent: bool = False) -> None:
        super().__init__()
        self._notes = notes
        self._spent = spent

    def spend(self, server: str) -> None:
        if self._spent:
            message = "too much"
            raise CallBudgetError(message)
        self._notes.append("spend")


class FakeVault(Vault):
    """Marks what is hidden and what is revealed."""

    @property
    def idle(self) -> bool:
        return False

    def hide(self, server: str, value: dict[str, Json]) -> dict[str, Json]:
        return {**value, "hidden": True}

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        return {**arguments, "revealed": True}


class FakeReplay(Replay):
    """Has the same answer for every call, or does not know the outcome of any."""

    def __init__(self, answer: dict[str, Json] | None, *, unknown: bool = False) -> None:
        super().__init__(RunJournal())
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


class FakeHeldCalls(HeldCalls):
    """Holds every call back under the same number."""

    def __init__(self, *, refers: bool = False) -> None:
        super().__init__()
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
