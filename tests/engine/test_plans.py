"""Plans from the run that makes one to the calls that its application makes."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.engine import Engine, open_engine
from bridge.engine.applying import Applying
from bridge.engine.performing import Times
from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    UnknownPlanError,
)
from bridge.gate.audit import AuditLog
from bridge.model import ApplyRequest, Json, Plan, RunRequest, RunResult, ServerSpec
from bridge.render.structured import structured
from bridge.render.text import compact
from bridge.settings import Settings, load
from tests.engine_rig import ListFinder, workshop
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient
from tests.recorder_rig import recorded, recorder, tools_recorded
from tests.waiting import until

WRITES_ASK = """
[policy]
[policy.servers.log]
trust = true
"""

APPROVED = {"action": "accept", "content": {"decision": "apply"}}


async def approve(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say yes to a plan."""
    return APPROVED


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the recorder writes its calls to."""
    return tmp_path / "calls.jsonl"


@asynccontextmanager
async def opened(
    settings: Settings, specs: list[ServerSpec], *, policy: str = "", tmp_path: Path
) -> AsyncIterator[Engine]:
    """Open an engine with a policy."""
    config = tmp_path / "config.toml"
    config.write_text(policy)
    loaded = load({}, {**os.environ, "MCP_BRIDGE_CONFIG": str(config)})
    own = replace(settings, policy=loaded.policy)

    async def choose(_: Settings) -> FakeBackend:
        return FakeBackend()

    async with open_engine(own, finder=ListFinder(*specs), choose_backend=choose) as engine:
        yield engine


@pytest.fixture
async def engine(settings: Settings, tmp_path: Path, log: Path) -> AsyncIterator[Engine]:
    """An engine without a policy, with the recorder as "log"."""
    notes = {"topic": "text"}
    async with opened(settings, [recorder("log", log, notes=notes)], tmp_path=tmp_path) as engine:
        yield engine


async def planned(engine: Engine, code: str, **fields: Any) -> tuple[RunResult, Plan]:
    """Run a program in plan mode."""
    with anyio.fail_after(60):
        result = await engine.run(RunRequest(code=code, mode="plan", **fields))
    assert result.plan is not None
    return result, result.plan


async def applied(
    engine: Engine, plan: Plan, client: FakeClient | None = None, **fields: Any
) -> RunResult:
    """Apply a plan."""
    with anyio.fail_after(60):
        return await engine.apply(ApplyRequest(plan_id=plan.plan_id, **fields), client)


def audited(settings: Settings) -> str:
    """Return the audit log."""
    files = sorted((settings.state_dir / "audit").glob("*.jsonl"))
    return "".join(path.read_text() for path in files)


def statuses(result: RunResult) -> list[str]:
    """Return what became of each call."""
    return [
        line["status"]
        for line in result.result
        for _ in range(line.get("to", line["number"]) - line["number"] + 1)
    ]


THREE = """
first = await mcp_log.create(title="one", body="b")
second = await mcp_log.create(title=f"below {first.id}", parent=first.id)
await mcp_log.write_note(topic=f"{second.title}!", text=second.url)
"""


async def test_a_plan_is_made_and_applied_with_results_passed_on(engine: Engine, log: Path) -> None:
    """The whole way: nothing is called before, and then exactly what was listed, in order."""
    result, plan = await planned(engine, f"{THREE}print('done')\n")
    assert (result.status, result.stdout, plan.stopped) == ("success", "done\n", "")
    assert result.summary == (
        f'3 calls held, none of them made; apply with run_python(apply="{plan.plan_id}").'
    )
    assert [call.arguments for call in plan.calls] == [
        {"title": "one", "body": "b"},
        {
            "title": "below ‹result of #1 log.create›.id",
            "parent": "‹result of #1 log.create›.id",
        },
        {
            "topic": "‹result of #2 log.create›.title!",
            "text": "‹result of #2 log.create›.url",
        },
    ]
    assert result.receipt is not None
    assert (result.receipt.held, result.receipt.calls) == (3, {})
    assert recorded(log) == []
    done = await applied(engine, plan)
    assert (done.status, done.summary, done.error) == ("success", "3 of 3 calls done.", "")
    assert recorded(log) == [
        ("create", {"title": "one", "body": "b"}),
        ("create", {"title": "below 1", "parent": 1}),
        ("write_note", {"topic": "below 1!", "text": "https://example.org/2"}),
    ]
    assert statuses(done) == ["done"] * 3
    assert done.result[1]["value"]["id"] == 2
    assert done.receipt is not None
    assert done.receipt.calls == {"log": 3}
    assert done.usage.tool_calls == 3
    with pytest.raises(UnknownPlanError, match=rf"{done.run_id} applied it .*3 of 3 calls done"):
        await applied(engine, plan)
    assert len(recorded(log)) == 3


async def test_a_large_plan_is_told_in_bounds(engine: Engine, log: Path) -> None:
    """Calls of which the same is to be said are one line; what they returned is cut."""
    code = """
