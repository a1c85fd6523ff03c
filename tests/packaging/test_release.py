"""The packages in empty environments, homes and containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from scripts import package
from tests.clients.client import PEERS
from tests.clients.exchange import bridge_environ
from tests.clients.model import program, scripted, serving
from tests.interpreters import require
from tests.record import text_of

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
PATIENCE_SECONDS = 600.0

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    subprocess.run(["scripts/node-peers", "packaging/node"], cwd=ROOT, check=True)
    dist = tmp_path_factory.mktemp("dist")
    package.release(["wheel", "bundle", "plugin", "registry"], dist)
    return dist


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home and uv."""
    network = ("UV_", "PIP_", "SSL_", "HTTP", "http", "NO_PROXY", "no_proxy")
    cache = subprocess.check_output([SCRIPTS / "uv", "cache", "dir"], text=True)
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(network)},
        "PATH": f"{SCRIPTS}{os.pathsep}{os.defpath}",
        "UV_CACHE_DIR": cache.strip(),
        "UV_PYTHON": sys.executable,
        **bridge_environ(tmp_path / "home", {}),
    }


def run_command(*command: str | Path, environ: Mapping[str, str], cwd: Path) -> str:
    done = subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_the_wheel_runs_a_program_in_an_empty_environment(
    tmp_path: Path, dist: Path, environ: dict[str, str], version: str
) -> None:
    [wheel] = dist.glob("*.whl")
    place = tmp_path / "environment"
    environ |= {"UV_PYTHON": require(version)}
    run_command("uv", "venv", "--quiet", place, environ=environ, cwd=tmp_path)
    environ |= {"UV_PYTHON": str(place / "bin" / "python")}
    run_command("uv", "pip", "install", "--quiet", wheel, environ=environ, cwd=tmp_path)
    command = (place / "bin" / "mcp-code-bridge", "run", "-c", "print(6 * 7)")
    assert run_command(*command, environ=environ, cwd=tmp_path) == "42\n"


def test_uvx_runs_a_program_from_the_wheel(
    tmp_path: Path, dist: Path, environ: dict[str, str]
) -> None:
    [wheel] = dist.glob("*.whl")
    command = ("uvx", "--quiet", "--from", wheel, "mcp-code-bridge", "run", "-c", "print(6 * 7)")
    assert run_command(*command, environ=environ, cwd=tmp_path) == "42\n"


CONFIG = """
import { readFileSync } from "node:fs";
import { getMcpConfigForManifest } from "@anthropic-ai/mcpb";
const [folder, chosen] = process.argv.slice(2);
const config = await getMcpConfigForManifest({
  manifest: JSON.parse(readFileSync(`${folder}/manifest.json`)), extensionPath: folder,
  systemDirs: {}, userConfig: JSON.parse(chosen), pathSeparator: "/", logger: console,
});
console.log(JSON.stringify(config));
"""
"""Reads a manifest as a host does, with the format's own library."""


async def start_bundle(folder: Path, chosen: Mapping[str, str], environ: Mapping[str, str]) -> Any:
    """Start a bundle as a host does; return the text of a program's result."""
    script = ROOT / "packaging" / "node" / "node_modules" / "host.mjs"
    script.write_text(CONFIG)
    node = ("node", script, folder, json.dumps(chosen))
    config = json.loads(run_command(*node, environ=environ, cwd=folder))
    parameters = StdioServerParameters(
        command=config["command"],
        args=config["args"],
        env={**environ, **config["env"]},
        cwd=folder.parent,
    )
    with (folder.parent / "bundle.log").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            result = await client.call_tool("run_python", {"code": "print(6 * 7)"})
            return text_of(result)


@pytest.fixture
def bundle(tmp_path: Path, dist: Path) -> Path:
    [packed] = dist.glob("*.mcpb")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.mark.node
@pytest.mark.parametrize(
    "chosen", [{"sandbox": "bubblewrap"}, {"sandbox": "bubblewrap", "policy": "ask"}]
)
async def test_the_bundle_runs_a_program_in_an_empty_home(
    bundle: Path, environ: dict[str, str], chosen: dict[str, str]
) -> None:
    del environ["MCP_BRIDGE_CONFIG"]
    assert "42" in await start_bundle(bundle, chosen, environ)


@pytest.mark.node
def test_claude_lists_and_calls_the_plugin_s_tool(
    tmp_path: Path, dist: Path, environ: dict[str, str]
) -> None:
    home = tmp_path / "claude"
    (home / "project").mkdir(parents=True)
    with serving([program("print(6 * 7)")]) as model:
        more = {
            **environ,
            "HOME": str(home),
            "UV_FIND_LINKS": str(dist),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "MCP_TIMEOUT": "300000",
        }
        tools = "mcp__plugin_mcp-code-bridge_bridge"
        command = (PEERS / "node_modules" / ".bin" / "claude", "-p", "go", "--plugin-dir")
        options = (ROOT / "packaging" / "plugin", "--allowedTools", tools)
        printed = run_command(*command, *options, environ=more, cwd=home / "project")
    assert model.requests, printed
    # Claude looks up the tools of slow servers later, so the last request has them.
    last = model.requests[-1]
    assert f"{tools}__run_python" in last.tools
    assert f"{package.product()['name']}:code-mode" in json.dumps(last.tools) + last.told
    assert [result.text.partition("\n[run ")[0] for result in scripted(last)] == ["42\n"]


CONTAINED = ("--security-opt", "seccomp=unconfined", "--security-opt", "unmask=ALL")
"""Options that let bubblewrap create its sandboxes inside a container."""

CLIENT = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
PARAMS = {"protocolVersion": "2025-11-25", **CLIENT}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS}


def in_image(*words: str, options: tuple[str, ...] = (), stdin: str = "") -> tuple[int, str]:
    """Run the image as an ordinary user, without a network; return its status and output."""
    podman = (os.environ["MCP_TEST_ROOTLESS_RUN"], "podman", "run", "--interactive", "--rm")
    command = (*podman, "--network", "none", *options, f"localhost/{NAME}", *words)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    return done.returncode, done.stdout + done.stderr


NAME = f"{package.product()['name']}:{package.product()['version']}"


@pytest.mark.podman
@pytest.mark.rootless
def test_the_image_answers_and_runs_programs_where_namespaces_are_allowed(dist: Path) -> None:
    package.release(["deb", "image"], dist)
    [archive] = dist.glob("*-image.tar")
    inspected = subprocess.check_output(["podman", "image", "inspect", f"localhost/{NAME}"])
    [image] = json.loads(inspected)
    registered = package.product()["registry_name"]
    assert image["Labels"]["io.modelcontextprotocol.server.name"] == registered
    with archive.open("rb") as file:
        load = [os.environ["MCP_TEST_ROOTLESS_RUN"], "podman", "load", "--quiet"]
        subprocess.run(load, stdin=file, check=True)
    _, hello = in_image(stdin=json.dumps(HELLO) + "\n")
    assert json.loads(hello.splitlines()[0])["result"]["serverInfo"]["name"] == "mcp-code-bridge"
    program = ("run", "-c", "print(6 * 7)")
    status, said = in_image(*program)
    assert status
    assert " ".join(CONTAINED) in said
    assert in_image(*program, options=CONTAINED) == (0, "42\n")
