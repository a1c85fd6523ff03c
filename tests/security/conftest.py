"""An engine on each real backend."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.rig import EngineSet, marks_of, wanted_engines
from tests.security.rig import BACKENDS, Arena
from tests.security.rig import arena as opened
from tests.security.targets import planted


def _engine_of(backend: str) -> str:
    return "podman" if backend == "gvisor" else backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that wants an arena on every backend that is wanted, and makes a difference."""
    if "arena" in metafunc.fixturenames:
        names = getattr(metafunc.module, "DIFFERENT", BACKENDS)
        rare = getattr(metafunc.module, "RARE", ())
        parameters = [
            pytest.param(
                name, marks=[*marks_of(_engine_of(name)), *[pytest.mark.full] * (name in rare)]
            )
            for name in names
            if _engine_of(name) in wanted_engines()
        ]
        metafunc.parametrize("arena", parameters, indirect=True, scope="module")


@pytest.fixture(scope="session")
def engine_set() -> Iterator[EngineSet]:
    with ExitStack() as stack:
        yield EngineSet(stack)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, object]]:
    with planted(tmp_path_factory.mktemp("host")) as found:
        yield found


@pytest.fixture(scope="module")
async def arena(
    request: pytest.FixtureRequest,
    engine_set: EngineSet,
    host: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Arena]:
    if sys.platform != "linux":
        pytest.skip("these backends are for Linux")
    home: Path = tmp_path_factory.mktemp(request.param)
    async with opened(request.param, engine_set, home) as made:
        yield made
