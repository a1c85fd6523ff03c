"""How sessions start, are shared, change, fall idle and end."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import pytest

from bridge.errors import BridgeError, CallTimeoutError, ServerStartError, ToolCallError
from bridge.model import Json, ProtocolMode, ServerSettings
from bridge.upstream import connection, listing
from bridge.upstream import server as session
from bridge.upstream.client_features import on_behalf_of
from bridge.upstream.pool import Pool
from tests.raised import raises_code
from tests.upstream.rig import SERVERS, Rig, is_alive, wait_dead, wait_file, with_protocol
from tests.upstream.test_client_features import FakeCaller
from tests.waiting import PATIENCE_SECONDS, until
from tests.wire import OLDER, Wire


async def test_concurrent_first_requests_start_a_server_once(rig: Rig) -> None:
    async with rig.pool(rig.raw()) as pool:
        assert pool.names() == ("server",)
        assert pool.states()["server"].state == "idle"
        assert "connections=0" in repr(pool)
        assert rig.pids() == []
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tg:
                for number in range(20):
                    tg.start_soon(pool.call_tool, "server", "echo", {"n": number})
        assert pool.states()["server"].restarts == 0
    assert pool.states()["server"].state == "closed"
    assert len(rig.pids()) == 1


async def test_a_start_continues_when_its_first_requester_is_cancelled(rig: Rig) -> None:
    answers: list[object] = []

    async with rig.pool(rig.raw()) as pool:

        async def call() -> None:
            answers.append(await pool.call_tool("server", "echo", {}))

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
                inner.start_soon(pool.server("server").start)
                await until(lambda: pool.states()["server"].state == "starting")
                outer.start_soon(call)
                inner.cancel_scope.cancel()
    assert len(answers) == 1
    assert len(rig.pids()) == 1


async def test_concurrent_requests_share_one_failed_start(rig: Rig) -> None:
    rig.environ["FAIL_ONCE"] = rig.path("failed-once")
    errors: list[ServerStartError] = []
    async with rig.pool(rig.raw("fail-once")) as pool:

        async def start() -> None:
            with pytest.raises(ServerStartError, match="exited with status 5") as caught:
                await pool.server("server").start()
            errors.append(caught.value)

        async with anyio.create_task_group() as tg:
            for _ in range(5):
                tg.start_soon(start)
        assert len(rig.pids()) == 1
        await pool.server("server").start()
        assert pool.states()["server"].restarts == 1
    assert len(errors) == 5
    assert "not today" in str(errors[0])


async def test_a_server_that_exits_at_once_is_quoted_with_status_log_and_remedy(rig: Rig) -> None:
    async with rig.pool(rig.raw("exit")) as pool:
        with pytest.raises(ServerStartError) as caught:
            await pool.server("server").tools()
        assert pool.states()["server"].state == "failed"
        assert "configuration" in pool.states()["server"].error
    text = str(caught.value)
    assert "exited with status 3" in text
    assert "cannot find my configuration" in text
    assert str(rig.log_dir / "server.log") in text
    assert "/tmp/servers.json" in caught.value.remedy


async def test_a_slow_start_is_remembered_and_tried_again(rig: Rig) -> None:
    async with rig.pool(rig.raw("silent"), start_timeout=0.5) as pool:
        with pytest.raises(ServerStartError, match=r"within 0\.5 s.*MCP_BRIDGE_START_TIMEOUT"):
            await pool.server("server").start()
        for _ in range(2):
            with pytest.raises(ServerStartError, match=r"0\.5 s\. It is being started again; run"):
                await pool.call_tool("server", "echo", {})
        pool.update([rig.raw(start_timeout=60.0)])
        assert (await pool.call_tool("server", "echo", {"a": 1}))["structuredContent"] == {"a": 1}


@pytest.mark.slow
async def test_a_server_is_used_once_it_starts_again(rig: Rig) -> None:
    fixed, raw = rig.path("fixed"), rig.raw()
    script = f'[ -e {fixed} ] || silent=silent; exec {raw.command} {raw.args[0]} "$silent"'
    async with rig.pool(rig.spec("sh", "-c", script), start_timeout=5.0) as pool:
        with pytest.raises(ServerStartError, match=r"within 5 s"):
            await pool.server("server").start()
        await anyio.Path(fixed).touch()
        with pytest.raises(ServerStartError, match="being started again"):
            await pool.server("server").start()
        await until(lambda: pool.state("server").state == "ready")
        assert (await pool.call_tool("server", "echo", {"a": 1}))["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(
    ("command", "cwd", "message", "remedy"),
    [
        ("sh", "/no/such/place", "directory /no/such/place does not exist", "cwd"),
        ("no-such-command", None, "no command 'no-such-command' on the PATH", "full path"),
        ("/no/such/file", None, "There is no file /no/such/file", "Correct `command`"),
        ("{here}/plain", None, "/plain cannot be executed", "Make it executable"),
        ("{here}/lost", None, "The interpreter that", "first line"),
        ("{here}/headless", None, "neither a program nor a script", "`#!` line"),
        ("nul\0", None, "null byte", "Correct `command`"),
    ],
)
async def test_a_bad_command_or_directory_is_explained(
    rig: Rig, command: str, cwd: str | None, message: str, remedy: str
) -> None:
    for name, text, mode in [
        ("plain", "", 0o600),
        ("lost", "#!/no/such/interpreter\n", 0o700),
        ("headless", "echo hello\n", 0o700),
    ]:
        path = rig.directory / name
        path.write_text(text)
        path.chmod(mode)
    async with rig.pool(rig.spec(command.format(here=rig.directory), cwd=cwd)) as pool:
        with pytest.raises(ServerStartError, match=message) as caught:
            await pool.server("server").start()
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("era", "modes", "protocol"),
    [
        ("auto", "newer-only", "2026-07-28"),
        ("auto", "no-handshake", "2026-07-28"),
        ("modern", "", "2026-07-28"),
        ("legacy", "strict", "2025-11-25"),
        ("auto", "strict", "2025-11-25"),
    ],
)
async def test_a_configured_era_or_else_the_one_that_the_server_speaks_is_used(
    rig: Rig, era: ProtocolMode, modes: str, protocol: str
) -> None:
    chosen = {**with_protocol(era), "other": ServerSettings(protocol="legacy")}
    async with rig.pool(rig.raw(modes), server_settings=chosen) as pool:
        await pool.server("server").start()
        assert pool.states()["server"].server_info["protocol"] == protocol


@pytest.mark.parametrize(
    ("era", "modes"), [("auto", ("no-handshake", "neither")), ("legacy", ("no-handshake",))]
)
async def test_a_refused_era_is_quoted(rig: Rig, era: ProtocolMode, modes: tuple[str, ...]) -> None:
    async with rig.pool(rig.raw(*modes), server_settings=with_protocol(era)) as pool:
        with pytest.raises(ServerStartError, match="Method not found"):
            await pool.server("server").start()


async def test_all_pages_of_tools_are_read(rig: Rig) -> None:
    async with rig.pool(rig.raw("pages")) as pool:
        tools = await pool.server("server").tools()
        assert pool.states()["server"].tool_count == 6
    assert [tool.name for tool in tools] == [f"tool_{p}_{i}" for p in range(3) for i in range(2)]


ODD_NAMES = ["twice", "__import__", "class", "a b", "\u202eevil"]


@pytest.mark.parametrize(
    ("mode", "expected", "message"),
    [
        ("same-cursor", ["only"], "does not end"),
        ("odd-tools", ODD_NAMES, "more than once"),
        ("no-tools", [], ""),
    ],
)
async def test_an_odd_list_of_tools_is_used_as_far_as_it_is_valid(
    rig: Rig, caplog: pytest.LogCaptureFixture, mode: str, expected: list[str], message: str
) -> None:
    async with rig.pool(rig.raw(mode)) as pool:
        tools = await pool.server("server").tools()
    assert [tool.name for tool in tools] == expected
    assert [tool.description for tool in tools if tool.name == "twice"] in ([], ["the first"])
    assert message in caplog.text


async def test_a_list_is_refreshed_on_demand(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.pool(rig.raw("quiet")) as pool:
        before = await pool.server("server").tools()
        await pool.call_tool("server", "grow", {})
        assert await pool.server("server").tools(refresh=True) is before
        monkeypatch.setattr(session, "MIN_CACHE_SECONDS", 0.0)
        assert await pool.server("server").tools() is before
        assert "grown" in [tool.name for tool in await pool.server("server").tools(refresh=True)]
        assert "grown" in [tool.name for tool in await pool.server("server").tools()]


@pytest.mark.parametrize(("era", "kept"), [("modern", False), ("legacy", True)])
async def test_a_list_expires(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, era: ProtocolMode, kept: bool
) -> None:
    monkeypatch.setattr(listing, "MIN_CACHE_SECONDS", 0.0)
    spec = rig.raw("quiet", env={"TTL_MS": "1"})
    async with rig.pool(spec, server_settings=with_protocol(era)) as pool:
        before = await pool.server("server").tools()
        await pool.call_tool("server", "grow", {})
        for _ in range(20):
            # Together they take longer than the list lives.
            await pool.call_tool("server", "echo", {})
        assert (await pool.server("server").tools() is before) == kept


@pytest.mark.parametrize(
    ("ttl", "announced", "seconds"),
    [
        (60_000, True, 60.0),
        (60_000, False, 60.0),
        (1, True, listing.MIN_CACHE_SECONDS),
        (1e300, True, 24 * 3600.0),
        (10**400, True, 24 * 3600.0),
        (math.inf, True, 24 * 3600.0),
        (math.nan, True, math.inf),
        (0, True, math.inf),
        (0, False, listing.MIN_CACHE_SECONDS),
        (-5, True, math.inf),
        (None, False, listing.MIN_CACHE_SECONDS),
        ("60000", True, math.inf),
        (True, True, math.inf),
    ],
)
def test_how_long_a_list_counts(ttl: Json, announced: bool, seconds: float) -> None:
    page = {} if ttl is None else {"ttlMs": ttl}
    assert listing.cache_seconds(page, announced=announced) == seconds


@pytest.mark.slow
async def test_a_server_that_does_not_list_its_tools_is_restarted(rig: Rig) -> None:
    outcomes: list[object] = []
    async with rig.pool(rig.raw(call_timeout=5.0)) as pool:

        async def ask() -> None:
            try:
                outcomes.append({tool.name for tool in await pool.server("server").tools()})
            except BridgeError as error:
                outcomes.append(type(error))

        await pool.call_tool("server", "jam", {})
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tg:
                for _ in range(4):
                    tg.start_soon(ask)
        assert pool.states()["server"].restarts == 1
        assert outcomes.count(CallTimeoutError) == 1
        assert sum("echo" in found for found in outcomes if isinstance(found, set)) == 3
    assert len(rig.pids()) == 2


async def give_up(call: Callable[[], Awaitable[object]], by: str) -> None:
    """Let a call with a timeout of 0.1 s time out, or cancel it."""
    if by == "timeout":
        with pytest.raises(CallTimeoutError):
            await call()
    else:
        with anyio.move_on_after(0.05):
            await call()


@pytest.mark.parametrize("by", ["timeout", "cancellation"])
async def test_a_server_that_answers_nothing_after_a_lost_call_is_restarted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.2)
    caller = FakeCaller()
    async with rig.pool(rig.raw(call_timeout=0.3)) as pool:
        await pool.call_tool("server", "jam", {})
        await give_up(partial(pool.call_tool, "server", "echo", {}, timeout=0.1), by)
        await until(lambda: pool.states()["server"].state == "failed")
        assert rig.survivors() == rig.pids()
        with on_behalf_of(caller):
            assert (await pool.call_tool("server", "echo", {}))["content"]
        assert pool.states()["server"].restarts == 1
    assert caller.restarted == ["server"]


@pytest.mark.parametrize("by", ["timeout", "cancellation"])
async def test_a_busy_server_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """It answers one request at a time, and this one takes longer than the probe's least time."""
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.1)
    async with rig.pool(rig.raw(call_timeout=PATIENCE_SECONDS)) as pool:
        await give_up(partial(pool.call_tool, "server", "busy", {"seconds": 1.0}, timeout=0.1), by)
        assert (await pool.call_tool("server", "echo", {}))["content"]
        assert pool.states()["server"].restarts == 0


