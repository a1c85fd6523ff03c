"""Fixtures that every suite shares."""

from __future__ import annotations

import pytest

BUBBLEWRAP_TESTS = ("tests/sandbox/process/", "tests/sandbox/test_choose.py")
PODMAN_TESTS = ("tests/contract/", "tests/e2e/", "tests/older_bridge/test_containers.py")
"""Where a test without an engine's mark may use podman all the same."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests on one engine in one worker.

    They look at what the engine or the control groups hold, and would see each other's sandboxes.
    """
    for item in items:
        group = _engine(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


def _engine(item: pytest.Item) -> str:
    place = item.nodeid.partition("::")[0]
    if "[bubblewrap" in item.nodeid or place.startswith(BUBBLEWRAP_TESTS):
        return "bubblewrap"
    if item.get_closest_marker("docker") is not None:
        return "docker"
    marked = any(item.get_closest_marker(name) is not None for name in ("podman", "rootless"))
    return "podman" if marked or place.startswith(PODMAN_TESTS) else ""


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
