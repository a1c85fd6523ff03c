"""Runs, end to end on the fake backend: what a program does and what comes back."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from bridge.discovery.finder import Discovery
from bridge.discovery.report import SkippedServer
from bridge.errors import EngineDownError, InvalidRequestError, ServerStartError
from bridge.model import RunRequest, ServerSpec
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, run_program, workshop
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code
from tests.upstream.rig import EVERYTHING
from tests.waiting import until, until_exists


@pytest.mark.parametrize("session", ["", "s"])
async def test_the_trace_that_a_run_belongs_to_goes_along_with_its_calls(
    engine: Engine, finder: ListFinder, session: str
) -> None:
    raw = Path(__file__).parents[1] / "fakes" / "servers" / "raw.py"
    finder.specs = (dataclasses.replace(workshop("raw"), args=(str(raw),)),)
    for number in (1, 2):
        span = SpanContext(number, number, is_remote=True, trace_flags=TraceFlags(1))
        with trace.use_span(NonRecordingSpan(span)):
            code = "(await runtime.call_tool('raw', 'meta'[:]))['traceparent']"
            result = await run_program(engine, code, session=session)
        assert result.result == f"00-{number:032x}-{number:016x}-01"


async def test_a_program_too_large_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="the limit is"):
        await run_program(engine, "#" * 2_000_000)


async def test_a_server_that_cannot_start_stops_the_run_before_it_begins(
    engine: Engine, finder: ListFinder
) -> None:
    broken = ServerSpec(
        name="broken", transport="stdio", source=workshop().source, command="/no/such/command"
    )
    finder.specs = (workshop(), broken)
    with pytest.raises(ServerStartError, match="/no/such/command"):
        await run_program(engine, "print(1)\nawait mcp_broken.x()")
    assert (await run_program(engine, "print(1)")).status == "success"


async def test_errors_told_to_a_program_hold_nothing_of_the_host(
    engine: Engine, finder: ListFinder, tmp_path: Path
) -> None:
    broken = dataclasses.replace(workshop("broken"), command="/hidden/place/command", args=())
    finder.specs = (workshop(), broken)
    code = """
told = []
for server, tool in (("broken", "x"), ("work-shop", "crash"), ("nobody", "x")):
    try:
        await runtime.call_tool(server, tool)
    except runtime.MCPError as error:
        told.append(str(error))
told
"""
    result = await run_program(
        engine, code.replace('"broken"', '"bro" + "ken"').replace('"nobody"', '"no" + "body"')
    )
    assert len(result.result) == 3
    for text in result.result:
        assert not {"/hidden", "/test.json", str(tmp_path), "stderr"} & set(text.split())
        assert "/" not in text.replace("and/or", "")


@pytest.mark.parametrize("settings", [{"max_timeout": "3"}], indirect=True)
async def test_the_longest_time_of_a_run_keeps_the_output_and_ends_upstream_calls(
    engine: Engine, tmp_path: Path
) -> None:
    code = f"""
print("before")
await mcp_work_shop.slow(started={str(tmp_path / "s")!r}, cancelled={str(tmp_path / "c")!r})
"""
    result = await run_program(engine, code, timeout=2.0)
    assert (result.status, result.reason, result.stdout) == ("timeout", "timeout", "before\n")
    assert "Timed out after 3 s" in result.error
    assert "no run takes longer with its tools" in result.error
    await until_exists(tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"call_timeout": "2", "timeout": "1"}], indirect=True)
async def test_waiting_for_tools_takes_nothing_of_a_programs_time(
    engine: Engine, finder: ListFinder
) -> None:
    finder.specs = (dataclasses.replace(workshop("node"), command="node", args=(str(EVERYTHING),)),)
    code = """
work = mcp_node["trigger-long-running-operation"]
print(await work(duration=4, steps=16))
while True:
    pass
