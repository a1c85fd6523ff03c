"""Real clients from npm list the installed bridge, and no longer after the uninstallation.

Vibe (330 MB, Python 3.12) and Crush (whose package downloads its program) are not tested here.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bridge.client_configs.writers import WRITERS
from tests.clients import kimi
from tests.clients.client import MORE, PATIENCE_SECONDS, PEERS, SCRIPTS
from tests.clients.model import serving
from tests.discovery.writing import write
from tests.ports import reserved_port

pytestmark = pytest.mark.node

BRIDGE = str(SCRIPTS / "mcp-code-bridge")

CLIENTS = {
    "claude-code": (PEERS, "code-bridge: .* Connected"),
    "codex": (PEERS, "code-bridge .* enabled"),
    "gemini": (MORE, "code-bridge: .* Connected"),
    "qwen": (MORE, "code-bridge: .* Connected"),
    "opencode": (MORE, "code-bridge connected"),
    "copilot": (MORE, r"code-bridge \((local|http)\)"),
    "amp": (MORE, "code-bridge (command|url) "),
    "droid": (MORE, "code-bridge (stdio|http) connected"),
    "goose": (MORE, "name: code-bridge\n"),
    "cline": (MORE, r"code-bridge \[(stdio|streamableHttp)\]"),
    "kimi": (MORE, '"name": "code-bridge"'),
}
"""Each client's package directory, and its line about the bridge."""

CONTINUE = """name: mine
version: 0.0.1
schema: v1
models:
  - {{name: stand-in, provider: openai, model: gpt-4o, apiKey: none, apiBase: {url}/v1}}
"""


def each(*without: str) -> pytest.MarkDecorator:
    clients = [
        pytest.param(name, marks=[pytest.mark.full] * (packages == MORE))
        for name, (packages, _) in CLIENTS.items()
        if name not in without
    ]
    return pytest.mark.parametrize("client", clients)


class Home:
    """A home in which the bridge finds the clients of one package directory."""

    def __init__(self, place: Path, client: str) -> None:
        packages, self._line = CLIENTS.get(client, (MORE, ""))
        self._client = client
        self._project = place / "project"
        write(self._project / ".git" / "HEAD", "ref: refs/heads/main\n")
        (place / "tmp").mkdir()
        programs = packages / "node_modules" / ".bin"
        self.environ = {
            "HOME": str(place),
            "TMPDIR": str(place / "tmp"),
            "PATH": os.pathsep.join([str(programs), str(SCRIPTS), os.defpath]),
            "MCP_BRIDGE_BACKGROUND": "off",
            **dict.fromkeys(("CI", "DISABLE_AUTOUPDATER"), "1"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)

    def put_in_and_out(self, *words: str) -> None:
        """Install the bridge, let the client list it, and uninstall it."""
        listed = self.run(BRIDGE, "install", self._client, "--yes", "--check", *words)
        writer, line = WRITERS[self._client], self._line
        if self._client == "kimi":
            listed = kimi.servers([writer.program], self._project, self.environ)
        elif self._client == "goose":
            listed = self.run("goose", "info", "-v")
        elif "project" in words:
            listed = self.run(*writer.command.split())
            line = line.replace("Connected", "(Connected|Pending approval)")
        assert re.search(line, re.sub(r" +", " ", listed)), listed
        self.run(BRIDGE, "uninstall", self._client, "--yes")
        assert "isn't installed in any client" in self.run(BRIDGE, "installed")


@pytest.mark.slow
@each()
def test_a_real_client_lists_the_bridge(client: str, tmp_path: Path) -> None:
    Home(tmp_path, client).put_in_and_out()


@pytest.mark.full
@each("copilot", "cline", "goose")
def test_a_real_client_lists_the_bridge_of_a_project(client: str, tmp_path: Path) -> None:
    trusted = f'[projects."{tmp_path / "project"}"]\ntrust_level = "trusted"\n'
    write(tmp_path / ".codex" / "config.toml", trusted)
    Home(tmp_path, client).put_in_and_out("--scope", "project")


@pytest.mark.slow
@each()
def test_a_real_client_lists_a_bridge_that_serves_http(client: str, tmp_path: Path) -> None:
    home = Home(tmp_path, client)
    with reserved_port() as port:
        command = [BRIDGE, "serve", "--http", f"127.0.0.1:{port}"]
        with subprocess.Popen(
            command, env=home.environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as served:
            assert served.stderr is not None
            assert "Serving http" in served.stderr.readline()
            try:
                home.put_in_and_out("--http", f"http://127.0.0.1:{port}/mcp")
            finally:
                served.terminate()


@pytest.mark.full
def test_the_command_of_continue_gives_its_model_the_bridge(tmp_path: Path) -> None:
    home = Home(tmp_path, "continue")
    with serving([]) as model:
        config = write(tmp_path / ".continue" / "config.yaml", CONTINUE.format(url=model.url))
        before = config.read_bytes()
        home.run(BRIDGE, "install", "continue", "--yes")
        home.run("cn", "-p", "go")
        assert any(name.endswith("run_python") for name in model.requests[0].tools)
    home.run(BRIDGE, "uninstall", "continue", "--yes")
    assert config.read_bytes() == before
