"""A backend of this machine's own; Linux with bubblewrap only."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import pytest

from bridge.sandbox.process.backend import BubblewrapBackend
from tests.sandbox.process.rig import left_groups


@pytest.fixture
async def backend() -> AsyncIterator[BubblewrapBackend]:
    if sys.platform != "linux":
        pytest.skip("bubblewrap is for Linux")
    environ = {**os.environ, "CANARY_TOKEN": "canary-in-the-environment"}
    async with BubblewrapBackend(environ=environ) as opened:
        yield opened
    assert left_groups() == []
