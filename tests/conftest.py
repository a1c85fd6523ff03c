"""Fixtures that every suite shares."""

from __future__ import annotations

import pytest

ENGINE_MARKS = ("podman", "docker", "rootless", "node")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests that use an engine in one worker.

    They look at what an engine holds, and would see each other's containers.
    """
    for item in items:
        if any(item.get_closest_marker(name) is not None for name in ENGINE_MARKS):
            item.add_marker(pytest.mark.xdist_group("engines"))


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
