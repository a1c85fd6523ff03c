"""The main job, on real input: client, bridge, container, servers.

`make run` calls this. It names a file of servers from the package registries in MCP_SERVERS_CONFIG,
starts the bridge as a client would, and has it run `repository_report.py`. Your
settings and servers are left out. It prints the results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from bridge.discovery.clients import SOURCE_IDS

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
SCRIPTS = Path(sys.executable).parent
TIME = "mcp-server-time==2026.10.19"
FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
# What `npx` starts looks for `node` there.
ENVIRON = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}

FILES_PROGRAM = """
names = (await mcp_filesystem.list_directory(path=REPOSITORY)).splitlines()
print(len(names), "entries in the repository, seen by the filesystem server")
"""

COUNT_PROGRAM = """
from mcp import runtime
sum([len(await runtime.list_tools(name)) for name in await runtime.list_servers()])
"""


def servers(repository: Path) -> dict[str, dict[str, object]]:
    """Return the servers, started as people start them; `npx` and `uvx` fetch theirs first."""
    return {
        "git": {
            "command": str(SCRIPTS / "mcp-server-git"),
            "args": ["--repository", str(repository)],
        },
        "time": {"command": str(SCRIPTS / "uvx"), "args": [TIME, "--local-timezone", "UTC"]},
        "filesystem": {
            "command": str(SCRIPTS / "npx"),
            "args": ["-y", FILESYSTEM, str(repository)],
        },
    }


async def demonstrate(repository: Path, runtime: str) -> int:
    """Run the programs and show the results."""
    configured = servers(repository)
    with tempfile.TemporaryDirectory() as project, tempfile.TemporaryDirectory() as state:
        config = Path(project) / "servers.json"
        config.write_text(json.dumps({"mcpServers": configured}, indent=2))
        settings = Path(project) / "config.toml"
        settings.touch()
        print(f"{', '.join(configured)} in the file that MCP_SERVERS_CONFIG names.")
        bridge = StdioServerParameters(
            command=str(SCRIPTS / "mcp-code-bridge"),
            cwd=project,
            env={
                **ENVIRON,
                "MCP_BRIDGE_RUNTIME": runtime,
                "MCP_BRIDGE_CONFIG": str(settings),
                "MCP_BRIDGE_SOURCES": ",".join(f"-{name}" for name in SOURCE_IDS),
                "MCP_SERVERS_CONFIG": str(config),
                "MCP_BRIDGE_LOG_LEVEL": "ERROR",
                "MCP_BRIDGE_BACKGROUND": "off",
                "MCP_BRIDGE_STATE_DIR": state,
                "MCP_BRIDGE_START_TIMEOUT": "300",
            },
        )
        async with Client(stdio_client(bridge)) as client:
            prefix = f"import sys\nsys.argv[1:] = [REPOSITORY := {str(repository)!r}]\n"
            programs = [(HERE / "repository_report.py").read_text(), FILES_PROGRAM]
            for program in programs:
                status = await show(client, prefix + program)
                if status:
                    return status
            offered = (await client.list_tools()).tools
            counted = await client.call_tool("run_python", {"code": COUNT_PROGRAM})
            tools = record(counted)["result"]
            definitions = [
                tool.model_dump_json(by_alias=True, exclude_none=True) for tool in offered
            ]
            sizes = [
                f"{tool.name} ({len(text):,} bytes)"
                for tool, text in zip(offered, definitions, strict=True)
            ]
            print(f"The model sees {' and '.join(sizes)} in place of {tools} tools.\n")
    return 0


def record(result: CallToolResult) -> dict[str, Any]:
    """Return what a result tells programs; the model reads the text."""
    document: dict[str, Any] = (result.meta or {})["mcp-code-bridge/result"]
    return document


async def show(client: Client, code: str) -> int:
    """Run one program and print its result; return 1 if it failed."""
    result = await client.call_tool("run_python", {"code": code, "timeout": 60})
    print("".join(getattr(block, "text", "") for block in result.content).rstrip())
    document = record(result)
    if result.is_error:
        return 1
    usage, isolation = document["usage"], document["isolation"]
    print(
        f"\n  {usage['toolCalls']} tool call{'' if usage['toolCalls'] == 1 else 's'} to "
        f"{' and '.join(document['servers'])}, "
        f"{usage['wallMs']:,} ms; {usage['toolResultBytes']:,} bytes of tool results "
        "stayed out of the conversation."
    )
    where = "/".join(filter(None, (isolation["backend"], isolation.get("ociRuntime"))))
    print(f"  Ran in {where}: ", end="")
    print(", ".join(isolation["layers"]) + ".")
    for text in isolation.get("weaker", []):
        print(f"  Weaker: {text}")
    print()
    return 0


def price(repository: Path, runtime: str) -> str:
    """Return what the first program costs a model in Claude Code; nothing where that is missing."""
    if not (REPOSITORY / "tests/node/node_modules/.bin/claude").exists():
        return ""
    done = subprocess.run(
        [sys.executable, "-m", "tests.clients.cost", runtime, json.dumps(servers(repository))],
        input=f"REPOSITORY = {str(repository)!r}\n{(HERE / 'repository_report.py').read_text()}",
        cwd=REPOSITORY,
        # The bridge's servers have been fetched, and this client reaches no registry.
        env={**ENVIRON, "npm_config_offline": "true", "UV_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def main() -> int:
    """Parse the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--runtime", default=os.environ.get("MCP_BRIDGE_RUNTIME", "auto"))
    arguments = parser.parse_args()
    status = anyio.run(demonstrate, arguments.repository.resolve(), arguments.runtime)
    if status == 0:
        bridge = shutil.which("mcp-code-bridge") or SCRIPTS / "mcp-code-bridge"
        print("To add the bridge to Claude Code:\n")
        print(f"  claude mcp add --scope user code-bridge -- {bridge}\n", flush=True)
        print(price(arguments.repository.resolve(), arguments.runtime), end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