async def test_an_idle_server_is_closed_and_comes_back(rig: Rig) -> None:
    async with rig.pool(rig.raw(), idle_seconds=0.05) as pool:
        tools = await pool.server("server").tools()
        await until(lambda: pool.states()["server"].state == "idle")
        await wait_dead(rig.pids()[0])
        assert await pool.server("server").tools() is tools
        async with anyio.create_task_group() as tg:
            tg.start_soon(pool.call_tool, "server", "never", {"started": rig.path("started")})
            await wait_file(rig.path("started"))
            with anyio.move_on_after(0.2):
                await until(lambda: pool.states()["server"].state != "ready")
            assert pool.states()["server"].state == "ready"
            tg.cancel_scope.cancel()
    assert len(rig.pids()) == 2


async def test_a_new_configuration_keeps_what_is_unchanged(rig: Rig) -> None:
    kept, changed, removed = (rig.raw(name=name) for name in ("kept", "changed", "removed"))
    async with rig.pool(kept, changed, removed) as pool:
        with raises_code("unknown_server", match="'other'") as caught:
            await pool.call_tool("other", "echo", {})
        assert "'kept', 'changed', 'removed'" in caught.value.remedy
        for name in pool.names():
            await pool.server(name).start()
        pids = {name: state.pid for name, state in pool.states().items()}
        pool.update([kept, replace(changed, env={"NEW": "1"}), rig.raw(name="added")])
        assert pool.names() == ("kept", "changed", "added")
        for name in ("changed", "removed"):
            await wait_dead(pids[name] or 0)
        await pool.call_tool("changed", "echo", {})
        assert pool.states()["kept"].pid == pids["kept"]
        assert is_alive(pids["kept"] or 0)
        with raises_code("unknown_server"):
            pool.spec("removed")