for n in range(300):
    await mcp_log.create(title=f"{n}" + "t" * 90)
await mcp_log.big(size=9999)
"""
    result, plan = await planned(engine, code)
    assert "… and 260 calls more" in compact(result)
    done = await applied(engine, plan)
    assert statuses(done) == ["done"] * 301
    assert [line["number"] for line in done.result[:3]] == [1, 2, 3]
    assert done.result[-2]["to"] == 300
    assert 9999 <= done.result[-1]["valueCharacters"] < 10_100
    assert len(json.dumps(structured(done))) < 40_000
    assert len(recorded(log)) == 301


async def test_reads_happen_and_what_looks_at_a_held_result_stops(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """With a policy that knows what reads; the plan says where it stopped, and can be applied."""
    specs = [recorder("log", log, notes={"topic": "text"})]
    code = """
note = await mcp_log.read_note(topic="topic")
made = await mcp_log.create(title=note.text)
if made.id > 3:
    await mcp_log.delete_note(topic="topic")
"""
    async with opened(settings, specs, policy=WRITES_ASK, tmp_path=tmp_path) as engine:
        result, plan = await planned(engine, code)
        assert (result.status, result.reason, result.error) == ("success", None, "")
        assert "line 4" in plan.stopped
        assert [call.tool for call in plan.calls] == ["create"]
        assert (plan.calls[0].action, plan.calls[0].rule) == ("ask", "default for writes")
        assert tools_recorded(log) == ["read_note"]
        with pytest.raises(ApprovalNeededError):
            await applied(engine, plan)
        with pytest.raises(ApprovalNeededError):
            await applied(engine, plan, None)
        client = FakeClient(answer=approve)
        done = await applied(engine, plan, client)
        assert (done.status, len(client.asked)) == ("success", 1)
        assert "log.create" in str(client.asked[0]["message"])
        assert recorded(log)[1:] == [("create", {"title": "text"})]
        passed = "made = await mcp_log.create(title='a')\nawait mcp_log.read_note(topic=made.title)"
        result, plan = await planned(engine, passed)
        assert result.status == "success"
        assert "with what a held call is going to return" in plan.stopped
        assert len(recorded(log)) == 2
        result, plan = await planned(engine, "await mcp_log.list_notes()")
        assert (plan.plan_id, plan.calls) == ("", ())
        assert "would change nothing" in result.summary


async def test_a_no_uses_a_plan_up(settings: Settings, tmp_path: Path, log: Path) -> None:
    """Else a model asks until somebody errs. It is another's, or none, to everybody else."""
    async with opened(
        settings, [recorder("log", log)], policy=WRITES_ASK, tmp_path=tmp_path
    ) as engine:
        _, plan = await planned(engine, "await mcp_log.create(title='a')", owner="me")
        with pytest.raises(UnknownPlanError, match="no plan"):
            await applied(engine, plan, FakeClient(answer=approve), owner="you")
        with pytest.raises(ApprovalRefusedError):
            await applied(engine, plan, FakeClient(), owner="me")
        with pytest.raises(UnknownPlanError, match="did not approve"):
            await applied(engine, plan, FakeClient(answer=approve), owner="me")
        trace = await engine.gatekeeping.audit.find_plan(plan.plan_id)
        assert trace is not None
        assert trace.applied is not None
        assert (trace.applied.calls, trace.applied.ended["reason"]) == ((), "policy")
        assert recorded(log) == []


