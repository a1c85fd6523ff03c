"""A mistake in the settings, as an MCP client sees it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from bridge.cli import main as cli
from bridge.errors import SettingsError
from bridge.sandbox.backend import Probe
from bridge.server.app import error_server
from bridge.settings import Settings, load


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_mistake_is_the_answer_to_every_call(
    tmp_path: Path, mode: Literal["auto", "legacy"]
) -> None:
    """The handshake and the list of tools go well, so that somebody reads the message."""
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
                assert result.is_error
                text = str(result.content)
                assert said in text
                assert "reconnect this MCP server" in text
        assert said in (tmp_path / "log").read_text()


@pytest.mark.parametrize("value", ["hunter2", "it's hunter2", "'hunter2\" '\n", "h'unter2" * 99])
async def test_a_model_is_not_told_what_the_setting_is(value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_MEMORY": value})
    async with Client(error_server(caught.value)) as client:
        said = (await client.list_tools()).tools[0].description or ""
    assert "unter2" not in said
    assert 'MCP_BRIDGE_MEMORY: [its value] is not a size such as "512m" or "1g".' in said
    assert "unter2" in str(caught.value)


def test_a_person_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--http", "127.0.0.1:0", "--memory", "lots"]) == 2
    assert "--memory: 'lots' is not a size" in capsys.readouterr().err


def test_doctor_tells_a_mistake_and_tries_the_engines_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    async def survey(settings: Settings) -> list[Probe]:
        return [Probe(backend="bubblewrap", ok=True, summary=settings.runtime)]

    monkeypatch.setattr("bridge.cli.doctor.probe_all", survey)
    assert cli.main(["doctor", "--runtime", "lxc"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: --runtime: 'lxc' is not auto")
    assert "default settings" in said.err
    assert "ok    bubblewrap: auto" in said.out
    # A policy that could not be read is not one that allows every call.
    assert "policy: unknown until config.toml is fixed" in said.out
    assert "every call is allowed" not in said.out
