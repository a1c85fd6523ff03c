"""Plans whose application fails, is cut short, or never begins: what is done, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from bridge.errors import AuditError
from bridge.gate.audit import AuditLog
from bridge.model import Json, RunRequest
from bridge.plans.executor import PlanExecutor, Times
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import workshop
from tests.plans.plan_rig import THREE, Bench, applied, audited, planned, statuses, traced
from tests.raised import raises_code
from tests.recorder_rig import recorded, tools_recorded
from tests.waiting import until


async def test_a_plan_stops_at_the_first_failure(engine: Engine, log: Path) -> None:
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
    with raises_code("unknown_plan", match="2 of 4 calls done"):
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


async def test_a_cancelled_application_stops_between_calls(bench: Bench) -> None:
    code = """
for party in ("a", "b"):
    await mcp_work_shop.meet(count=2, party=party)
await mcp_log.create(title="never")
"""
    async with bench.opened(workshop()) as engine:
        _, plan = await planned(engine, code)
        pool = engine.servers.pool
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(applied, engine, plan)
            await until(lambda: pool.state("work-shop").state == "ready")
            await pool.call_tool("work-shop", "meet", {"count": 2, "party": "a"})
            # The second call goes out once the first has its answer.
            await until(lambda: audited(bench.settings).count('"kind":"call"') == 2)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await pool.call_tool("work-shop", "meet", {"count": 2, "party": "b"})
        outcomes, ended = traced(bench.settings, plan.plan_id)
        assert outcomes == {1: "ok", 2: "ok"}
        assert ended["reason"] == "cancelled"
        with raises_code("unknown_plan", match="2 of 3 calls done; it was cancelled"):
            await applied(engine, plan)
    assert recorded(bench.log) == []


async def test_a_silent_call_ends_unknown(engine: Engine, settings: Settings, log: Path) -> None:
    engine.plan_executor = PlanExecutor(engine.servers, engine.gate, engine.plans, Times(finish=0))
    _, plan = await planned(engine, "await mcp_log.slow()\nawait mcp_log.create(title='never')")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(applied, engine, plan)
        await until(lambda: "slow" in tools_recorded(log))
        tasks.cancel_scope.cancel()
    assert traced(settings, plan.plan_id)[0] == {1: "unknown"}
    with raises_code("unknown_plan", match="0 of 2 calls done; #1 .* happened or not"):
        await applied(engine, plan)
    assert tools_recorded(log) == ["slow"]


async def test_a_plan_has_no_time_without_end(engine: Engine, log: Path) -> None:
    _, plan = await planned(engine, THREE)
    engine.plan_executor = PlanExecutor(engine.servers, engine.gate, engine.plans, Times(apply=0))
    done = await applied(engine, plan)
    assert (done.status, done.reason, statuses(done)) == ("timeout", "timeout", ["not done"] * 3)
    assert recorded(log) == []


async def test_a_plan_of_a_bridge_that_has_ended_is_told_from_the_audit_log(bench: Bench) -> None:
    async with bench.opened() as engine:
        _, used = await planned(engine, f"{THREE}await mcp_log.fail()\nawait mcp_log.fail()")
        await applied(engine, used)
    assert traced(bench.settings, used.plan_id)[0] == {
        **dict.fromkeys((1, 2, 3), "ok"),
        4: "tool-error",
    }
    async with bench.opened() as engine:
        with raises_code("unknown_plan", match="no plan") as caught:
            await applied(engine, used)
        assert "audit show PLAN" in caught.value.remedy


class FullLog(AuditLog):
    def __init__(self, kind: str) -> None:
        super().__init__(Path("/nonexistent"))
        self._kind = kind

    async def append(self, record: Mapping[str, Json], **_: str) -> str:
        if record["kind"] == self._kind:
            message = "The disk is full."
            raise AuditError(message)
        return ""


async def test_unrecorded_plans_do_not_run(engine: Engine, log: Path) -> None:
    code = "await mcp_log.create(title='a')"
    _, plan = await planned(engine, code)
    audit = engine.gate.audit
    engine.gate.audit = FullLog("apply")
    with pytest.raises(AuditError):
        await applied(engine, plan)
    engine.gate.audit = FullLog("plan")
    result, none = await planned(engine, code)
    assert (none.plan_id, none.stopped, len(none.calls)) == ("", "The disk is full.", 1)
    assert "nothing to apply" in result.summary
    engine.gate.audit = FullLog("held")
    _, none = await planned(engine, f"try:\n    {code}\nexcept Exception:\n    pass")
    assert (none.plan_id, none.stopped) == ("", "The disk is full.")
    assert recorded(log) == []
    engine.gate.audit = audit
    assert (await applied(engine, plan)).status == "success"
