"""Fixtures that every suite shares."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.matrix import only_in_full

# How long an example takes says how busy the machine is; no test judges that.
settings.register_profile("suite", deadline=None, max_examples=25)
settings.register_profile("full", deadline=None, max_examples=400)
settings.load_profile("suite")

BUBBLEWRAP_TESTS = (
    "tests/clients/",
    "tests/sandbox/process/",
    "tests/sandbox/test_choose.py",
    "tests/engine/test_commands.py",
    "tests/server/test_command_tool.py",
    "tests/peers/test_clients.py",
)
ENGINE_TESTS = ("tests/contract/", "tests/e2e/", "tests/older_bridge/test_containers.py")
ENGINE_MARKS = ("docker", "rootless", "podman")
"""In order of strength: what uses rootless podman beside another engine goes with rootless."""

MEASURED_TESTS = (
    *(f"tests/{name}/" for name in ("artifacts", "catalog", "discovery", "gate", "library")),
    *(f"tests/{name}/" for name in ("render", "rpc", "settings", "wheels")),
    *("tests/engine/intake/", "tests/sandbox/container/", "tests/sandbox/test_"),
    *("tests/server/test_arguments", "tests/upstream/test_fail", "tests/upstream/test_framing"),
)
"""Those of the modules that decide and do no I/O, whose coverage the Makefile judges. Measuring it
makes what runs nearly twice as long, so it is paused for all other tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Stop the coverage that pytest-cov starts early in a worker of pytest-xdist.

    Once the session starts it makes another for the worker, and pauses that one alone: the first
    went on tracing every test.
    """
    measuring = config.pluginmanager.get_plugin("_cov")
    if hasattr(config, "workerinput") and measuring is not None:
        measuring.cov_controller.pause()


# First, since pytest-xdist reads the groups in the same hook, and would find none.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests that use one engine in one worker, and likewise those of bubblewrap.

    They look at what an engine or the control groups hold, and would see each other's sandboxes.
    Pause the measuring of coverage where it is not wanted, and mark what `make test` leaves out.
    """
    for item in items:
        group = _group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
        if only_in_full(item):
            item.add_marker(pytest.mark.full)
        if not item.nodeid.startswith(MEASURED_TESTS):
            item.add_marker(pytest.mark.no_cover)


def _group(item: pytest.Item) -> str:
    place = item.nodeid.partition("::")[0]
    if "[bubblewrap" in item.nodeid or place.startswith(BUBBLEWRAP_TESTS):
        return "bubblewrap"
    marks = [name for name in ENGINE_MARKS if item.get_closest_marker(name) is not None]
    if marks:
        return marks[0]
    return "podman" if place.startswith(ENGINE_TESTS) else ""


@pytest.fixture(autouse=True)
def databases_closed() -> Iterator[None]:
    """Leave no connection of a test's own stores open: other tests count descriptors."""
    yield
    if "bridge.store.schema" in sys.modules:
        sys.modules["bridge.store.schema"].databases.forget()


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
