"""Calls to servers that answer oddly, too much, too late or not at all."""

from __future__ import annotations

import math
from functools import reduce
from pathlib import Path

import anyio
import pytest
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from bridge import __version__
from bridge.errors import BridgeError, CallTimeoutError, CannotAskError, ToolCallError
from bridge.model import MEBIBYTE, ProtocolMode
from bridge.upstream import client_features as asking
from bridge.upstream.client_features import on_behalf_of
from bridge.upstream.pool import Pool
from tests.raised import raises_code
from tests.upstream.rig import Rig, is_alive, wait_file, with_protocol
from tests.upstream.test_client_features import FakeCaller
from tests.waiting import PATIENCE_SECONDS

ERAS = True


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_has_the_protocols_meta(tmp_path: Path, era: ProtocolMode) -> None:
    rig = Rig(tmp_path)
    caller = FakeCaller()
    caller.wants_progress = True
    span = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=True, trace_flags=TraceFlags(1))
    async with rig.pool(rig.raw(), server_settings=with_protocol(era)) as pool:
        with on_behalf_of(caller), trace.use_span(NonRecordingSpan(span)):
            meta = (await pool.call_tool("server", "meta", {"a": 1}))["structuredContent"]
        alone = (await pool.call_tool("server", "meta", {}))["structuredContent"]
    assert isinstance(meta.pop("progressToken"), int)
    assert "progressToken" not in alone
    assert meta.pop("traceparent") == f"00-{0xABC:032x}-{0xDEF:016x}-01"
    modern = {
        PROTOCOL_VERSION_META_KEY: "2026-07-28",
        CLIENT_INFO_META_KEY: {"name": "mcp-code-bridge", "version": __version__},
        LOG_LEVEL_META_KEY: "info",
    }
    assert (meta.pop(CLIENT_CAPABILITIES_META_KEY, {}).keys() >= {"sampling"}) is (era == "modern")
    assert meta == (modern if era == "modern" else {})


