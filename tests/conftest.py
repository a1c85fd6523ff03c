"""Fixtures that every suite shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.faulty_proxy import FaultyProxy
    from tests.postgresql import Server

# A background bridge would outlive its test. Those of tests/background and tests/e2e start some.
os.environ["MCP_BRIDGE_BACKGROUND"] = "off"

# An example's time depends on the load of the machine.
settings.register_profile("suite", deadline=None, max_examples=25)
settings.register_profile("full", deadline=None, max_examples=400)
settings.load_profile("suite")

OTHER_CASES = frozenset({"docker", "gvisor", "rootless", "ssh", "postgresql"})
"""`make test` skips tests with these parameters, except for the first test of each guarantee and
those marked `every_case`. It runs all tests on bubblewrap, root's podman and SQLite.
"""

CASES = tuple(
    f"tests/{name}/"
    for name in ("contract", "e2e", "sandbox", "security")
    + ("artifacts", "sessions", "saved_functions")
)

BEGUN_FIRST = (
    *("tests/sandbox/image/test_real.py", "tests/examples/", "tests/e2e/", "tests/soak/"),
    *("tests/background/", "tests/clients/", "tests/security/", "tests/artifacts/test_dying.py"),
    "tests/cli/test_first_contact.py",
)
"""The longest tests: at the end, one of them would leave the other workers idle."""

MEASURED_TESTS = (
    *(
        f"tests/{name}/"
        for name in ("artifacts", "catalog", "discovery", "gate", "saved_functions")
    ),
    *(f"tests/{name}/" for name in ("render", "rpc", "settings", "packages")),
    *("tests/runs/collect/", "tests/sandbox/container/", "tests/sandbox/test_"),
    *("tests/server/test_arguments", "tests/upstream/test_fail", "tests/upstream/test_framing"),
)
"""Tests of modules without I/O, whose coverage the Makefile checks. Coverage doubles the time of a
test, so it is paused for all others.
"""

HANG_SECONDS = 300.0  # More than a test takes on a machine that does other things too.
BOUNDED = (
    *(f"tests/{name}/" for name in ("commands", "contract", "packages")),
    *("tests/sandbox/container/", "tests/sandbox/kubernetes/"),
    *("tests/fleet/test_contract", "tests/fleet/test_deploy", "tests/fleet/test_failures"),
    "tests/fleet/test_runs",
)


def pytest_configure(config: pytest.Config) -> None:
    """Pause the coverage that pytest-cov starts early in a worker of pytest-xdist.

    The session starts and pauses a second one, while the first would trace every test.
    """
    measuring = config.pluginmanager.get_plugin("_cov")
    if hasattr(config, "workerinput") and measuring is not None:
        measuring.cov_controller.pause()


# First, since pytest reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark full tests, pause unneeded coverage, and start with the longest tests."""
    items.sort(key=lambda item: not item.nodeid.startswith(BEGUN_FIRST))
    first: dict[str, str] = {}
    for item in items:
        if is_other_case(item) and not is_first(item, first):
            item.add_marker("full")
        if not item.nodeid.startswith(MEASURED_TESTS):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End a test of `BOUNDED` that hangs, wherever it waits."""
    test = pyfuncitem.obj
    if iscoroutinefunction(test) and pyfuncitem.nodeid.startswith(BOUNDED):

        @wraps(test)
        async def bounded(**arguments: object) -> None:
            with anyio.fail_after(HANG_SECONDS):
                await test(**arguments)

        pyfuncitem.obj = bounded
    return (yield)


def is_other_case(item: pytest.Item) -> bool:
    """Return whether a test has a parameter of `OTHER_CASES`."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec and item.nodeid.startswith(CASES) else ()
    return any(isinstance(value, str) and value in OTHER_CASES for value in values)


def is_first(item: pytest.Item, first: dict[str, str]) -> bool:
    """Return whether `make test` also runs a test's other cases.

    Args:
        first: The first test of each guarantee so far; updated.
    """
    test = item.nodeid.partition("[")[0]
    names = [name for mark in item.iter_markers("guarantee") for name in mark.args]
    firsts = [first.setdefault(name, test) == test for name in names]
    return any(firsts) or item.get_closest_marker("every_case") is not None


@pytest.fixture(autouse=True, scope="session")
def scripted_people() -> Iterator[None]:
    """Accept answers of scripts, which are faster than a person's."""
    from bridge.gate import question as automatic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "AUTOMATIC_SECONDS", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_background_bridges_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if a test has started a background bridge for a home of its own and not ended it."""
    yield
    home = os.fsencode(f"HOME={tmp_path_factory.getbasetemp()}")
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        variables = environ.split(b"\0")
        if b"bridge.background" in command and any(each.startswith(home) for each in variables):
            left.append((process.name, variables))
    assert not left


@pytest.fixture(autouse=True)
def databases_closed() -> Iterator[None]:
    """Close the databases of a test's stores: other tests count descriptors."""
    yield
    databases_forgotten()


def databases_forgotten() -> None:
    if "bridge.store.schema" in sys.modules:
        sys.modules["bridge.store.schema"].databases.forget()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server, started by the first test that needs it."""
    from tests.postgresql import server

    with server() as started:
        yield started


@pytest.fixture
def postgresql(
    postgresql_server: Server, monkeypatch: pytest.MonkeyPatch, databases_closed: None
) -> Iterator[Server]:
    """Make `tests.postgresql.store_at` return stores on the server."""
    from tests.postgresql import VARIABLE

    monkeypatch.setenv(VARIABLE, postgresql_server.url())
    yield postgresql_server
    databases_forgotten()
    postgresql_server.drop()


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[FaultyProxy]:
    """A proxy in front of the PostgreSQL server."""
    from tests.faulty_proxy import faulty_proxy

    with faulty_proxy(postgresql.port) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request: pytest.FixtureRequest) -> str:
    """Run a test with each kind of database."""
    kind = str(request.param)
    if kind == "postgresql":
        request.getfixturevalue("postgresql")
    return kind


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, which the SDKs of docker and mcp need.

    The session scope lets async fixtures of modules share an event loop.
    """
    return "asyncio"