async def test_a_plan_stops_at_the_first_failure(engine: Engine, log: Path) -> None:
    """What was done, what was not, and a retry that does not do it again."""
    code = """
first = await mcp_log.create(title="one")
await mcp_log.write_note(topic="t", text="x")
await mcp_log.fail_times(key="k", times=1)
await mcp_log.create(title="two", parent=first.id)
"""
    _, plan = await planned(engine, code)
    done = await applied(engine, plan)
    assert (done.status, done.reason) == ("error", "exception")
    assert done.summary == "2 of 4 calls done; #3 log.fail_times failed."
    assert statuses(done) == ["done", "done", "failed", "not done"]
    assert done.result[2]["error"] == "failed, time 1"
    assert done.error.splitlines()[:4] == [
        "#3 log.fail_times: failed, time 1",
        "Done: #1 to #2.",
        "Failed: #3.",
        "Not done: #4.",
    ]
    assert tools_recorded(log) == ["create", "write_note", "fail_times"]
    with pytest.raises(UnknownPlanError, match="2 of 4 calls done"):
        await applied(engine, plan)
    again = await engine.run(RunRequest(code=code, retry_of=done.run_id))
    assert (again.status, again.error) == ("success", "")
    assert tools_recorded(log)[3:] == ["fail_times", "create"]


@pytest.mark.parametrize(
    ("second", "told", "reason"),
    [
        (
            "create(title=first.titel)",
            r"has no \.titel: it has the keys id, title, url",
            "validation",
        ),
        ("create(title=first.id)", r"does not take what the plan has for it.*title", "validation"),
        ("refuse()", "is refused", "exception"),
        ("die()", "", "exception"),
    ],
)
async def test_what_cannot_be_made_stops_a_plan(
    engine: Engine, log: Path, second: str, told: str, reason: str
) -> None:
    """A part that is not there, one of a wrong type, a server that refuses or dies."""
    code = f"""
first = await mcp_log.create(title="one")
await mcp_log.{second}
await mcp_log.create(title="three")
"""
    _, plan = await planned(engine, code)
    done = await applied(engine, plan)
    unknown = second == "die()"
    became = "unknown" if unknown else "failed"
    assert statuses(done) == ["done", became, "not done"]
    assert (done.status, done.reason) == ("error", reason)
    if told:
        with pytest.raises(AssertionError, match=told):
            raise AssertionError(done.error)
    if unknown:
        assert "may have happened or not" in done.summary
        assert [(found.tool, found.count) for found in done.unknown] == [("die", 1)]
    assert tools_recorded(log).count("create") == 1


async def test_a_tool_that_changed_stops_a_plan(engine: Engine, log: Path) -> None:
    """Between plan and application, and in the middle of it."""
    _, plan = await planned(engine, "await mcp_log.create(title='a')")
    changes = "await mcp_log.redescribe(tool='create', description='Now it deletes.')"
    await engine.run(RunRequest(code=changes))
    done = await applied(engine, plan)
    assert statuses(done) == ["failed"]
    assert "not the tool any more" in done.error
    changes = changes.replace("Now", "And now")
    _, plan = await planned(engine, f"{changes}\nawait mcp_log.create(title='a')")
    done = await applied(engine, plan)
    assert statuses(done) == ["done", "failed"]
    assert "create" not in tools_recorded(log)