async def test_notifications_precede_answers(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LATE_SECONDS", 0.0)
    caller = FakeCaller()
    caller.wants_progress = True
    await pool.server("server").tools()
    with on_behalf_of(caller):
        await pool.call_tool("server", "tell", {})
    assert caller.logged == ["said"] * 3
    assert caller.reported == [1.0]


async def test_an_answer_does_not_wait_for_what_the_session_keeps_to_itself(rig: Rig) -> None:
    rig.environ["LISTENED"] = rig.path("listened")
    async with rig.pool(rig.raw("newer-only", "announcing")) as pool:
        await pool.server("server").start()
        await wait_file(rig.path("listened"))
        with anyio.fail_after(PATIENCE_SECONDS):
            result = await pool.call_tool("server", "odd_shape", {})
    assert result["content"] == []


@pytest.mark.parametrize(("era", "protocol"), [("auto", "2025-11-25"), ("modern", "2026-07-28")])
async def test_an_answer_that_breaks_its_own_schema_is_delivered(
    tmp_path: Path, era: ProtocolMode, protocol: str
) -> None:
    """The SDK's client would raise and lose the result."""
    rig = Rig(tmp_path, era)
    async with rig.pool(rig.toolbox()) as pool:
        tools = await pool.server("server").tools()
        result = await pool.call_tool("server", "liar", {})
        assert (await pool.call_tool("server", "echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert pool.states()["server"].server_info["protocol"] == protocol
    assert {tool.name: tool for tool in tools}["liar"].output_schema is not None
    assert result["structuredContent"] == {"n": "not a number"}


@pytest.mark.parametrize(
    "around",
    [
        "\ufeff$MESSAGE",
        "Processing... $MESSAGE",
        "\x1b[32m$MESSAGE\x1b[0m",
        "$MESSAGE done",
        "$MORE$MESSAGE",
        "$MORE $MORE $MESSAGE$MORE",
        "received $ASKED, sent $MESSAGE",
    ],
)
async def test_a_message_is_found_in_its_line(pool: Pool, around: str) -> None:
    result = await pool.call_tool("server", "wrapped", {"around": around})
    assert (await pool.call_tool("server", "echo", {}))["content"]
    assert result["content"] == [{"type": "text", "text": '{"jsonrpc": "2.0"}'}]


async def test_an_error_without_id_belongs_to_the_last_open_call(rig: Rig, pool: Pool) -> None:
    """A server that cannot read a request does not know its id."""
    async with anyio.create_task_group() as tg:
        tg.start_soon(pool.call_tool, "server", "never", {"started": rig.path("started")})
        await wait_file(rig.path("started"))
        with pytest.raises(ToolCallError, match="no such table"):
            await pool.call_tool("server", "null_id", {})
        tg.cancel_scope.cancel()


async def test_a_timeout_quotes_what_came_instead_of_the_answer(pool: Pool) -> None:
    with pytest.raises(CallTimeoutError, match="'Traceback: the table is missing'"):
        await pool.call_tool("server", "noise_only", {}, timeout=1.0)
    with pytest.raises(CallTimeoutError) as caught:
        await pool.call_tool("server", "never", {}, timeout=0.1)
    assert "Traceback" not in caught.value.message


async def test_noise_on_stdout_is_skipped_and_logged(rig: Rig) -> None:
    async with rig.pool(rig.raw()) as pool:
        result = await pool.call_tool("server", "noise", {})
    assert result["content"][0]["text"] == "after the noise"
    assert "Loading..." in rig.log()
    assert "garbage" in rig.log()


@pytest.mark.parametrize(
    ("tool", "message", "restarts"),
    [
        ("big", "the limit is 100000", 0),
        ("big_id_last", "the limit is 100000", 0),
        ("big_nameless", "exceeded the 100000 byte limit", 1),
    ],
)
async def test_an_answer_beyond_the_cap_fails_its_call_or_without_an_id_the_connection(
    rig: Rig, tool: str, message: str, restarts: int
) -> None:
    async with rig.pool(rig.raw(), max_message_bytes=100_000) as pool:
        with raises_code("message_too_large", match=message):
            await pool.call_tool("server", tool, {"size": 5 * MEBIBYTE})
        result = await pool.call_tool("server", "echo", {"still": "here"})
        assert pool.states()["server"].restarts == restarts
    assert result["structuredContent"] == {"still": "here"}


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("crash", "exited with status 7"),
        ("killed", "was killed by SIGKILL"),
        ("crash_holding_stdout", "exited with status 8"),
    ],
)
async def test_calls_after_a_crash_reconnect(rig: Rig, pool: Pool, tool: str, told: str) -> None:
    failures: list[BridgeError] = []
    started = rig.path("started")

    async def wait_for_nothing() -> None:
        with raises_code("server_lost") as caught:
            await pool.call_tool("server", "never", {"started": started})
        failures.append(caught.value)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tg:
            tg.start_soon(wait_for_nothing)
            await wait_file(started)
            with raises_code("server_lost") as caught:
                await pool.call_tool("server", tool, {})
    said = caught.value.message
    assert said.startswith(f"Server 'server' went away during tool '{tool}'. It {told}.")
    assert said.endswith("Its last line on stderr: about to crash") is (tool == "crash")
    assert str(rig.log_dir / "server.log") in str(caught.value)
    assert pool.states()["server"].state == "failed"
    assert told in pool.states()["server"].error
    await pool.call_tool("server", "echo", {})
    state = pool.states()["server"]
    assert told in str(failures[0])
    assert (state.state, state.restarts) == ("ready", 1)


async def test_calls_to_a_server_that_stops_reading_fail_or_time_out(pool: Pool) -> None:
    await pool.call_tool("server", "deaf", {})
    with raises_code("server_lost"):
        await pool.call_tool("server", "echo", {})
    assert (await pool.call_tool("server", "echo", {}))["content"]
    await pool.call_tool("server", "jam", {})
    for _ in range(3):
        with pytest.raises(CallTimeoutError):
            await pool.call_tool("server", "echo", {"a": "x" * MEBIBYTE}, timeout=0.1)


async def test_a_call_that_times_out_is_cancelled_and_its_error_counts_the_others(rig: Rig) -> None:
    rig.environ["CANCELLED"] = rig.path("cancelled")
    remedies = list[str | None]()

    async def call(pool: Pool) -> None:
        message = r"did not answer tool 'never' within 0\.1 s"
        with pytest.raises(CallTimeoutError, match=message) as caught:
            await pool.call_tool("server", "never", {}, timeout=0.1)
        remedies.append(caught.value.remedy)

    async with rig.pool(rig.raw()) as pool:
        await pool.server("server").start()
        await call(pool)
        await wait_file(rig.path("cancelled"))
        assert (await pool.call_tool("server", "echo", {}))["content"]
        assert pool.states()["server"].restarts == 0
        async with anyio.create_task_group() as tg:
            for _ in range(3):
                tg.start_soon(call, pool)
    alone, first, *_ = remedies
    assert str(alone).startswith("Ask for less;")
    assert first == "2 other calls to this server waited too; make fewer at once."


async def test_a_server_asks_only_the_user_of_a_run(pool: Pool) -> None:
    result = await pool.call_tool("server", "sample", {})
    # In the newer protocol a server makes no requests.
    assert result["content"][0]["text"].startswith(("No user can be asked", "Method not found"))
    with pytest.raises(CannotAskError, match="wants input before it answers"):
        await pool.call_tool("server", "ask_user", {})
    with on_behalf_of(FakeCaller()):
        result = await pool.call_tool("server", "ask_user", {"a": 1})
    assert result["structuredContent"] == {
        "name": "ask_user",
        "arguments": {"a": 1},
        "inputResponses": {"q": {"action": "accept", "content": {"client": "one"}}},
    }


DEEP = reduce(lambda inner, _: {"a": inner}, range(400), dict[str, object]())


@pytest.mark.parametrize(
    "arguments", [{"a": math.nan}, {"a": "\ud800"}, {"a": object()}, {"a": {1, 2}}, DEEP]
)
async def test_arguments_beyond_json_are_not_sent(pool: Pool, arguments: dict[str, object]) -> None:
    """They would break the connection's writer and with it every other call."""
    with pytest.raises(ToolCallError, match="cannot be sent as JSON"):
        await pool.call_tool("server", "echo", arguments)
    assert pool.states()["server"].state == "idle"


async def test_a_server_that_floods_stderr_is_not_blocked(rig: Rig) -> None:
    async with rig.pool(rig.raw()) as pool:
        with anyio.fail_after(PATIENCE_SECONDS):
            await pool.call_tool("server", "stderr", {"lines": 20_000})
    files = sorted(rig.log_dir.iterdir())
    assert [file.name for file in files] == ["server.log", "server.log.1"]
    assert all(file.stat().st_size <= MEBIBYTE for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_a_server_gets_the_environment_and_directory_of_its_entry(rig: Rig) -> None:
    rig.environ.update({"INHERITED": "yes", "MCP_BRIDGE_PROFILE": "strict", "BOTH": "outer"})
    where = rig.directory / "work here"
    where.mkdir()
    async with rig.pool(rig.raw(env={"ADDED": "1", "BOTH": "inner"}, cwd=str(where))) as pool:
        result = await pool.call_tool("server", "where", {})
    facts = result["structuredContent"]
    environment = facts["env"]
    assert facts["cwd"] == str(where)
    assert (environment["INHERITED"], environment["ADDED"]) == ("yes", "1")
    assert environment["BOTH"] == "inner"
    assert not [name for name in environment if name.startswith("MCP_BRIDGE_")]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("", "plain"), ("", "stubborn"), ("", "setsid"), ("", "daemon"), ("stubborn", "daemon")],
)
async def test_closing_ends_the_whole_process_tree(rig: Rig, mode: str, kind: str) -> None:
    async with rig.pool(rig.raw(mode)) as pool:
        result = await pool.call_tool("server", "spawn", {"kind": kind})
        pid = result["structuredContent"]["pid"]
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_a_crash_takes_the_grandchildren_with_it(pool: Pool) -> None:
    result = await pool.call_tool("server", "spawn", {"kind": "setsid"})
    pid = result["structuredContent"]["pid"]
    with raises_code("server_lost"):
        await pool.call_tool("server", "crash", {})
    await pool.server("server").start()
    assert not is_alive(pid)
