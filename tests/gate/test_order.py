"""The order in which a gate decides, asks, records and calls, with its real parts."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    BridgeError,
    CallBudgetError,
    CallDeniedError,
    OutcomeUnknownError,
    ServerLostError,
    ServerStartError,
)
from bridge.gate.approval import Approver
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.decision import CHANGED, CallFacts
from bridge.gate.flow import Flow
from bridge.gate.held_calls import HeldCalls
from bridge.gate.journal import Replay, RunJournal
from bridge.gate.pins import Pins
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vaults
from bridge.gate.services import GateContext
from bridge.gate.tally import RunBudget
from bridge.model import Json, Tool
from bridge.settings.policy import parse_policy
from bridge.store import Store
from tests.audit_rig import kinds, records
from tests.raised import raises_code

TOOL = Tool(server="shop", name="buy")
DONE = {"content": [{"type": "text", "text": "done"}]}

OPEN = 'defaults = { untrusted = "allow" }\n'
RULE = '[[rules]]\nname = "x"\ntool = "buy"\naction = "%s"\n'
READS = '[servers.shop.tools.buy]\neffect = "read"\n'
FLOW = '[[flow]]\nname = "y"\naction = "%s"\nafter_servers = ["shop"]\nto_servers = ["shop"]\n'


class Shop:
    """A gate with a policy, an audit log, and a server that says what was on record before it.

    Attributes:
        got: The arguments of each call that was made.
        before: The kinds of records at the time of each of them.
        asked: The questions to a person.
    """

    def __init__(self, place: Path, policy: str = OPEN, **parts: Any) -> None:
        self.got: list[Mapping[str, Json]] = []
        self.before: list[list[str]] = []
        self.asked: list[str] = []
        self.answer = "run"
        self.error: BaseException | None = None
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
        self.before.append(kinds(self.place))
        if self.error is not None:
            raise self.error
        return DONE

    async def buy(self, tool: str = "buy", **arguments: Json) -> dict[str, Json]:
        return await self.gate.call("shop", tool, arguments)

    async def refused(self, error: type[BridgeError], match: str = ".", **arguments: Json) -> None:
        with pytest.raises(error, match=match):
            await self.buy(**arguments)
        assert self.got == []
        assert records(self.place)[-1]["why"] == error.code

    def outcomes(self) -> list[str]:
        return [entry.outcome for entry in self.journal.entries()]


async def test_a_call_is_recorded_before_it_goes_out_and_after_it_came_back(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert await shop.buy(n=1) == DONE
    assert (shop.got, shop.before) == ([{"n": 1}], [["call"]])
    assert kinds(shop.place) == ["call", "outcome"]
    assert shop.outcomes() == ["ok"]
    assert shop.context.flow_state.has_used("shop".__eq__)


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
    await shop.refused(CallDeniedError, r"shop\.buy is not allowed \(rule 'x'\)")
    assert [found.why for found in shop.gate.tally.refused] == ["deny: rule 'x'"]


async def test_a_policy_denies_unlisted_tools(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lists=lambda server: True)
    await shop.refused(CallDeniedError, "unlisted tool: shop lists no such tool", tool="BUY")
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
    await shop.refused(CallDeniedError, "flow rule 'y'")


async def test_a_changed_tool_is_asked_about(tmp_path: Path) -> None:
    pins = Pins(Store(tmp_path / "state"))
    await pins.keep(replace(TOOL, output_schema={"type": "null"}))
    shop = Shop(tmp_path, pins=pins, approver=Approver())
    await shop.refused(ApprovalNeededError, CHANGED)
    definitions = [TOOL, replace(TOOL, title="Buy all")]

    async def define(server: str, tool: str) -> Tool:
        return definitions.pop(0)

    shop = Shop(tmp_path, OPEN + RULE % "ask", define=define)
    await shop.refused(ApprovalRefusedError, "was changed by its server while a person was asked")


async def test_a_persons_no_is_recorded_and_nothing_is_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path, OPEN + RULE % "ask")
    shop.answer = "no"
    await shop.refused(ApprovalRefusedError)


async def test_a_used_budget_refuses_after_approval(tmp_path: Path) -> None:
    policy = parse_policy(tomllib.loads("budgets = { run_calls = 1 }"), "here")
    budget = RunBudget(policy.budgets)
    budget.spend("shop")
    shop = Shop(tmp_path, OPEN + RULE % "ask", budget=budget)
    await shop.refused(CallBudgetError)
    assert len(shop.asked) == 1
    assert [found.why for found in shop.gate.tally.refused] == ["budget"]


async def test_a_call_that_cannot_be_recorded_is_not_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.place.mkdir()
    shop.place.chmod(0o777)
    with pytest.raises(AuditError):
        await shop.buy()
    assert (shop.got, shop.outcomes()) == ([], [])
    assert [found.why for found in shop.gate.tally.refused] == ["it could not be recorded"]


async def test_a_call_without_an_answer_is_unknown_everywhere(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.error = ServerLostError("gone", server="shop")
    with pytest.raises(ServerLostError):
        await shop.buy()
    assert shop.outcomes() == ["unknown"]
    assert records(shop.place)[-1]["outcome"] == "unknown"
    assert [found.count for found in shop.gate.tally.unknown] == [1]


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


async def test_a_plan_holds_what_changes_something_and_makes_what_reads(tmp_path: Path) -> None:
    held = HeldCalls()
    shop = Shop(tmp_path, OPEN + RULE % "ask", held_calls=held)
    placeholder = (await shop.buy())["held"]
    assert (placeholder["number"], shop.got, shop.asked) == (1, [], [])
    assert kinds(shop.place) == ["held"]
    reading = Shop(tmp_path, 'defaults = { read = "allow" }\n' + READS, held_calls=held)
    assert await reading.buy() == DONE
    with raises_code("held_result", match="held call is going to return"):
        await reading.buy(a=f"HELDRESULT{held.plan}")
    denying = Shop(tmp_path, OPEN + RULE % "deny", held_calls=held)
    await denying.refused(CallDeniedError)
    # A request that is not a tool call reads, whatever the policy says of its server.
    contents: dict[str, Any] = {"contents": []}

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return contents

    assert await denying.gate.request("shop", READ_RESOURCE, {}, read, "contents") == contents


async def test_a_replayed_call_counts_for_the_flow(tmp_path: Path) -> None:
    earlier = RunJournal("r0")
    one, two = (CallFacts(server="shop", tool="buy", arguments={"n": n}) for n in (1, 2))
    earlier.settle(earlier.sent(one, "write"), "ok", DONE)
    earlier.sent(two, "write")
    shop = Shop(tmp_path, OPEN + RULE % "ask", replay=Replay(earlier))
    assert await shop.buy(n=1) == DONE
    assert kinds(shop.place) == ["replayed"]
    assert shop.context.flow_state.has_used("shop".__eq__)
    assert shop.outcomes() == ["ok"]
    await shop.refused(OutcomeUnknownError, n=2)
    assert (shop.gate.calls, shop.asked) == (0, [])
    assert [found.why for found in shop.gate.tally.unknown] == ["not repeated"]
