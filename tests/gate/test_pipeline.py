"""The gate: what a run may do, and the order in which it decides, asks, records and calls."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import (
    AuditError,
    BridgeError,
    CallDeniedError,
    CallTimeoutError,
    CannotAskError,
    ChannelClosedError,
    LoginFailedError,
    LoginRequiredError,
    ServerStartError,
    ToolCallError,
    UnknownError,
    UpstreamError,
)
from bridge.event_loop import LARGE, Clock, LargeText, estimated_size, with_plain_text
from bridge.gate.approval import Approver
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.held_calls import HeldCalls
from bridge.gate.journal import Outcome, RunJournal, outcome_after, outcome_of
from bridge.gate.pins import Pins
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant, Tally, result_size
from bridge.gate.policy import CHANGED, CallFacts, Flow, Policy
from bridge.gate.privacy import Vault, Vaults
from bridge.gate.privacy_data import Kind
from bridge.gate.services import WINDOW, GateContext, Rates, RunBudget
from bridge.model import CallCount, Effect, Json, Tool
from bridge.settings.policy import (
    Budgets,
    PolicySpec,
    Privacy,
    ServerPolicy,
    ToolPolicy,
    parse_policy,
)
from bridge.store import Store
from tests.audit_rig import FakeClock, records
from tests.raised import raises_code


async def _answer(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{server}.{tool}"}]}


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


async def test_failed_calls_change_nothing_and_unknown_ones_may() -> None:
    async def fail(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": [], "isError": True}

    async def break_off(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    for answer, changing in ((_answer, 1), (fail, 0), (break_off, 1)):
        gate = Gate(Grant(servers=None, calls=1), answer)
        with suppress(ConnectionResetError):
            await gate.call("s", "t", {})
        assert (gate.tally.made["s"], gate.tally.changing) == (1, changing)


async def test_a_resource_is_counted_as_a_call_is() -> None:
    gate = Gate(Grant(servers=frozenset({"a"}), calls=2), _answer)

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return {"contents": [{"uri": "x:y", "text": "t" * 100}]}

    with pytest.raises(CallDeniedError):
        await gate.request("b", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    await gate.request("a", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    assert gate.calls == 1
    assert gate.result_bytes > 100
    with raises_code("call_budget"):
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
    assert sum(found.count for found in tally.counts("refused")) == 100 + 50
    assert len(tally.counts("refused")) == 100 + 1
    assert tally.counts("refused")[-1] == CallCount(server="", tool="", count=50, why="others")


async def test_calls_take_no_time_while_the_user_is_asked() -> None:
    clock = Clock()

    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        with clock.stop():
            before = gate.tally.busy_seconds
            await anyio.lowlevel.checkpoint()
            assert gate.tally.busy_seconds == before
        return {"content": []}

    gate = Gate(Grant(servers=None, calls=10), call, GateContext(now=clock.now))
    await gate.call("s", "ask", {})
    assert clock.stopped_seconds > 0


@pytest.mark.parametrize(
    ("effect", "says", "lost"),
    [("read", False, 0), ("write", False, 1), ("destructive", False, 1), (None, True, 0)],
)
async def test_lost_reads_are_certain(effect: Effect | None, says: bool, lost: int) -> None:
    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise UpstreamError("gone", server=server, code="server_lost")

    async def define(server: str, tool: str) -> Tool:
        return Tool(server=server, name=tool, annotations={"readOnlyHint": says})

    spec = PolicySpec()
    if effect is not None:
        server = ServerPolicy(servers="s", tools=(ToolPolicy(tools="look", effect=effect),))
        spec = PolicySpec(present=True, defaults={effect: "allow"}, servers=(server,))
    context = GateContext(policy=Policy(spec), define=define)
    gate = Gate(Grant(servers=None, calls=1), call, context)
    with raises_code("server_lost"):
        await gate.call("s", "look", {})
    assert (len(gate.tally.counts("unknown")), gate.tally.changing) == (lost, lost)


def test_only_a_true_isError_is_an_error_of_the_tool() -> None:
    outcomes = [outcome_of({"isError": said}) for said in (None, False, "yes", True)]
    assert outcomes == ["ok", "ok", "ok", "tool-error"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ToolCallError("m", server="s", rpc_code=-32602), "refused"),
        (ToolCallError("m", server="s", rpc_code=-32042), "refused"),
        (ToolCallError("m", server="s", rpc_code=-32603), "tool-error"),
        (ToolCallError("m", server="s", rpc_code=-32000), "tool-error"),
        (ToolCallError("m", server="s", rpc_code=-32602, doubtful=True), "unknown"),
        (CannotAskError("m"), "refused"),
        (ServerStartError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s", doubtful=True), "unknown"),
        (UpstreamError("m", server="s", code="server_lost"), "unknown"),
        (UpstreamError("m", server="s", code="server_lost", doubtful=False), "not-sent"),
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
    budget.bytes += min(size, 99)
    budget.spend("b")
    budget.bytes += max(0, size - 99)
    for _ in range(2):
        with raises_code("call_budget", match=message):
            budget.spend("a")
    RunBudget(budgets).spend("a")


def test_a_minute_is_the_last_sixty_seconds_of_all_runs() -> None:
    clock = FakeClock()
    rates = Rates(clock)
    budgets = Budgets(per_minute=(("git*", 2), ("*", 3)))
    RunBudget(budgets, rates).spend("github")
    clock.now += 30
    RunBudget(budgets, rates).spend("github")
    with raises_code("call_budget", match=r"the 2 calls a minute that 'github'") as caught:
        RunBudget(budgets, rates).spend("github")
    wait = re.search(r"in (\d+) s", str(caught.value))
    assert wait is not None
    clock.now += int(wait[1]) - 2
    with raises_code("call_budget"):
        RunBudget(budgets, rates).spend("github")
    clock.now += 2
    RunBudget(budgets, rates).spend("github")
    with raises_code("call_budget", match="There is room again in 30 s"):
        RunBudget(budgets, rates).spend("github")


def test_each_server_has_a_minute_of_its_own() -> None:
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(per_minute=(("a", 1), ("*", 2))), rates)
    for server in ("a", "b", "b", "c"):
        budget.spend(server)
    for server in ("a", "b"):
        with raises_code("call_budget"):
            budget.spend(server)
    budget.spend("c")


def test_a_new_policy_continues_counting_where_the_old_one_was() -> None:
    rates = Rates(FakeClock())
    RunBudget(Budgets(), rates).spend("a")
    RunBudget(Budgets(per_minute=(("a", 9),)), rates).spend("a")
    with raises_code("call_budget"):
        RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


def test_what_one_budget_refuses_no_other_counts() -> None:
    """Or a loop that is refused would use up the minute of others."""
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(run_calls=1, per_minute=(("*", 2),)), rates)
    budget.spend("a")
    for _ in range(5):
        with raises_code("call_budget", match="run_calls"):
            budget.spend("a")
    RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


@given(st.integers(1, 4), st.lists(st.floats(0, 40, allow_nan=False), max_size=40))
def test_no_minute_ever_has_more_calls_than_it_may(limit: int, steps: list[float]) -> None:
    clock = FakeClock()
    rates = Rates(clock)
    made: list[float] = []
    for step in steps:
        clock.now += step
        wait = rates.take("a", limit)
        recent = [at for at in made if at > clock.now - WINDOW - 1]
        if wait:
            assert len(recent) >= limit
            assert wait <= WINDOW + 1
        else:
            made.append(clock.now)
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


TOOL = Tool(server="shop", name="buy")
DONE = {"content": [{"type": "text", "text": "done"}]}

OPEN = 'defaults = { untrusted = "allow" }\n'
RULE = '[[rules]]\nname = "x"\ntool = "buy"\naction = "%s"\n'
FLOW = '[[flow]]\nname = "y"\naction = "%s"\nafter_servers = ["shop"]\nto_servers = ["shop"]\n'


class Shop:
    """A gate with a policy, an audit log, a person, and a server."""

    def __init__(self, place: Path, policy: str = OPEN, **parts: Any) -> None:
        self.got: list[Mapping[str, Json]] = []
        self.asked: list[str] = []
        self.answer = "run"
        self.place = place / "audit"
        spec = parse_policy(tomllib.loads(policy), "here")
        self.journal = RunJournal("r1")
        self.context = GateContext(
            define=self.define,
            policy=Policy(spec),
            flow=Flow(spec.flows),
            approver=Approver(self.ask, owner="me"),
            audit=RunAudit(AuditLog(self.place), "r1"),
            journal=self.journal,
        )
        self.context = replace(self.context, **parts)
        self.gate = Gate(Grant(servers=frozenset({"shop"}), calls=100), self.make, self.context)

    async def define(self, server: str, tool: str) -> Tool | None:
        return TOOL if tool == "buy" else None

    async def ask(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        self.asked.append(str(params["message"]))
        return {"action": "accept", "content": {"decision": self.answer}}

    async def make(self, server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        self.got.append(arguments)
        return DONE

    async def buy(self, tool: str = "buy", **arguments: Json) -> dict[str, Json]:
        return await self.gate.call("shop", tool, arguments)

    async def assert_refused(self, code: str, match: str = ".", **arguments: Json) -> None:
        with raises_code(code, match=match):
            await self.buy(**arguments)
        assert self.got == []
        assert records(self.place)[-1]["why"] == code

    def outcomes(self) -> list[str]:
        return [entry.outcome for entry in self.journal.entries()]


async def test_the_server_sees_what_the_log_and_the_program_do_not(tmp_path: Path) -> None:
    privacy = '[privacy]\ndetect = ["email"]\nreveal_to = ["shop"]\n'
    spec = parse_policy(tomllib.loads(OPEN + privacy), "here")
    vault = Vaults().of("me", spec.privacy)
    token = vault.hide("shop", "ann@example.org")
    shop = Shop(tmp_path, vault=vault)
    await shop.buy(to=token)
    assert shop.got == [{"to": "ann@example.org"}]
    assert records(shop.place)[0]["arguments"] == {"to": token}


async def fail(*_: object) -> Any:
    raise ServerStartError("no mail of Ada's today", server="shop")


async def list_none() -> tuple[dict[str, Json], ...]:
    return ()


async def note_error(gate: Gate) -> None:
    async with gate.noting_errors("shop"):
        await fail()


@pytest.mark.guarantee("kept-names")
@pytest.mark.parametrize(
    "request_something",
    [
        lambda gate: gate.call("shop", "t", {}),
        lambda gate: gate.list_offers("shop", READ_RESOURCE, fail),
        lambda gate: gate.list_offers("shop", READ_RESOURCE, list_none),
        note_error,
    ],
)
async def test_an_error_or_an_empty_list_counts_as_read(
    tmp_path: Path, request_something: Callable[[Gate], Awaitable[object]]
) -> None:
    shop = Shop(tmp_path, f'{OPEN}[servers.shop]\nlabels = ["private-data"]\n', define=fail)
    with suppress(ServerStartError):
        await request_something(shop.gate)
    assert shop.context.flow_state.read(["private-data"])


async def test_what_is_denied_is_recorded_and_not_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path, OPEN + RULE % "deny")
    await shop.assert_refused("call_denied", r"shop\.buy is not allowed \(rule 'x'\)")
    assert [found.why for found in shop.gate.tally.counts("refused")] == ["deny: rule 'x'"]


async def test_a_policy_denies_unlisted_tools(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lists=lambda server: True)
    await shop.assert_refused("call_denied", "unlisted tool: shop lists no such tool", tool="BUY")
    await Shop(tmp_path).buy("BUY")


async def test_every_reason_to_ask_is_in_one_question(tmp_path: Path) -> None:
    shop = Shop(tmp_path, OPEN + RULE % "ask" + FLOW % "ask")
    shop.context.flow_state.add_call("shop", "look", frozenset())
    await shop.buy()
    [asked] = shop.asked
    assert "rule 'x'" in asked
    assert "flow rule 'y'" in asked
    assert records(shop.place)[0]["approval"]["holds"] == "run"


async def test_a_rule_that_allows_does_not_outweigh_a_flow_rule_that_denies(tmp_path: Path) -> None:
    shop = Shop(tmp_path, OPEN + RULE % "allow" + FLOW % "deny")
    shop.context.flow_state.add_call("shop", "look", frozenset())
    await shop.assert_refused("call_denied", "flow rule 'y'")


async def test_a_changed_tool_is_asked_about(tmp_path: Path) -> None:
    pins = Pins(Store(tmp_path / "state"))
    await pins.keep(replace(TOOL, output_schema={"type": "null"}))
    shop = Shop(tmp_path, pins=pins, approver=Approver())
    await shop.assert_refused("approval_needed", CHANGED)
    definitions = [TOOL, replace(TOOL, title="Buy all")]

    async def define(server: str, tool: str) -> Tool:
        return definitions.pop(0)

    shop = Shop(tmp_path, OPEN + RULE % "ask", define=define)
    await shop.assert_refused(
        "approval_refused", "was changed by its server while a person was asked"
    )


async def test_a_persons_no_is_recorded_and_nothing_is_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path, OPEN + RULE % "ask")
    shop.answer = "no"
    await shop.assert_refused("approval_refused")


async def test_a_used_budget_refuses_after_approval(tmp_path: Path) -> None:
    policy = parse_policy(tomllib.loads("budgets = { run_calls = 1 }"), "here")
    budget = RunBudget(policy.budgets)
    budget.spend("shop")
    shop = Shop(tmp_path, OPEN + RULE % "ask", budget=budget)
    await shop.assert_refused("call_budget")
    assert len(shop.asked) == 1
    assert [found.why for found in shop.gate.tally.counts("refused")] == ["budget"]


async def test_a_call_that_cannot_be_recorded_is_not_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.place.mkdir()
    shop.place.chmod(0o777)
    with pytest.raises(AuditError):
        await shop.buy()
    assert (shop.got, shop.outcomes()) == ([], [])
    assert [found.why for found in shop.gate.tally.counts("refused")] == [
        "it could not be recorded"
    ]


async def test_a_cancelled_request_is_recorded_as_unknown(tmp_path: Path) -> None:
    shop, started = Shop(tmp_path), anyio.Event()

    async def wait(params: Mapping[str, Any]) -> dict[str, Any]:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shop.gate.request, "shop", READ_RESOURCE, {"uri": "x:y"}, wait, "contents")
        await started.wait()
        tasks.cancel_scope.cancel()
    assert shop.outcomes() == ["unknown"]
    assert records(shop.place)[-1]["outcome"] == "unknown"


async def test_in_a_plan_a_request_that_is_no_tool_call_reads_whatever_the_policy_says(
    tmp_path: Path,
) -> None:
    denying = Shop(tmp_path, OPEN + RULE % "deny", held_calls=HeldCalls())
    contents: dict[str, Any] = {"contents": []}

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return contents

    assert await denying.gate.request("shop", READ_RESOURCE, {}, read, "contents") == contents
