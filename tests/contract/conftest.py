"""Fixtures of the contract suite: a backend on each engine that is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from tests.contract.rig import (
    ENGINELESS,
    EngineSet,
    Rig,
    marks_of,
    open_descriptors,
    rig_on,
    wanted_engines,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that wants an engine on every one, or on the real ones only."""
    for fixture in ("engine", "real_engine"):
        if fixture in metafunc.fixturenames:
            names = [n for n in wanted_engines() if fixture == "engine" or n not in ENGINELESS]
            parameters = [pytest.param(n, marks=marks_of(n)) for n in names]
            metafunc.parametrize(fixture, parameters, scope="session")


@pytest.fixture(scope="session")
def engines() -> Iterator[EngineSet]:
    with ExitStack() as stack:
        yield EngineSet(stack)


@pytest.fixture(scope="module")
async def shared_rig(
    engine: str, engines: EngineSet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """Give a backend on the engine of the tests' parameter, open for all of a module's tests.

    Getting to know an engine takes longer than a launch.
    """
    found = engines.get(engine)
    before = open_descriptors()
    async with rig_on(found, tmp_path_factory.mktemp("rig") / "run") as made:
        yield made
    assert open_descriptors() <= before, "sockets or pipes were left open"


@pytest.fixture
async def rig(shared_rig: Rig) -> AsyncIterator[Rig]:
    yield shared_rig
    assert shared_rig.engine.ours() == []
