"""The runtime image with the data packages, for whatever draws plots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

IMAGE = "localhost/mcp-code-bridge-runtime:data-test"
"""Not the name under which the bridge would find it: other tests are about the usual image."""


@pytest.fixture(scope="session")
def data_image() -> str:
    """The image, in podman; built once below `.state`, and kept for later runs of the tests."""
    script = REPOSITORY / "scripts" / "image.py"
    command = [sys.executable, str(script), "load", "podman", "data", "--tag", "data-test"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, check=True, env=environ)
    return IMAGE
