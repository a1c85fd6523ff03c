"""Fixtures of the contract suite: a backend on each engine that is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.rig import (
    ENGINELESS,
    LANE,
    LANES,
    EngineShelf,
    Lanes,
    Rig,
    open_descriptors,
    rig_on,
    wanted_engines,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that wants an engine on every one, or on the real ones only."""
    for fixture in ("engine", "real_engine"):
        if fixture in metafunc.fixturenames:
            names = [n for n in wanted_engines() if fixture == "engine" or n not in ENGINELESS]
            parameters = [
                pytest.param(n, marks=[] if n in ENGINELESS else [getattr(pytest.mark, n)])
                for n in names
            ]
            if fixture == "engine":
                parameters += [
                    pytest.param(f"{n}{LANE}", marks=[getattr(pytest.mark, m) for m in LANES[n]])
                    for n in names
                    if n in LANES
                ]
            metafunc.parametrize(fixture, parameters, scope="session")


@pytest.fixture(scope="session")
def engines() -> Iterator[EngineShelf]:
    """Hold the engines that were brought up, until the end of the session."""
    with ExitStack() as stack:
        yield EngineShelf(stack)


@pytest.fixture
async def rig(engine: str, engines: EngineShelf, tmp_path: Path) -> AsyncIterator[Rig]:
    """Give a backend on the engine of the test's parameter."""
    found = engines.get(engine.removesuffix(LANE))
    before = open_descriptors()
    async with rig_on(found, tmp_path / "run") as made:
        yield replace(made, backend=Lanes(made.backend)) if engine.endswith(LANE) else made
    assert open_descriptors() <= before, "sockets or pipes were left open"


@pytest.fixture
async def real_rig(real_engine: str, engines: EngineShelf, tmp_path: Path) -> AsyncIterator[Rig]:
    """Give a backend on a real engine."""
    async with rig_on(engines.get(real_engine), tmp_path / "run") as made:
        yield made