"""
    result = await run_program(engine, code)
    assert "completed" in result.stdout
    assert (result.status, "Timed out after 1 s" in result.error) == ("timeout", True)


async def test_leftovers_that_cannot_be_removed_are_no_reason_not_to_run(
    engine: Engine, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.reap_error = EngineDownError("listing containers failed")
    assert (await run_program(engine, "1")).status == "success"
    assert "listing containers failed" in caplog.text
    assert backend.drain is not None


async def test_the_backend_knows_when_a_program_runs_and_how_to_let_go(
    engine: Engine, backend: FakeBackend, tmp_path: Path
) -> None:
    """A virtual machine is not stopped under a program, and waiting sandboxes do not keep it up."""
    started = tmp_path / "started"
    code = f"await mcp_work_shop.slow(started={str(started)!r}, cancelled='/dev/null')"
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run, RunRequest(code=code))
            await until_exists(started)
            assert backend.in_use_now == 1
            tasks.cancel_scope.cancel()
    assert backend.in_use_now == 0
    assert backend.drain is not None
    await backend.drain()


async def test_a_waiting_sandbox_that_died_is_replaced_without_a_word(
    settings: Settings, finder: ListFinder
) -> None:
    backend = FakeBackend()

    warm = dataclasses.replace(settings, warm=1)
    async with engine_on(backend, warm, finder=finder) as engine:
        await run_program(engine, "1")
        await until(lambda: backend.launched == 2 and len(backend.live) == 1)
        [process] = backend.live
        os.killpg(process, signal.SIGKILL)
        result = await run_program(engine, "print('fine')")
        assert (result.status, result.stdout) == ("success", "fine\n")


async def test_a_run_in_the_strict_profile_has_no_more_than_a_strict_bridge_gives(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> None:
    project = workshop("theirs")
    source = dataclasses.replace(project.source, scope="project")
    finder.specs = (workshop(), dataclasses.replace(project, source=source))
    async with engine_on(backend, settings, finder=finder) as engine:
        code = (
            "[(await mcp_work_shop.add(a=1, b=1)).sum, '128 MiB' in runtime.capability_summary()]"
        )
        result = await run_program(engine, code, servers=("work-shop",), profile="strict")
        assert (result.result, result.timeout_seconds) == ([2, True], 5)
        for told, fields in (
            ("not listed: work-shop", {}),
            ("between 1 and 5 seconds", {"timeout": 60}),
            ("a session's sandbox", {"session": "s"}),
            ("no packages", {"packages": ("six",)}),
            ("no servers of the project, such as 'theirs'", {"servers": ("theirs",)}),
        ):
            with pytest.raises(InvalidRequestError, match=told):
                await run_program(engine, code, profile="strict", **fields)
        refused = await run_program(engine, "import subprocess", profile="strict")
        assert refused.reason == "policy"
        assert (await run_program(engine, "import subprocess; 1")).result == 1


async def test_the_strict_profile_asks_for_servers_by_name(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> None:
    strict = dataclasses.replace(settings, profile="strict")
    finder.specs = (workshop(), workshop("other"))
    async with engine_on(backend, strict, finder=finder) as engine:
        description = await engine.guide.tool_description()
        assert "Time: 5 s, up to 5 s" in description
        assert "Memory: 128 MiB" in description
        assert "Only the servers listed in `servers` are loaded" in description
        beyond = r"between 1 and 5 seconds, not 60\. The strict profile sets the largest"
        with pytest.raises(InvalidRequestError, match=beyond):
            await run_program(engine, "1", timeout=60)
        with pytest.raises(InvalidRequestError, match=r"not listed: work-shop"):
            await run_program(engine, "await mcp_work_shop.add(a=1, b=1)")
        code = """
try:
    await runtime.call_tool("ot" + "her", "add", {"a": 1, "b": 1})
except runtime.MCPError as error:
    kind = error.kind
[kind, (await mcp_work_shop.add(a=1, b=1)).sum]
"""
        result = await run_program(engine, code, servers=("work-shop",))
        assert result.result == ["policy", 2]


async def test_of_many_skipped_servers_the_one_that_a_program_names_is_told(
    settings: Settings, backend: FakeBackend
) -> None:
    class Finder(ListFinder):
        def find(self) -> Discovery:
            source = workshop().source
            skipped = [
                SkippedServer(name=f"bad-{number}", source=source, reason=f"reason {number}")
                for number in range(9)
            ]
            return Discovery(servers=self.specs, skipped=tuple(skipped), warnings=(), stamp=())

    async with engine_on(backend, settings, finder=Finder(workshop())) as engine:
        for code in ("await mcp_bad_8.x()", "await mcp_servers['bad-8'].x()"):
            with raises_code("unknown_server") as caught:
                await run_program(engine, code)
            assert "but skipped: bad-8: reason 8." in str(caught.value)
            assert "reason 1" not in str(caught.value)
        with raises_code("unknown_server", match="Did you mean `mcp_work_shop`") as caught:
            await run_program(engine, "await mcp_work_shp.add(a=1, b=1)")
        assert "but skipped" not in str(caught.value)
        with raises_code("unknown_server") as caught:
            await run_program(engine, "await mcp_elsewhere.add(a=1, b=1)")
        assert "but skipped" not in str(caught.value)
