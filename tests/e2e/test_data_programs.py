"""Programs for data with real packages, through the real bridge: the text that a model gets."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
import tomlkit
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ImageContent

from tests.e2e.rig import BRIDGE
from tests.packages.rig import open_directory
from tests.record import texts_of

PROGRAMS = Path(__file__).with_suffix("").with_name("data_programs.toml")


async def texts(home: Path, engine: str, programs: dict[str, Any]) -> dict[str, str]:
    environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_RUNTIME": engine}
    for name in ("XDG_CONFIG_HOME", "MCP_BRIDGE_STATE_DIR"):
        environ.pop(name, None)
    server = StdioServerParameters(command=str(BRIDGE), args=["serve"], env=environ)
    found = {}
    async with Client(stdio_client(server)) as client:
        for name, program in programs.items():
            asked = {key: value for key, value in program.items() if key != "text"}
            result = await client.call_tool("run_python", {"timeout": 120, **asked})
            texts = texts_of(result)
            texts += [f"<{x.mime_type}>" for x in result.content if isinstance(x, ImageContent)]
            text = re.sub(r"(bridge://|read_output\(\")[\w/]+", r"\1...", "\n".join(texts))
            text = text if len(text) < 3000 else f"{text[:500]}... ({len(text)} characters)"
            text = re.sub(r"/usr/bin/python3(\.\d+)?\b", "/usr/bin/python3", text)
            # A quota and a full file system answer differently.
            text = re.sub(r"\[Errno 2[78]\] [\w ]+", "[Errno 28] No space left on device", text)
            found[name] = re.sub(r"(\((?!text)\w+/\S+), [\d.,]+ \w+\)", r"\1)", text).strip()
    return found


@pytest.mark.full
@pytest.mark.parametrize("engine", ["bubblewrap", "podman"])
def test_a_model_gets_of_data_programs_what_it_got(engine: str) -> None:
    programs = tomllib.loads(PROGRAMS.read_text())
    with open_directory() as home:
        (home / ".config/mcp-code-bridge").mkdir(parents=True)
        settings = f'[dependencies]\nallow = ["*"]\ncache = "{home}/packages"\n'
        (home / ".config/mcp-code-bridge/config.toml").write_text(settings)
        found = anyio.run(texts, home, engine, programs)
    if os.environ.get("UPDATE_DATA_PROGRAMS"):
        document = tomlkit.parse(PROGRAMS.read_text())
        for name, text in found.items():
            document[name]["text"] = tomlkit.string(text, multiline=True)
        PROGRAMS.write_text(tomlkit.dumps(document))
    assert found == {name: program["text"].strip() for name, program in programs.items()}
