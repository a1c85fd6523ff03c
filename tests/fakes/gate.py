"""The gate's parts with some methods replaced: they take notes, or decide what a test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.errors import (
    ApprovalRefusedError,
    AuditError,
    CallBudgetError,
    OutcomeUnknownError,
)
from bridge.gate.approval import Approval, Approver
from bridge.gate.audit import RunAudit
from bridge.gate.budget import RunBudget
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import Flow, FlowState
from bridge.gate.held_calls import HeldCalls, Placeholder
from bridge.gate.journal import Entry, Replay, RunJournal
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Action, Effect
from bridge.settings.policy import PolicySpec

Notes = list[str]


def made(kind: type, *arguments: Any, **methods: Any) -> Any:
    """Return a part of the gate with other methods."""
    return type(kind.__name__, (kind,), methods)(*arguments)


def policy(notes: Notes, action: Action = "allow", effect: Effect = "write") -> Policy:
    """Return a policy that always decides the same."""
    decision = Decision(action=action, rule="rule 'x'", effect=effect)

    def decide(_: Policy, call: CallFacts, effect: Effect | None = None) -> Decision:
        notes.append(f"decide {dict(call.arguments)}")
        return replace(decision, effect=effect or decision.effect)

    return made(Policy, PolicySpec(present=True), decide=decide)  # type: ignore[no-any-return]


def flow(action: Action | None = None) -> Any:
    """Return flow rules that decide the same for every call; without an action they allow."""
    decision = None if action is None else Decision(action=action, rule="flow rule 'y'")
    return made(Flow, decide=lambda *_: decision)


def flow_state(notes: Notes) -> Any:
    return made(FlowState, add_call=lambda *_: notes.append("flow note"))


def pins(notes: Notes, change: str = "") -> Any:
    """Return pins that tell the same change of every tool."""

    async def keep(*_: Any, always: bool = False, **__: Any) -> str:
        notes.append("pin permanently" if always else "pin")
        return ""

    return made(Pins, change=lambda *_, **__: change, keep=keep)


def approver(notes: Notes, *, says: bool = True) -> Any:
    """Return an approver that approves every call, or none."""

    async def approve(_: Approver, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        notes.append(f"ask {[ask.rule for ask in asks]}")
        if not says:
            raise ApprovalRefusedError("no")
        return Approval(holds="run")

    return made(Approver, approve=approve)


def audit(notes: Notes, *, full: bool = False) -> Any:
    """Return an audit log; if `full`, it refuses the record of a call that is sent next."""

    async def calling(
        _: RunAudit, number: int, call: CallFacts, decision: Decision, approval: Any, note: str = ""
    ) -> None:
        if full:
            raise AuditError("no space left")
        holds = "" if approval is None else f" for {approval.holds}"
        notes.append(f"audit calling {number} {decision.action}{holds} {call.arguments}")

    async def called(_: RunAudit, number: int, outcome: str, **__: Any) -> None:
        notes.append(f"audit called {number} {outcome}")

    async def refused(
        _: RunAudit, number: int, call: CallFacts, decision: Any, why: str, **_more: Any
    ) -> None:
        notes.append(f"audit refused {number} {why}")

    async def unsent(_: RunAudit, kind: str, number: int, *__: Any) -> None:
        notes.append(f"audit {kind} {number}")

    return made(RunAudit, calling=calling, called=called, refused=refused, unsent=unsent)


def journal(notes: Notes) -> Any:
    def sent(self: RunJournal, *call: Any, **more: Any) -> Entry:
        notes.append("journal sent")
        return RunJournal.sent(self, *call, **more)

    def settle(self: RunJournal, entry: Entry, outcome: Any, result: Any) -> None:
        notes.append(f"journal {outcome}")
        RunJournal.settle(self, entry, outcome, result)

    return made(RunJournal, sent=sent, settle=settle)


def budget(notes: Notes, *, spent: bool = False) -> Any:
    """Return a budget for every call, or for none."""

    def spend(*_: Any) -> None:
        if spent:
            raise CallBudgetError("too much")
        notes.append("spend")

    return made(RunBudget, spend=spend)


def vault() -> Any:
    """Return a vault that marks what it hides and what it reveals."""

    def marked(mark: str) -> Any:
        return lambda _, server, value: {**value, mark: True}

    idle = property(lambda _: False)
    return made(Vault, idle=idle, hidden=marked("hidden"), reveal=marked("revealed"))


def replay(answer: Mapping[str, Any] | None, *, unknown: bool = False) -> Any:
    """Return a replay with the same answer for every call, or with no known outcome."""

    def answered(*_: Any, **__: Any) -> Any:
        if unknown:
            raise OutcomeUnknownError("no record")
        return answer

    return made(Replay, RunJournal(), answer=answered)


def held_calls(*, refers: bool = False) -> Any:
    """Return a plan that holds every call under the same number."""
    placeholder = Placeholder(held={"number": 1})
    return made(HeldCalls, refers=lambda *_: refers, hold=lambda *_, **__: placeholder)
