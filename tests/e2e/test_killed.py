"""A bridge that is killed in the middle of a session: the next one continues; nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError

from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, User, containers, document_of, text_of
from tests.processes import processes
from tests.security.rig import groups
from tests.session_rig import saved_sessions
from tests.waiting import until, until_exists

BEGIN = """
import subprocess, sys
total = 40
def more(n):
    return total + n
open("a.txt", "w").write("kept")
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", {mark!r}]).pid
"""
HOLD_ON = """
total = 0
open("a.txt", "w").write("lost")
await mcp_workshop.slow(started={started!r}, cancelled="/dev/null")
"""
GO_ON = '[more(2), open("a.txt").read()]'


@pytest.fixture(params=["bubblewrap", pytest.param("podman", marks=pytest.mark.podman)])
def engine_name(request: pytest.FixtureRequest) -> str:
    """One without and one with an engine that would go on by itself."""
    name: str = request.param
    return name


def _bridge(user: User) -> int:
    """Return the id of the only bridge that serves the user."""
    if user.background == "on":
        [number] = user.background_bridges()
        return number
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    [bridge] = [
        pid
        for pid in own
        if os.fsencode(BRIDGE) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
    return int(bridge)


def _groups(bridge: int) -> list[str]:
    return groups(f"mcp-code-bridge_{bridge}_")


async def _run(client: Client, code: str) -> dict[str, object]:
    arguments = {"code": code, "session": "work", "servers": ["workshop"]}
    result = await client.call_tool("run_python", arguments)
    document = document_of(result)
    assert document["status"] == "success", text_of(result)
    return document


@pytest.mark.slow
async def test_a_session_survives_its_bridge_as_it_was_after_its_last_whole_run(
    user: User, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    state = user.home / "state" / "mcp-code-bridge"
    hold_on = HOLD_ON.format(started=str(started))

    async def held(client: Client) -> None:
        with pytest.raises(MCPError):
            await _run(client, hold_on)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(MCP_BRIDGE_WARM="0") as client:
            first = await _run(client, BEGIN.format(mark=user.mark))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(held, client)
                await until_exists(started)
                assert processes(user.mark)
                assert saved_sessions(state) == 1
                bridge = _bridge(user)
                if user.engine == "podman":
                    assert len(containers(user.engine, bridge)) == 1
                else:
                    assert _groups(bridge)
                os.kill(bridge, signal.SIGKILL)
        await until(lambda: not processes(user.mark) and not user.server_processes())
        async with user.client(MCP_BRIDGE_WARM="0") as client:
            again = await _run(client, GO_ON)
            assert again["result"] == [42, "kept"]
            before, now = first["session"], again["session"]
            assert isinstance(before, dict)
            assert isinstance(now, dict)
            assert (now["id"], now["state"], now["run"]) == (before["id"], "restored", 2)
            # Of the first nothing, and of this one what it uses.
            await until(lambda: not _groups(bridge))
            if user.engine == "podman":
                await until(lambda: not containers(user.engine, bridge))
                assert len(containers(user.engine, _bridge(user))) == 1
        user.end_background()
        await until(lambda: user.engine == "bubblewrap" or not user.containers())
        files = [path.name for path in (user.home / "run").rglob("*") if not path.is_dir()]
        # A lock stays: another process may wait for it.
        files = [name for name in files if not name.endswith(".lock")]
        assert [name for name in files if not name.startswith("seccomp-")] == []
