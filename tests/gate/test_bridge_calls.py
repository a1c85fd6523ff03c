"""What a program has the bridge itself do is done once, also by its retries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import (
    ApprovalNeededError,
    AuditError,
    CallBudgetError,
    CallDeniedError,
    LibraryError,
    OutcomeUnknownError,
)
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.decision import Decision
from bridge.gate.flow import Flow, FlowState
from bridge.gate.journal import Journals, Replay
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.policy import Policy
from bridge.gate.services import GateContext
from bridge.model import CallCount, Json, RetriedReads
from bridge.settings.policy import FlowRule, PolicySpec


class Notes:
    def __init__(self) -> None:
        self.journals = Journals()
        self.made: list[str] = []
        self.runs = 0
        self.gates: list[Gate] = []

    def run(self, retry_of: str = "", reads: RetriedReads = "replay") -> BridgeCalls:
        self.runs += 1
        name = str(self.runs)
        replay = None
        if retry_of:
            replay = Replay(self.journals.find(retry_of, "me"), reads, run_id=name)
        oversight = GateContext(journal=self.journals.begin(name, "me", replay), replay=replay)
        self.gates.append(Gate(Grant(servers=None, calls=5), _nothing, oversight))
        return BridgeCalls(oversight, self.gates[-1])

    async def answer(self, params: Mapping[str, Json]) -> Json:
        self.made.append(params["key"])
        return len(self.made)


async def _nothing(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {}


async def test_a_retry_gets_the_answers_of_its_first_run_and_does_the_rest() -> None:
    notes = Notes()
    own = notes.run()
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 4
    assert notes.gates[-1].tally.replayed == (
        CallCount(server="runtime", tool="save", count=2),
        CallCount(server="runtime", tool="load", count=1),
    )
    # What is changed after it was read would not be the same change.
    own = notes.run("2", reads="refresh")
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert notes.made == ["a"] * 4


async def test_what_failed_is_done_again_and_what_was_cut_off_is_not() -> None:
    notes = Notes()
    own = notes.run()

    async def fail(params: Mapping[str, Json]) -> Json:
        raise LibraryError("the disk is full")

    with pytest.raises(LibraryError):
        await own.make("save", {"key": "a"}, "write", fail)
    with anyio.CancelScope() as scope:

        async def hang(params: Mapping[str, Json]) -> Json:
            scope.cancel()
            await anyio.sleep_forever()

        await own.make("save", {"key": "b"}, "write", hang)
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    with pytest.raises(OutcomeUnknownError, match="runtime.save"):
        await own.make("save", {"key": "b"}, "write", notes.answer)
    assert [count.tool for count in notes.gates[-1].tally.unknown] == ["save"]
    assert notes.made == ["a"]


def _own(calls: int = 5, **parts: Any) -> tuple[BridgeCalls, Gate]:
    oversight = GateContext(**parts)
    gate = Gate(Grant(servers=None, calls=calls), _nothing, oversight)
    return BridgeCalls(oversight, gate), gate


@pytest.mark.guarantee("kept-through-the-gate")
async def test_what_changes_something_is_counted_and_nothing_is_changed_unrecorded(
    tmp_path: Path,
) -> None:
    (tmp_path / "audit").write_text("in the way")
    own, _ = _own(audit=RunAudit(AuditLog(tmp_path / "audit"), "r"))
    with pytest.raises(AuditError):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")
    own, _ = _own(calls=1)
    async with own.permitted("save_memory", {"key": "a"}, "write"):
        pass
    with pytest.raises(CallBudgetError):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")


async def test_a_flow_rule_may_be_about_what_is_kept() -> None:
    rule = FlowRule(
        name="mail is not kept",
        action="deny",
        after=frozenset({"private-data"}),
        to_servers=("runtime",),
    )
    state = FlowState()
    policy = Policy(PolicySpec(present=True, flows=(rule,)))
    own, gate = _own(policy=policy, flow=Flow((rule,)), flow_state=state)
    async with own.permitted("save_memory", {"key": "a"}, "write"):
        pass
    state.add_call("mail", "read", frozenset({"private-data"}))
    with pytest.raises(CallDeniedError, match=r"runtime.save_memory is not allowed.*mail.read"):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")
    assert [refused.tool for refused in gate.tally.refused] == ["save_memory"]


async def test_what_has_to_be_asked_is_asked_whatever_the_policy_allows() -> None:
    own, _ = _own()
    ask = Decision(action="ask", rule="skill 'a' is there", reason="it is a person's")
    with pytest.raises(ApprovalNeededError, match="it is a person's") as caught:
        async with own.permitted("delete_skill", {"name": "a"}, "destructive", ask, "Leave it."):
            pytest.fail("it was done")
    assert "Leave it." in str(caught.value)


@pytest.mark.guarantee("kept-through-the-gate")
async def test_no_server_can_be_called_as_the_bridge_itself() -> None:
    _, gate = _own()
    with pytest.raises(CallDeniedError, match="'runtime' is the bridge itself"):
        await gate.call("runtime", "save_memory", {})
