"""Settings that once hung the bridge or ended it with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load


def test_a_settings_file_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening it would block until somebody writes."""
    pipe = tmp_path / "config.toml"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match="not a regular file"):
        load(environ={"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(pipe)})


def test_a_settings_file_that_is_a_device_is_refused_and_not_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a regular file"):
        load(environ={"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": "/dev/zero"})