async def test_what_became_stricter_stops_a_plan(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """The policy is asked again, with the real arguments; an approval covers what was shown."""
    rule = """
[[policy.rules]]
name = "no second"
tool = "write_note"
when = { text = "https://example.org/1" }
action = "%s"
"""
    code = """
one = await mcp_log.create(title="a")
await mcp_log.write_note(topic="t", text=f"{one.url}")
"""
    specs = [recorder("log", log)]
    for action, told in (("deny", "is not allowed"), ("ask", "that the plan did not show")):
        policy = WRITES_ASK + rule % action
        async with opened(settings, specs, policy=policy, tmp_path=tmp_path) as engine:
            _, plan = await planned(engine, code)
            assert [call.rule for call in plan.calls] == ["default for writes"] * 2
            done = await applied(engine, plan, FakeClient(answer=approve))
            assert (statuses(done), done.reason) == (["done", "failed"], "policy")
            assert told in done.error
            assert "rule 'no second'" in done.error
    assert tools_recorded(log) == ["create", "create"]


async def test_a_plan_that_the_policy_allows_needs_nobody(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """But a policy that changed since then stops it."""
    config = tmp_path / "config.toml"
    allowing = WRITES_ASK.replace("[policy]", '[policy]\ndefaults = { write = "allow" }')
    async with opened(
        settings, [recorder("log", log)], policy=allowing, tmp_path=tmp_path
    ) as engine:
        _, plan = await planned(engine, "await mcp_log.create(title='a')")
        _, other = await planned(engine, "await mcp_log.create(title='a')")
        assert (await applied(engine, plan)).status == "success"
        config.write_text(f"# now asks\n{WRITES_ASK}")
        done = await applied(engine, other)
        assert (statuses(done), done.reason) == (["failed"], "policy")
    assert tools_recorded(log) == ["create"]


async def test_flow_rules_judge_a_call_by_what_came_before_it_in_the_plan(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """A read that the plan made later does not count; shown and applied it is the same."""
    policy = """
[policy]
defaults = { write = "allow" }
[policy.servers.log]
trust = true
[policy.servers.log.tools.fetch]
labels = ["untrusted-input"]
[policy.servers.log.tools.create]
labels = ["untrusted-input"]
[policy.servers.log.tools.write_note]
labels = ["exfiltration"]
[[policy.flow]]
name = "web to notes"
action = "ask"
after = ["untrusted-input"]
to = ["exfiltration"]
"""
    code = """
await mcp_log.write_note(topic="a", text="b")
page = await mcp_log.fetch(url="u")
await mcp_log.write_note(topic="c", text=page.text)
"""
    specs = [recorder("log", log, notes={"u": "page"})]
    async with opened(settings, specs, policy=policy, tmp_path=tmp_path) as engine:
        _, plan = await planned(engine, code)
        assert [call.action for call in plan.calls] == ["allow", "ask"]
        assert "flow rule 'web to notes'" in plan.calls[1].rule
        done = await applied(engine, plan, FakeClient(answer=approve))
        assert (done.status, done.error) == ("success", "")
        records = [json.loads(line) for line in audited(settings).splitlines()]
        calls = [r for r in records if r["kind"] == "call" and r["tool"] == "write_note"]
        assert ["approval" in record for record in calls] == [False, True]
        # A held call counts for those after it as if it had been made.
        held = code.replace('fetch(url="u")', 'create(title="u")').replace("page.text", "page.url")
        _, plan = await planned(engine, held)
        assert [call.action for call in plan.calls] == ["allow", "allow", "ask"]
        done = await applied(engine, plan, FakeClient(answer=approve))
        assert (done.status, done.error) == ("success", "")
    assert tools_recorded(log)[:3] == ["fetch", "write_note", "write_note"]


async def test_a_failed_program_has_no_plan_to_apply(engine: Engine, log: Path) -> None:
    """What it held is listed all the same, and its error comes first."""
    result, plan = await planned(engine, "await mcp_log.create(title='a')\n1 / 0")
    assert (result.status, result.reason) == ("error", "exception")
    assert "ZeroDivisionError" in result.error
    assert (plan.plan_id, len(plan.calls)) == ("", 1)


async def test_a_cancelled_application_stops_between_calls(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """The call under way gets its answer, nothing follows, and the audit log has all of it."""
    specs = [recorder("log", log), workshop()]
    code = """
for party in ("a", "b"):
    await mcp_work_shop.meet(count=2, party=party)
await mcp_log.create(title="never")
"""
    async with opened(settings, specs, tmp_path=tmp_path) as engine:
        _, plan = await planned(engine, code)
        pool = engine.servers.pool
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(applied, engine, plan)
            await until(lambda: pool.state("work-shop").state == "ready")
            await pool.call_tool("work-shop", "meet", {"count": 2, "party": "a"})
            # The second call goes out once the first has its answer.
            await until(lambda: audited(settings).count('"kind":"call"') == 2)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await pool.call_tool("work-shop", "meet", {"count": 2, "party": "b"})
        trace = await engine.gatekeeping.audit.find_plan(plan.plan_id)
        assert trace is not None
        assert trace.applied is not None
        assert [call.outcome for call in trace.applied.calls] == ["ok", "ok"]
        assert trace.applied.ended["reason"] == "cancelled"
        with pytest.raises(UnknownPlanError, match="2 of 3 calls done; it was cancelled"):
            await applied(engine, plan)
    assert recorded(log) == []


async def test_a_call_without_an_answer_is_cut_off_in_the_end_and_called_unknown(
    engine: Engine, settings: Settings, log: Path
) -> None:
    """A server that hangs must not keep a client that has gone."""
    engine.applying = Applying(engine.servers, engine.gatekeeping, Times(finish=0))
    _, plan = await planned(engine, "await mcp_log.slow()\nawait mcp_log.create(title='never')")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(applied, engine, plan)
        await until(lambda: "slow" in tools_recorded(log))
        tasks.cancel_scope.cancel()
    trace = await engine.gatekeeping.audit.find_plan(plan.plan_id)
    assert trace is not None
    assert trace.applied is not None
    assert [call.outcome for call in trace.applied.calls] == ["unknown"]
    with pytest.raises(UnknownPlanError, match="0 of 2 calls done; #1 .* happened or not"):
        await applied(engine, plan)
    assert tools_recorded(log) == ["slow"]


async def test_a_plan_has_no_time_without_end(engine: Engine, log: Path) -> None:
    """No call is begun after it; nothing under way is cut off."""
    _, plan = await planned(engine, THREE)
    engine.applying = Applying(engine.servers, engine.gatekeeping, Times(apply=0))
    done = await applied(engine, plan)
    assert (done.status, done.reason, statuses(done)) == ("timeout", "timeout", ["not done"] * 3)
    assert recorded(log) == []


async def test_a_plan_of_a_bridge_that_has_ended_is_told_from_the_audit_log(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """Nothing is repeated silently: what was done is said, and what never was."""
    specs = [recorder("log", log)]
    async with opened(settings, specs, tmp_path=tmp_path) as engine:
        _, unused = await planned(engine, THREE)
        _, used = await planned(engine, f"{THREE}await mcp_log.fail()\nawait mcp_log.fail()")
        done = await applied(engine, used)
    async with opened(settings, specs, tmp_path=tmp_path) as engine:
        with pytest.raises(UnknownPlanError, match="None of its calls was made"):
            await applied(engine, unused)
        with pytest.raises(UnknownPlanError) as caught:
            await applied(engine, used)
        assert f"the run {done.run_id} applied it." in caught.value.message
        assert "done: #1 to #3; failed: #4; not done: #5" in caught.value.message
        assert f"audit show {done.run_id}" in caught.value.remedy
        with pytest.raises(UnknownPlanError, match="no plan"):
            await applied(engine, used, owner="somebody else")


class FullLog(AuditLog):
    """An audit log that takes no records of one kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    @property
    def recording(self) -> bool:
        return True

    async def append(
        self, record: Mapping[str, Json], otherwise: Mapping[str, Json] | None = None
    ) -> str:
        if record["kind"] == self._kind:
            message = "The disk is full."
            raise AuditError(message)
        return ""


async def test_what_cannot_be_recorded_is_not_planned_and_not_applied(
    engine: Engine, log: Path
) -> None:
    """A plan that is there stays for when it can be."""
    code = "await mcp_log.create(title='a')"
    _, plan = await planned(engine, code)
    audit = engine.gatekeeping.audit
    engine.gatekeeping.audit = FullLog("apply")
    with pytest.raises(AuditError):
        await applied(engine, plan)
    engine.gatekeeping.audit = FullLog("plan")
    result, none = await planned(engine, code)
    assert (none.plan_id, none.stopped, len(none.calls)) == ("", "The disk is full.", 1)
    assert "nothing to apply" in result.summary
    engine.gatekeeping.audit = FullLog("held")
    _, none = await planned(engine, f"try:\n    {code}\nexcept Exception:\n    pass")
    assert (none.plan_id, none.stopped) == ("", "The disk is full.")
    assert recorded(log) == []
    engine.gatekeeping.audit = audit
    assert (await applied(engine, plan)).status == "success"
