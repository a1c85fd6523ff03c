"""Real clients, from npm, list the bridge once it is installed, and no more once it is not."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.client import MORE, PATIENCE_SECONDS, PEERS, SCRIPTS

pytestmark = pytest.mark.node

BRIDGE = str(SCRIPTS / "mcp-code-bridge")

CLIENTS = {
    "claude-code": (PEERS, "code-bridge: .* Connected"),
    "codex": (PEERS, "code-bridge .* enabled"),
    "gemini": (MORE, "code-bridge: .* Connected"),
    "qwen": (MORE, "code-bridge: .* Connected"),
    "opencode": (MORE, "code-bridge connected"),
    "copilot": (MORE, r"code-bridge \(local\)"),
}
"""Where their packages are, and the line with which each says that the bridge is there."""


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(name, marks=[pytest.mark.full] * (packages == MORE))
        for name, (packages, _) in CLIENTS.items()
    ],
)
def test_a_real_client_lists_the_bridge(client: str, tmp_path: Path) -> None:
    packages, line = CLIENTS[client]
    programs = packages / "node_modules" / ".bin"
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    environ = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "PATH": os.pathsep.join([str(programs), str(SCRIPTS), os.defpath]),
        "CI": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [BRIDGE, *words],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    listed = run("install", client, "--yes", "--check")
    assert re.search(line, re.sub(r" +", " ", listed)), listed
    run("uninstall", client, "--yes")
    assert "in no client's file" in run("installed")
