"""Fixtures that every suite shares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.matrix import BEGUN_FIRST, left_to

if TYPE_CHECKING:
    from tests.postgresql import Server

# How long an example takes says how busy the machine is; no test judges that.
settings.register_profile("suite", deadline=None, max_examples=25)
settings.register_profile("full", deadline=None, max_examples=400)
settings.load_profile("suite")

MEASURED_TESTS = (
    *(f"tests/{name}/" for name in ("artifacts", "catalog", "discovery", "gate", "skills")),
    *(f"tests/{name}/" for name in ("render", "rpc", "settings", "packages")),
    *("tests/runs/collect/", "tests/sandbox/container/", "tests/sandbox/test_"),
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


# First, since pytest looks at the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out, pause unwanted coverage, and begin with what is long."""
    items.sort(key=lambda item: not item.nodeid.startswith(BEGUN_FIRST))
    for item in items:
        if mark := left_to(item):
            item.add_marker(mark)
        if not item.nodeid.startswith(MEASURED_TESTS):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def databases_closed() -> Iterator[None]:
    """Leave no connection of a test's own stores open: other tests count descriptors."""
    yield
    databases_forgotten()


def databases_forgotten() -> None:
    if "bridge.store.schema" in sys.modules:
        sys.modules["bridge.store.schema"].databases.forget()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server, started when the first test wants it."""
    from tests.postgresql import server

    with server() as started:
        yield started


@pytest.fixture
def postgresql(
    postgresql_server: Server, monkeypatch: pytest.MonkeyPatch, databases_closed: None
) -> Iterator[Server]:
    """Have `tests.postgresql.store_at` return stores on the server."""
    from tests.postgresql import VARIABLE

    monkeypatch.setenv(VARIABLE, postgresql_server.url())
    yield postgresql_server
    databases_forgotten()
    postgresql_server.drop()


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request: pytest.FixtureRequest) -> str:
    """Run a test with its stores on each kind of database."""
    kind = str(request.param)
    if kind == "postgresql":
        request.getfixturevalue("postgresql")
    return kind


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the docker SDK's sockets and the mcp SDK's servers use."""
    return "asyncio"
