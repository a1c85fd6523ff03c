"""Settings that once hung the bridge or ended it with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load


@pytest.mark.parametrize("path", ["pipe", "/dev/zero"])
def test_a_settings_file_that_is_a_pipe_or_a_device_is_refused_and_not_read(
    tmp_path: Path, path: str
) -> None:
    """Opening a pipe would block until somebody writes."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="not a regular file"):
        load(environ={"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(tmp_path / path)})
