"""`serve`: mistakes in the settings, and edits of configuration files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from bridge.cli import main as cli
from bridge.errors import SettingsError
from bridge.sandbox.backend import Probe
from bridge.server.app import error_server
from bridge.settings import Settings, load
from tests import record
from tests.engine_rig import WORKSHOP
from tests.processes import processes
from tests.waiting import until


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_mistake_answers_each_call(tmp_path: Path, mode: Literal["auto", "legacy"]) -> None:
    config = tmp_path / "config.toml"
    config.write_text("warm = 1\nmemroy = 2\n")
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from bridge.cli.main import main; raise SystemExit(main([]))"],
        env={**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(config)},
    )
    said = f"{config}:2: memroy is not a setting. Did you mean memory?"
    with (tmp_path / "log").open("w+") as log:
        async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["run_python", "search_tools"]
            assert said in (listed.tools[0].description or "")
            for tool in ("run_python", "search_tools"):
                result = await client.call_tool(tool, {"code": "print(1)"})
                text = str(result.content)
                assert (result.is_error, said in text) == (True, True)
                assert "reconnect this MCP server" in text
        assert said in (tmp_path / "log").read_text()


@pytest.mark.parametrize("value", ["hunter2", "it's hunter2", "'hunter2\" '\n", "h'unter2" * 99])
async def test_a_model_does_not_see_a_setting_s_value(value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_MEMORY": value})
    async with Client(error_server(caught.value)) as client:
        said = (await client.list_tools()).tools[0].description or ""
    assert "unter2" not in said
    assert 'MCP_BRIDGE_MEMORY: [its value] is not a size such as "512m" or "1g".' in said
    assert "unter2" in str(caught.value)


def test_http_and_doctor_report_a_mistake_and_doctor_tries_the_engines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["serve", "--http", "127.0.0.1:0", "--memory", "lots"]) == 2
    assert "--memory: 'lots' is not a size" in capsys.readouterr().err

    async def survey(settings: Settings) -> list[Probe]:
        return [Probe(backend="bubblewrap", ok=True, summary=settings.runtime)]

    monkeypatch.setattr("bridge.cli.doctor.probe_all", survey)
    assert cli.main(["doctor", "--runtime", "lxc"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: --runtime: 'lxc' is not auto")
    assert "default settings" in said.err
    assert "ok    bubblewrap: auto" in said.out
    # An unreadable policy does not allow every call.
    assert "policy: unknown until config.toml is fixed" in said.out
    assert "every call is allowed" not in said.out


BRIDGE = Path(sys.executable).with_name("mcp-code-bridge")

LONG_RUN = "print(await mcp_stays.meet(count=2, party='hall'))"
START_BOTH = "print(await mcp_changes.add(a=1, b=1), await mcp_stays.add(a=1, b=1))"


def configure(project: Path, **marks: str) -> None:
    """Write a configuration of workshops, each with its own mark in the environment."""
    servers = {
        name: {"command": sys.executable, "args": [str(WORKSHOP)], "env": {"MARK": mark}}
        for name, mark in marks.items()
    }
    fresh = project / "new"
    fresh.write_text(json.dumps({"mcpServers": servers}))
    # Editors replace a file, so the watched path becomes another file.
    fresh.replace(project / ".claude.json")


def server_processes(mark: str) -> dict[int, str]:
    return processes(variable=f"MARK={mark}")


async def text_of(client: Client, code: str) -> str:
    result = await client.call_tool("run_python", {"code": code, "timeout": 60})
    return record.text_of(result)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc, and runs in bubblewrap")
async def test_an_edit_reaches_the_client_and_disturbs_nothing(tmp_path: Path, mode: Any) -> None:
    """[bubblewrap] An unchanged server keeps its run; a changed one is started again."""
    stays, first, second = (f"{tmp_path}-{name}" for name in ("stays", "first", "second"))
    configure(tmp_path, stays=stays, changes=first)
    environ = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "MCP_BRIDGE_BACKGROUND": "off",
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
        "MCP_BRIDGE_WARM": "0",
    }
    news = anyio.Event()

    async def handle(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            news.set()

    async def wait_for_news(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                news.set()

    parameters = StdioServerParameters(command=str(BRIDGE), cwd=tmp_path, env=environ)
    with anyio.fail_after(120), (tmp_path / "log").open("w") as log:
        connection = stdio_client(parameters, errlog=log)
        async with (
            Client(connection, mode=mode, message_handler=handle) as client,
            anyio.create_task_group() as tasks,
        ):
            if mode != "legacy":
                tasks.start_soon(wait_for_news, client)
            said: list[str] = []

            async def long_run() -> None:
                said.append(await text_of(client, LONG_RUN))

            assert await text_of(client, START_BOTH), log
            assert "mcp_third" not in ((await client.list_tools()).tools[0].description or "")
            before = server_processes(stays), server_processes(first)
            assert all(before)
            async with anyio.create_task_group() as runs:
                runs.start_soon(long_run)
                configure(tmp_path, stays=stays, changes=second, third=second)
                await news.wait()
                assert "mcp_third" in ((await client.list_tools()).tools[0].description or "")
                await until(lambda: not server_processes(first))
                assert server_processes(stays) == before[0]
                # The running program waits for this one in the server's memory.
                said.append(await text_of(client, LONG_RUN))
            assert len(said) == 2
            assert "rror" not in "".join(said)
            assert "2" in await text_of(client, START_BOTH)
            assert server_processes(second)
            tasks.cancel_scope.cancel()
