"""What clients of either era see of a program's output and progress while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import LoggingMessageNotificationParams

from bridge.runs import Engine
from bridge.server.app import build_server

CODE = """
import os, time
runtime.progress(1, 4, "loading")
print("first line", flush=True)
print("a warning", file=__import__("sys").stderr, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_output_and_progress_reach_a_client_that_wants_them(
    engine: Engine, era: str, tmp_path: Path
) -> None:
    """Before the program's end; a client that has set no level gets no messages."""
    go = tmp_path / "go"
    heard: dict[str, str] = {}
    seen: list[tuple[float, float | None, str | None]] = []
    complete = anyio.Event()

    def look() -> None:
        told = era != "legacy" or any("first line" in str(text) for _, _, text in seen)
        if told and {"info", "notice"} <= heard.keys():
            complete.set()

    async def hear(params: LoggingMessageNotificationParams) -> None:
        assert params.logger == "run_python"
        heard[params.level] = heard.get(params.level, "") + str(params.data)
        look()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        look()

    async with Client(build_server(engine), mode=era, logging_callback=hear, log_level="info") as c:
        with anyio.fail_after(60):
            code = CODE.format(go=str(go))
            if era == "legacy":
                # The other era has no progress in one process; no level, no messages.
                result = await c.call_tool("run_python", {"code": "print('quiet')"})
                assert (result.is_error, heard) == (False, {})
                with pytest.warns(UserWarning, match="deprecated"):
                    await c.set_logging_level("info")
            async with anyio.create_task_group() as tasks:
                results: list[Any] = []

                async def call() -> None:
                    arguments = {"code": code, "timeout": 50}
                    results.append(
                        await c.call_tool("run_python", arguments, progress_callback=progress)
                    )

                tasks.start_soon(call)
                await complete.wait()
                assert results == []
                go.touch()
    assert heard == {"info": "first line\n", "notice": "a warning\n"}
    if era == "legacy":
        told = next(entry for entry in seen if "first line" in str(entry[2]))
        assert told[2] == "1 of 4, loading · first line"
        assert told[1] == pytest.approx(4 * told[0])
