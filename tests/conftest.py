"""Fixtures that every suite shares."""

from __future__ import annotations

import pytest

BUBBLEWRAP_TESTS = (
    "tests/sandbox/process/",
    "tests/sandbox/test_choose.py",
    "tests/engine/test_commands.py",
    "tests/server/test_command_tool.py",
)
ENGINE_TESTS = ("tests/contract/", "tests/e2e/", "tests/older_bridge/test_containers.py")
ENGINE_MARKS = ("podman", "docker", "rootless", "node")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests that use an engine in one worker, and likewise those of bubblewrap.

    They look at what an engine or the control groups hold, and would see each other's sandboxes.
    """
    for item in items:
        place = item.nodeid.partition("::")[0]
        if "[bubblewrap" in item.nodeid or place.startswith(BUBBLEWRAP_TESTS):
            item.add_marker(pytest.mark.xdist_group("bubblewrap"))
        elif place.startswith(ENGINE_TESTS) or any(
            item.get_closest_marker(name) is not None for name in ENGINE_MARKS
        ):
            item.add_marker(pytest.mark.xdist_group("engines"))


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
