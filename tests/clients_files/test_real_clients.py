"""Real clients, from npm, list the bridge once it is installed, and no more once it is not."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.client import MORE, PATIENCE_SECONDS, PEERS, SCRIPTS
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
}
"""Where their packages are, and the line with which each says that the bridge is there."""


EACH = pytest.mark.parametrize(
    "client",
    [
        pytest.param(name, marks=[pytest.mark.full] * (packages == MORE))
        for name, (packages, _) in CLIENTS.items()
    ],
)


class Home:
    """A home in which the bridge's commands find the clients of one directory of packages."""

    def __init__(self, place: Path, client: str) -> None:
        packages, self._line = CLIENTS[client]
        self._project = place / "project"
        (self._project / ".git").mkdir(parents=True)
        (place / "tmp").mkdir()
        programs = packages / "node_modules" / ".bin"
        self.environ = {
            "HOME": str(place),
            "TMPDIR": str(place / "tmp"),
            "PATH": os.pathsep.join([str(programs), str(SCRIPTS), os.defpath]),
            "CI": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *words: str) -> str:
        """Run a command of the bridge; return what it prints."""
        done = subprocess.run(
            [BRIDGE, *words],
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
        return done.stdout

    def put_in_and_out(self, client: str, *words: str) -> None:
        """Install the bridge, let the client list it, and uninstall it."""
        listed = self.run("install", client, "--yes", "--check", *words)
        assert re.search(self._line, re.sub(r" +", " ", listed)), listed
        self.run("uninstall", client, "--yes")
        assert "in no client's file" in self.run("installed")


@EACH
def test_a_real_client_lists_the_bridge(client: str, tmp_path: Path) -> None:
    Home(tmp_path, client).put_in_and_out(client)


@EACH
def test_a_real_client_lists_a_bridge_that_serves_http(client: str, tmp_path: Path) -> None:
    home = Home(tmp_path, client)
    with reserved_port() as port:
        served = subprocess.Popen(
            [BRIDGE, "serve", "--http", f"127.0.0.1:{port}"],
            env=home.environ,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with served:
            assert served.stderr is not None
            assert "Serving http" in served.stderr.readline()
            try:
                home.put_in_and_out(client, "--http", f"http://127.0.0.1:{port}/mcp")
            finally:
                served.terminate()
