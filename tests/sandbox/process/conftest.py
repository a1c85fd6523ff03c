"""A backend of this machine's own; Linux with bubblewrap only."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bridge.sandbox.process.backend import BubblewrapBackend
from tests.sandbox.process.rig import left_groups


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory whose `runs` holds run directories, open to every user; `runs` ends empty."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (made / "runs").mkdir()
    for path in (made, made / "runs"):
        path.chmod(0o1777)
    try:
        yield made
        assert list((made / "runs").iterdir()) == []
    finally:
        shutil.rmtree(made)


@pytest.fixture
async def backend() -> AsyncIterator[BubblewrapBackend]:
    if sys.platform != "linux":
        pytest.skip("bubblewrap is for Linux")
    environ = {**os.environ, "CANARY_TOKEN": "canary-in-the-environment"}
    async with BubblewrapBackend(environ=environ) as opened:
        yield opened
    assert left_groups() == []
