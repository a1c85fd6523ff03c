"""The engine under the MCP surface, and the two eras of the protocol."""

import pytest

from tests.engine_rig import backend, engine, finder, settings
from tests.wire import wire

__all__ = ["backend", "engine", "era", "finder", "settings", "wire"]


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)
