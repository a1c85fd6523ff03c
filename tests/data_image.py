"""The runtime image with data packages, for tests that draw plots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

IMAGE = "localhost/mcp-code-bridge-runtime:data-test"
"""Not the name that the bridge looks for: other tests use the usual image."""


@pytest.fixture(scope="session")
def data_image() -> str:
    """The image in podman; built once and kept in `.state`."""
    script = REPOSITORY / "scripts" / "image.py"
    command = [sys.executable, str(script), "load", "podman", "data", "--tag", "data-test"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, check=True, env=environ)
    return IMAGE
