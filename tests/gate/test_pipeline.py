"""The gate: what a run was not given it cannot do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.clock import Clock
from bridge.errors import (
    BridgeError,
    CallBudgetError,
    CallDeniedError,
    CallTimeoutError,
    CannotAskError,
    ChannelClosedError,
    LoginFailedError,
    LoginRequiredError,
    ServerLostError,
    ServerStartError,
    ToolCallError,
    UnknownError,
    UpstreamError,
)
from bridge.gate.decision import CallFacts, Outcome, outcome_after, outcome_of
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant, result_size
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.gate.privacy_data import Kind
from bridge.gate.services import GateContext
from bridge.gate.tally import WINDOW, Rates, RunBudget, Tally
from bridge.large_text import LargeText, with_plain_text
from bridge.model import CallCount, Effect, Tool
from bridge.offload import LARGE, estimated_size
from bridge.settings.policy import Budgets, PolicySpec, Privacy, ServerPolicy, ToolPolicy
from tests.audit_rig import FakeClock


async def _answer(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{server}.{tool}"}]}


async def test_a_call_is_counted_with_the_bytes_it_kept_out_of_the_conversation() -> None:
    gate = Gate(Grant(servers=None, calls=10), _answer)
    result = await gate.call("s", "t", {})
    assert gate.calls == 1
    assert gate.result_bytes == result_size(result) > 0


def test_data_without_content_is_counted_as_what_it_is() -> None:
    """Else a server that sends no text would have no budget."""
    data = {"rows": ["x" * 100]}
    assert result_size({"structuredContent": data, "content": []}) > 100
    text = {"type": "text", "text": "y"}
    assert result_size({"structuredContent": data, "content": [text]}) < 100


async def test_a_server_outside_the_grant_is_refused_by_name() -> None:
    gate = Gate(Grant(servers=frozenset({"a"}), calls=10), _answer)
    with pytest.raises(CallDeniedError, match=r"may not use the server 'b'\. It may use: a"):
        await gate.call("b", "t", {})
    assert gate.calls == 0


async def test_calls_that_failed_changed_nothing_and_those_of_unknown_outcome_may_have() -> None:
    async def fail(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": [], "isError": True}

    async def break_off(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    for answer, changing in ((_answer, 1), (fail, 0)):
        gate = Gate(Grant(servers=None, calls=1), answer)
        await gate.call("s", "t", {})
        assert (gate.tally.made["s"], gate.tally.changing) == (1, changing)
    gate = Gate(Grant(servers=None, calls=1), break_off)
    with pytest.raises(ConnectionResetError):
        await gate.call("s", "t", {})
    assert (gate.tally.made["s"], gate.tally.changing) == (1, 1)


async def test_a_resource_is_counted_as_a_call_is() -> None:
    gate = Gate(Grant(servers=frozenset({"a"}), calls=2), _answer)

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return {"contents": [{"uri": "x:y", "text": "t" * 100}]}

    with pytest.raises(CallDeniedError):
        await gate.request("b", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    await gate.request("a", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    assert gate.calls == 1
    assert gate.result_bytes > 100
    with pytest.raises(CallBudgetError):
        await gate.request("a", READ_RESOURCE, {"uri": "x:y"}, read, "contents")


def test_time_counts_once_however_many_calls_are_under_way() -> None:
    clock = FakeClock(0.0)
    tally = Tally(clock)
    with tally.under_way():
        clock.now = 1.0
        with tally.under_way():
            clock.now = 3.0
        assert tally.busy_seconds == 3.0
        clock.now = 4.0
    clock.now = 10.0
    assert tally.busy_seconds == 4.0
    with tally.under_way():
        clock.now = 11.0
    assert tally.busy_seconds == 5.0


def test_kinds_beyond_the_bound_are_counted_together() -> None:
    tally = Tally()
    for number in range(100 + 50):
        tally.count("refused", CallFacts(server="s", tool=f"t{number}"), "deny")
    assert sum(found.count for found in tally.refused) == 100 + 50
    assert len(tally.refused) == 100 + 1
    assert tally.refused[-1] == CallCount(server="", tool="", count=50, why="others")


async def test_calls_take_no_time_while_somebody_is_asked_something() -> None:
    clock = Clock()
    asked, answered = anyio.Event(), anyio.Event()

    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if tool == "ask":
            with clock.stop():
                asked.set()
                await answered.wait()
        return {"content": []}

    gate = Gate(Grant(servers=None, calls=10), call, GateContext(now=clock.now))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.call, "s", "ask", {})
        await asked.wait()
        before = gate.tally.busy_seconds
        await anyio.lowlevel.checkpoint()
        assert gate.tally.busy_seconds == before
        assert clock.stopped_seconds > 0
        answered.set()
    assert gate.tally.made == {"s": 1}


@pytest.mark.parametrize(
    ("effect", "says", "lost"),
    [("read", False, 0), ("write", False, 1), ("destructive", False, 1), (None, True, 0)],
)
async def test_lost_reads_are_certain(effect: Effect | None, says: bool, lost: int) -> None:
    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise ServerLostError("gone", server=server)

    async def define(server: str, tool: str) -> Tool:
        return Tool(server=server, name=tool, annotations={"readOnlyHint": says})

    spec = PolicySpec()
    if effect is not None:
        server = ServerPolicy(servers="s", tools=(ToolPolicy(tools="look", effect=effect),))
        spec = PolicySpec(present=True, defaults={effect: "allow"}, servers=(server,))
    context = GateContext(policy=Policy(spec), define=define)
    gate = Gate(Grant(servers=None, calls=1), call, context)
    with pytest.raises(ServerLostError):
        await gate.call("s", "look", {})
    assert (len(gate.tally.unknown), gate.tally.changing) == (lost, lost)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"content": []}, "ok"),
        ({"content": [], "isError": False}, "ok"),
        ({"content": [], "isError": True}, "tool-error"),
        ({"content": [], "isError": "yes"}, "ok"),
    ],
)
def test_an_answer_is_what_the_server_says_it_is(result: dict[str, object], outcome: str) -> None:
    assert outcome_of(result) == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ToolCallError("m", server="s", rpc_code=-32602), "refused"),
        (ToolCallError("m", server="s", rpc_code=-32601), "refused"),
        (ToolCallError("m", server="s", rpc_code=-32042), "refused"),
        (ToolCallError("m", server="s", rpc_code=-32603), "tool-error"),
        (ToolCallError("m", server="s", rpc_code=0), "tool-error"),
        (ToolCallError("m", server="s", rpc_code=-32000), "tool-error"),
        (ToolCallError("m", server="s", rpc_code=-32602, doubtful=True), "unknown"),
        (CannotAskError("m"), "refused"),
        (ServerStartError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s", doubtful=True), "unknown"),
        (ServerLostError("m", server="s"), "unknown"),
        (ServerLostError("m", server="s", doubtful=False), "not-sent"),
        (CallTimeoutError("m", server="s"), "unknown"),
        (UpstreamError("m", server="s", code="message_too_large"), "unknown"),
        (UpstreamError("m", server="s", doubtful=False, code="message_too_large"), "not-sent"),
        (UpstreamError("m", server="s"), "unknown"),
        (UnknownError("m", code="unknown_server"), "not-sent"),
        (CallDeniedError("m"), "not-sent"),
        (ChannelClosedError("m"), "unknown"),
        (BridgeError("m"), "unknown"),
        (RuntimeError("m"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
)
def test_outcomes_of_errors(error: BaseException, outcome: Outcome) -> None:
    assert outcome_after(error) == outcome


def test_every_error_of_a_server_says_whether_it_leaves_doubt() -> None:
    def below(kind: type[UpstreamError]) -> list[type[UpstreamError]]:
        return [kind, *(one for child in kind.__subclasses__() for one in below(child))]

    certain = {kind for kind in below(UpstreamError) if not kind.doubtful_unless_said}
    starts = {ServerStartError, LoginRequiredError, LoginFailedError}
    assert certain == starts | {ToolCallError, CannotAskError}


@pytest.mark.parametrize(
    ("budgets", "size", "message"),
    [
        (Budgets(run_calls=2), 0, r"all of the 2 calls it may \(budgets.run_calls"),
        (Budgets(server_calls=1), 0, r"all of the 1 calls to 'a' .*budgets.server_calls"),
        (Budgets(run_bytes=100), 5099, r"5,099 bytes, of the 100 .*budgets.run_bytes"),
    ],
)
def test_a_run_has_budgets(budgets: Budgets, size: int, message: str) -> None:
    budget = RunBudget(budgets)
    budget.spend("a")
    budget.took_in(min(size, 99))
    budget.spend("b")
    budget.took_in(max(0, size - 99))
    for _ in range(2):
        with pytest.raises(CallBudgetError, match=message):
            budget.spend("a")
    RunBudget(budgets).spend("a")


def test_a_minute_is_the_last_sixty_seconds_of_all_runs() -> None:
    clock = FakeClock()
    rates = Rates(clock)
    budgets = Budgets(per_minute=(("git*", 2), ("*", 3)))
    RunBudget(budgets, rates).spend("github")
    clock.now += 30
    RunBudget(budgets, rates).spend("github")
    with pytest.raises(CallBudgetError, match=r"the 2 calls a minute that 'github'") as caught:
        RunBudget(budgets, rates).spend("github")
    wait = re.search(r"in (\d+) s", str(caught.value))
    assert wait is not None
    clock.now += int(wait[1]) - 2
    with pytest.raises(CallBudgetError):
        RunBudget(budgets, rates).spend("github")
    clock.now += 2
    RunBudget(budgets, rates).spend("github")
    with pytest.raises(CallBudgetError, match="There is room again in 30 s"):
        RunBudget(budgets, rates).spend("github")


def test_each_server_has_a_minute_of_its_own() -> None:
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(per_minute=(("a", 1), ("*", 2))), rates)
    for server in ("a", "b", "b", "c"):
        budget.spend(server)
    for server in ("a", "b"):
        with pytest.raises(CallBudgetError):
            budget.spend(server)
    budget.spend("c")


def test_a_new_policy_goes_on_counting_where_the_old_one_was() -> None:
    rates = Rates(FakeClock())
    RunBudget(Budgets(), rates).spend("a")
    RunBudget(Budgets(per_minute=(("a", 9),)), rates).spend("a")
    with pytest.raises(CallBudgetError):
        RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


def test_what_one_budget_refuses_no_other_counts() -> None:
    """Or a loop that is refused would use up the minute of others."""
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(run_calls=1, per_minute=(("*", 2),)), rates)
    budget.spend("a")
    for _ in range(5):
        with pytest.raises(CallBudgetError, match="run_calls"):
            budget.spend("a")
    RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


@given(st.integers(1, 4), st.lists(st.floats(0, 40, allow_nan=False), max_size=40))
def test_no_minute_ever_has_more_calls_than_it_may(limit: int, steps: list[float]) -> None:
    clock = FakeClock()
    rates = Rates(clock)
    made: list[float] = []
    for step in steps:
        clock.now += step
        wait = rates.wait("a", limit)
        recent = [at for at in made if at > clock.now - WINDOW - 1]
        if wait:
            assert len(recent) >= limit
            assert wait <= WINDOW + 1
        else:
            made.append(clock.now)
            rates.count("a")
        assert len([at for at in made if at > clock.now - WINDOW]) <= limit


@pytest.mark.parametrize("detect", [(), ("email",)])
async def test_large_texts_pass_the_gate_without_personal_data(detect: tuple[Kind, ...]) -> None:
    large: dict[str, Any] = {"content": [{"type": "text", "text": LargeText([b"x@y", b".org"])}]}

    async def answer(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return large

    context = GateContext(vault=Vault(Privacy(detect=detect)))
    found = await Gate(Grant(servers=None, calls=1), answer, context).call("shop", "mails", {})
    text = found["content"][0]["text"]
    assert isinstance(text, str) is bool(detect)
    assert not detect or "x@y.org" not in str(text)


def test_large_texts_count_their_bytes() -> None:
    pieces = [b"x" * LARGE, "ä".encode()]
    large: dict[str, Any] = {"content": [{"type": "text", "text": LargeText(pieces)}]}
    assert result_size(with_plain_text(large)) == result_size(large) > LARGE
    assert estimated_size(large, LARGE) > LARGE
