"""A home of its own for each command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.desk import Cli, command_line


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, which is the working directory, without settings of this machine's user."""
    for name in [*os.environ]:
        if name.startswith(("XDG_CONFIG", "XDG_STATE", "MCP_BRIDGE_", "CLAUDE_", "CODEX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(home: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return command_line(capsys)
