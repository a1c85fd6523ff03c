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


@pytest.mark.slow
async def test_text_of_any_language_is_whole_whatever_the_bridge_s_locale_is(user: User) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as client:
            printed = await client.call_tool("run_python", {"code": "print('é漢\U0001f600ß')"})
    assert document_of(printed)["stdout"] == ["é漢😀ß"]


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
