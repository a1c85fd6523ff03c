"""The main job: client, bridge, container, servers; and nothing left afterwards."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.e2e.rig import PATIENCE_SECONDS, User, document_of, text_of
from tests.waiting import until, until_exists

TWO_SERVERS = """
import asyncio
now, log = await asyncio.gather(
    mcp_time.get_current_time(timezone="UTC"),
    mcp_git.git_log(repo_path=REPOSITORY, max_count=5),
)
print("first light" in str(log), now.timezone)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "runs"), [("auto", 20), ("legacy", 5)])
async def test_many_runs_with_two_servers_succeed_and_leave_nothing(
    user: User, mode: str, runs: int
) -> None:
    code = f"REPOSITORY = {str(user.project)!r}\n{TWO_SERVERS}"
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(mode) as client:
            for _ in range(runs):
                result = await client.call_tool(
                    "run_python", {"code": code, "servers": ["time", "git"]}
                )
                assert result.is_error is False, text_of(result)
                document = document_of(result)
                assert document["stdout"] == ["True UTC"]
                assert document["servers"] == ["time", "git"]
                assert document["isolation"]["backend"] == user.engine
            assert user.servers_running() == 2
    user.end_background()
    await until(lambda: not user.server_processes())
    await until(lambda: not user.containers())


ENDS = [
    ("while True: pass", "timeout", "timeout"),
    ("x = b'a' * 10**9", "error", "oom"),
    ("import ctypes; ctypes.string_at(0)", "error", "crash"),
    ("import os; os._exit(0)", "error", "exit"),
    ("import sys; sys.exit(3)", "error", "exit"),
    ("raise SystemExit", "success", None),
    ("1 +", "validation_error", "validation"),
]
"""Programs, and what their results have to say."""

AFTER = "print('é漢\U0001f600ß')"


@pytest.mark.slow
@pytest.mark.every_case
async def test_every_end_has_its_name_and_the_next_run_works(user: User) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as client:
            for code, status, reason in ENDS:
                # Time enough for every other end, on a busy machine too.
                seconds = 2 if reason == "timeout" else 60
                arguments = {"code": f"print('before')\n{code}", "timeout": seconds}
                document = document_of(await client.call_tool("run_python", arguments))
                assert (document["status"], document.get("reason")) == (status, reason), document
                if status != "validation_error":
                    assert document["stdout"] == ["before"], document
                after = await client.call_tool("run_python", {"code": AFTER})
                assert document_of(after).get("stdout") == ["é漢\U0001f600ß"], (code, after)


async def test_a_client_that_disappears_in_a_run_leaves_nothing(user: User, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"await mcp_workshop.slow(started={str(started)!r}, cancelled='/dev/null')"
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "run_python", {"code": code})
            await until_exists(started)
            tasks.cancel_scope.cancel()
    user.end_background()
    await until(lambda: not user.server_processes())
    await until(lambda: not user.containers())
