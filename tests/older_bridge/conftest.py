"""A place per module, and one bridge in it that the module's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client

from tests.contract.conftest import engines
from tests.e2e.conftest import engine_name, user
from tests.older_bridge.rig import Place, new_place, usual_servers

__all__ = ["anyio_backend", "bridge", "engine_name", "engines", "place", "shared_place", "user"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Keep one event loop per module, for the bridge that it shares."""
    return "asyncio"


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with the usual servers."""
    place = new_place(tmp_path_factory.mktemp("shared") / "home")
    place.configure(usual_servers(place))
    return place


@pytest.fixture(scope="module")
async def bridge(shared_place: Place) -> AsyncIterator[Client]:
    """A client of a bridge over real stdio, with the usual servers."""
    async with shared_place.client() as client:
        yield client


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place of the test's own, without servers."""
    return new_place(tmp_path / "home")
