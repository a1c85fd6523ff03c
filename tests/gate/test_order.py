"""The order in which a gate asks, records and calls; each part is a fake that takes notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from bridge.errors import (
    ApprovalRefusedError,
    AuditError,
    CallBudgetError,
    CallDeniedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ServerLostError,
)
from bridge.gate.approval import Approval, Approver
from bridge.gate.audit import RunAudit
from bridge.gate.audit.records import CallKind
from bridge.gate.budget import RunBudget
from bridge.gate.context import GateContext
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import Flow, FlowState
from bridge.gate.journal import Entry, Replay, RunJournal
from bridge.gate.outcomes import Outcome
from bridge.gate.pins import Pins
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant
from bridge.gate.plans import Held, Holding
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Action, Effect, Json, Tool
from bridge.settings.policy import PolicySpec

Notes = list[str]

TOOL = Tool(server="shop", name="buy")


class NotedPolicy(Policy):
    """One that always says the same."""

    def __init__(self, notes: Notes, action: Action = "allow", effect: Effect = "write") -> None:
        super().__init__(PolicySpec(present=True))
        self._notes = notes
        self._decision = Decision(action=action, rule="rule 'x'", effect=effect)

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        self._notes.append(f"decide {dict(call.arguments)}")
        return replace(self._decision, effect=effect or self._decision.effect)


class NotedFlow(Flow):
    def __init__(self, notes: Notes, action: Action | None = None) -> None:
        super().__init__()
        self._notes = notes
        self._action = action

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        if self._action is None:
            return None
        return Decision(action=self._action, rule="flow rule 'y'")


class NotedState(FlowState):
    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def note(self, server: str, tool: str, labels: frozenset[str]) -> None:
        self._notes.append("flow note")


class NotedPins(Pins):
    def __init__(self, notes: Notes, change: str = "") -> None:
        super().__init__()
        self._notes = notes
        self._change = change

    def change(self, tool: Tool, server_definition: str = "") -> str:
        return self._change

    async def keep(self, tool: Tool, server_definition: str = "", *, anew: bool = False) -> None:
        self._notes.append("pin for good" if anew else "pin")


class NotedApprover(Approver):
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


class NotedAudit(RunAudit):
    def __init__(self, notes: Notes, *, full: bool = False) -> None:
        super().__init__()
        self._notes = notes
        self._full = full

    async def calling(
        self, number: int, call: CallFacts, decision: Decision, approval: Approval | None
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


class NotedJournal(RunJournal):
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


class NotedBudget(RunBudget):
    def __init__(self, notes: Notes, *, spent: bool = False) -> None:
        super().__init__()
        self._notes = notes
        self._spent = spent

    def spend(self, server: str) -> None:
        if self._spent:
            message = "too much"
            raise CallBudgetError(message)
        self._notes.append("spend")


class NotedVault(Vault):
    @property
    def idle(self) -> bool:
        return False

    def hide(self, server: str, value: dict[str, Json]) -> dict[str, Json]:
        return {**value, "hidden": True}

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        return {**arguments, "revealed": True}


class NotedReplay(Replay):
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


class NotedHolding(Holding):
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
    ) -> Held:
        return Held(held={"number": 1})


def gate(notes: Notes, *, answer: BaseException | None = None, **parts: Any) -> Gate:
    """Return one whose parts write down when they are asked."""

    async def call_tool(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
        notes.append(f"call {server}.{tool} {dict(arguments)}")
        if answer is not None:
            raise answer
        return {"content": [{"type": "text", "text": "done"}]}

    async def define(server: str, tool: str) -> Tool | None:
        notes.append("define")
        return TOOL

    given: dict[str, Any] = {
        "define": define,
        "policy": NotedPolicy(notes),
        "flow": NotedFlow(notes),
        "flow_state": NotedState(notes),
        "budget": NotedBudget(notes),
        "pins": NotedPins(notes),
        "approver": NotedApprover(notes),
        "audit": NotedAudit(notes),
        "journal": NotedJournal(notes),
        **parts,
    }
    return Gate(Grant(servers=None, calls=100), call_tool, GateContext(**given))


async def test_a_call_is_recorded_before_it_goes_out_and_after_it_came_back() -> None:
    notes: Notes = []
    result = await gate(notes).call("shop", "buy", {"n": 1})
    assert result == {"content": [{"type": "text", "text": "done"}]}
    assert notes == [
        "define",
        "decide {'n': 1}",
        "spend",
        "flow note",
        "pin",
        "audit calling 1 allow {'n': 1}",
        "journal sent",
        "call shop.buy {'n': 1}",
        "journal ok",
        "audit called 1 ok",
    ]


async def test_the_policy_and_the_server_see_what_the_log_and_the_program_do_not() -> None:
    notes: Notes = []
    result = await gate(notes, vault=NotedVault()).call("shop", "buy", {"n": 1})
    assert result["hidden"] is True
    assert "decide {'n': 1, 'revealed': True}" in notes
    assert "call shop.buy {'n': 1, 'revealed': True}" in notes
    assert "audit calling 1 allow {'n': 1}" in notes


async def test_a_denied_call_is_recorded_and_not_made() -> None:
    notes: Notes = []
    denying = gate(notes, policy=NotedPolicy(notes, "deny"))
    with pytest.raises(CallDeniedError, match=r"shop\.buy is not allowed \(rule 'x'\)"):
        await denying.call("shop", "buy", {})
    assert notes[2:] == ["audit refused 1 call_denied"]
    assert [(found.count, found.why) for found in denying.tally.refused] == [(1, "deny: rule 'x'")]


async def test_a_tool_that_its_server_does_not_list_is_denied_where_there_is_a_policy() -> None:
    """Some servers take "BUY" for "buy", which no rule would know."""
    notes: Notes = []

    async def define(server: str, tool: str) -> Tool | None:
        return TOOL if tool == "buy" else None

    listing = gate(notes, define=define, lists=lambda server: True)
    await listing.call("shop", "buy", {})
    with pytest.raises(CallDeniedError, match="unlisted tool: shop lists no such tool"):
        await listing.call("shop", "BUY", {})
    unknown = gate(notes, define=define)
    await unknown.call("shop", "BUY", {})


async def test_every_reason_to_ask_is_in_one_question() -> None:
    notes: Notes = []
    asking = gate(notes, policy=NotedPolicy(notes, "ask"), flow=NotedFlow(notes, "ask"))
    await asking.call("shop", "buy", {})
    assert notes[2] == "ask [\"rule 'x'\", \"flow rule 'y'\"]"
    assert "audit calling 1 ask for run {}" in notes


async def test_a_rule_that_allows_does_not_outweigh_a_flow_rule_that_denies() -> None:
    notes: Notes = []
    with pytest.raises(CallDeniedError, match="flow rule 'y'"):
        await gate(notes, flow=NotedFlow(notes, "deny")).call("shop", "buy", {})
    assert not any(note.startswith("call ") for note in notes)


async def test_an_allowed_tool_that_has_changed_is_asked_about() -> None:
    notes: Notes = []
    await gate(notes, pins=NotedPins(notes, "other words")).call("shop", "buy", {})
    assert "ask ['changed tool']" in notes


async def test_a_person_s_no_is_recorded_and_nothing_is_made() -> None:
    notes: Notes = []
    asking = gate(
        notes, policy=NotedPolicy(notes, "ask"), approver=NotedApprover(notes, says=False)
    )
    with pytest.raises(ApprovalRefusedError):
        await asking.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 approval_refused"
    assert asking.calls == 0


async def test_a_server_that_the_run_was_not_given_is_recorded_as_refused() -> None:
    notes: Notes = []

    async def call_tool(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
        raise AssertionError

    seen = GateContext(audit=NotedAudit(notes))
    narrow = Gate(Grant(servers=frozenset({"a"}), calls=1), call_tool, seen)
    with pytest.raises(CallDeniedError):
        await narrow.call("b", "t", {})
    assert notes == ["audit refused 1 call_denied"]
    # And it counts, so that nobody can fill a disk with what is refused.
    with pytest.raises(CallBudgetError):
        await narrow.call("b", "t", {})
    assert notes == ["audit refused 1 call_denied"]


async def test_a_budget_that_is_used_up_refuses_after_approval_and_before_the_log() -> None:
    """And is told as that: the policy, which allows the call, is no reason."""
    notes: Notes = []
    poor = gate(notes, budget=NotedBudget(notes, spent=True))
    with pytest.raises(CallBudgetError):
        await poor.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 call_budget"
    assert [found.why for found in poor.tally.refused] == ["budget"]


async def test_a_call_that_cannot_be_recorded_is_not_made() -> None:
    notes: Notes = []
    full = gate(notes, audit=NotedAudit(notes, full=True))
    with pytest.raises(AuditError):
        await full.call("shop", "buy", {})
    assert not any(note.startswith(("call ", "journal")) for note in notes)
    assert [found.why for found in full.tally.refused] == ["it could not be recorded"]


async def test_a_call_without_an_answer_is_unknown_everywhere() -> None:
    notes: Notes = []
    lost = gate(notes, answer=ServerLostError("gone", server="shop"))
    with pytest.raises(ServerLostError):
        await lost.call("shop", "buy", {})
    assert notes[-2:] == ["journal unknown", "audit called 1 unknown"]
    assert [found.count for found in lost.tally.unknown] == [1]


async def test_a_cancelled_call_is_recorded_as_unknown() -> None:
    notes: Notes = []
    started = anyio.Event()

    async def wait(params: Mapping[str, Any]) -> dict[str, Any]:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    waiting = gate(notes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.obtain, "shop", READ_RESOURCE, {"uri": "x:y"}, wait, "contents")
        await started.wait()
        tasks.cancel_scope.cancel()
    assert notes[-2:] == ["journal unknown", "audit called 1 unknown"]


async def test_a_plan_holds_what_changes_something_and_makes_what_reads() -> None:
    notes: Notes = []
    planning = gate(notes, policy=NotedPolicy(notes, "ask"), holding=NotedHolding())
    assert await planning.call("shop", "buy", {}) == {"held": {"number": 1}}
    assert notes[-1] == "audit held 1"
    assert not any(note.startswith(("ask", "call")) for note in notes)
    notes.clear()
    reading = gate(notes, policy=NotedPolicy(notes, effect="read"), holding=NotedHolding())
    await reading.call("shop", "look", {})
    assert "call shop.look {}" in notes


async def test_a_plan_denies_as_a_run_does() -> None:
    notes: Notes = []
    planning = gate(notes, policy=NotedPolicy(notes, "deny"), holding=NotedHolding())
    with pytest.raises(CallDeniedError):
        await planning.call("shop", "buy", {})


async def test_a_read_cannot_use_what_a_plan_has_not_done() -> None:
    notes: Notes = []
    reading = gate(
        notes, policy=NotedPolicy(notes, effect="read"), holding=NotedHolding(refers=True)
    )
    with pytest.raises(InvalidRequestError, match="held"):
        await reading.call("shop", "look", {})
    assert not any(note.startswith("call") for note in notes)


async def test_a_replayed_call_is_not_made_nor_asked_about_and_counts_for_the_flow() -> None:
    notes: Notes = []
    retried = gate(
        notes,
        policy=NotedPolicy(notes, "ask"),
        replay=NotedReplay({"content": []}),
        vault=NotedVault(),
    )
    assert await retried.call("shop", "buy", {}) == {"content": [], "hidden": True}
    assert notes[2:] == ["flow note", "journal sent", "journal ok", "audit replayed 1"]
    assert [found.count for found in retried.tally.replayed] == [1]
    assert retried.calls == 0


async def test_a_call_that_may_have_happened_is_not_made_again() -> None:
    notes: Notes = []
    retried = gate(notes, replay=NotedReplay(None, unknown=True))
    with pytest.raises(OutcomeUnknownError):
        await retried.call("shop", "buy", {})
    assert notes[-1] == "audit refused 1 outcome_unknown"
    assert [found.why for found in retried.tally.unknown] == ["not repeated"]


async def test_a_resource_is_judged_as_a_read_whatever_the_policy_says_of_its_server() -> None:
    notes: Notes = []

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return {"contents": []}

    planning = gate(notes, holding=NotedHolding())
    await planning.obtain("shop", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    assert "audit called 1 ok" in notes