async def test_a_call_under_way_outlives_a_change_of_configuration(rig: Rig) -> None:
    rig.environ["CANCELLED"] = rig.path("cancelled")
    async with rig.pool(rig.raw()) as pool, anyio.create_task_group() as tg:
        tg.start_soon(pool.call_tool, "server", "never", {"started": rig.path("started")})
        await wait_file(rig.path("started"))
        pool.update([])
        assert rig.survivors() == rig.pids()
        tg.cancel_scope.cancel()
    assert "cancelled" in {path.name for path in rig.directory.iterdir()}


def test_of_two_same_names_the_first_counts(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    pool = rig.pool(rig.raw("one"), rig.raw("two"))
    assert pool.spec("server").args[-1] == "one"
    assert "defined twice" in caplog.text


async def test_calls_under_way_fail_when_the_pool_closes(rig: Rig) -> None:
    async with anyio.create_task_group() as tg:
        async with rig.pool(rig.raw()) as pool:

            async def call() -> None:
                with raises_code("server_lost"):
                    await pool.call_tool("server", "never", {"started": rig.path("started")})

            tg.start_soon(call)
            await wait_file(rig.path("started"))
        with raises_code("server_lost", match="is closed"):
            await pool.call_tool("server", "echo", {})


async def test_a_server_runs_without_its_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.log_dir = rig.directory / "file" / "logs"
    (rig.directory / "file").write_text("in the way")
    async with rig.pool(rig.raw()) as pool:
        with raises_code("server_lost", match="about to crash"):
            await pool.call_tool("server", "crash", {})
    assert "no log file" in caplog.text


async def test_a_killed_bridges_servers_end(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    program = f"""
        import os, signal, anyio
        from pathlib import Path
        from tests.upstream.rig import Rig
        async def main():
            rig = Rig(Path({str(rig.directory)!r}))
            async with rig.pool(rig.raw("stubborn")) as pool:
                await pool.server("server").start()
                os.kill(os.getpid(), signal.SIGKILL)
        anyio.run(main)
    """
    await anyio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    )
    (orphan,) = rig.pids()
    assert is_alive(orphan)
    async with rig.pool():
        await wait_dead(orphan)


async def test_an_error_about_a_session_restarts_no_server_that_lists_tools(pool: Pool) -> None:
    with pytest.raises(ToolCallError, match=r"\(code -32042\)$"):
        await pool.call_tool("server", "refuse", {"message": "no such session"})
    await pool.call_tool("server", "echo", {})
    assert pool.state("server").restarts == 0


async def test_an_exception_leaves_a_pool_unchanged(rig: Rig) -> None:
    with pytest.raises(KeyError):
        async with rig.pool():
            raise KeyError


@pytest.mark.parametrize("version", OLDER)
async def test_each_older_version_is_spoken(rig: Rig, wire: Wire, version: str) -> None:
    inquirer = rig.spec(sys.executable, str(SERVERS / "inquirer.py"), version)
    async with rig.pool(inquirer, roots=[rig.directory]) as pool:
        result = await pool.call_tool("server", "ask", {"method": "roots/list", "params": {}})
        assert pool.state("server").server_info["protocol"] == version
    root = {"uri": rig.directory.as_uri(), "name": rig.directory.name}
    assert result["structuredContent"] == {"replies": [{"roots": [root]}]}
    # The handshake's two, the call and the answer; the list of tools is not needed for a call.
    assert wire.sent["2025-11-25"] >= 4
