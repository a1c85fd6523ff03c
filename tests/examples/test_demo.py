"""The demonstration that `make run` ends with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.node
def test_the_demonstration_uses_nothing_of_the_user_that_runs_it(tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "mcp-code-bridge"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text('[policy.defaults]\nwrite = "deny"\nread = "deny"\n')
    servers = {"mine": {"command": str(tmp_path / "mine")}}
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "run").mkdir(mode=0o700)
    folder = tmp_path / "repository"
    git = ["git", "-C", str(folder)]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    who = ["-c", "user.name=Ada", "-c", "user.email=a@example.org"]
    subprocess.run([*git, *who, "commit", "-q", "--allow-empty", "-m", "One"], check=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MCP_")}
    environ |= {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(settings.parent),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }
    command = [sys.executable, str(DEMO), "--runtime", "bubblewrap", "--repository", str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mine" not in done.stdout
    # 12 of the git server, 2 of the time server, 14 of the filesystem server.
    assert "in place of 28 tools" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.match(r"In Claude Code \S+ a model pays about \d+ tokens for this result", last)
