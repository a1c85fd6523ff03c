"""Fixtures that every suite shares."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
