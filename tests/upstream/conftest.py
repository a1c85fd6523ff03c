"""Fixtures of the upstream tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail

from bridge.upstream.oauth import Logins
from bridge.upstream.pool import Pool
from bridge.upstream.token_store import TokenRecord, pending
from tests.fakes.ring import Ring
from tests.fakes.servers.guarded import guarded
from tests.upstream.login_rig import Desk
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS
from tests.wire import wire

__all__ = ["no_keyring", "rig", "ring", "wire"]


@pytest.fixture(autouse=True)
def no_keyring() -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]


@pytest.fixture
def ring() -> Iterator[Ring]:
    """A keyring for one test; its hanging requests end with the test."""
    made = Ring()
    keyring.set_keyring(made)
    yield made
    made.release.set()
    for question in pending:
        question.exception(PATIENCE_SECONDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules with `ERAS` in each protocol era."""
    if hasattr(metafunc.module, "ERAS") and "rig" in metafunc.fixturenames:
        eras = ["auto", pytest.param("modern", marks=pytest.mark.full)]
        metafunc.parametrize("rig", eras, indirect=True)


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Makes a test's servers; fails the test if a server's process survives it."""
    rig = Rig(tmp_path, getattr(request, "param", "auto"))
    yield rig
    assert rig.survivors() == []


@pytest.fixture
async def pool(rig: Rig) -> AsyncIterator[Pool]:
    """A pool with the raw server."""
    async with rig.pool(rig.raw()) as pool:
        yield pool


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    return Logins(tmp_path / "logins")


@pytest.fixture
def desk(rig: Rig, logins: Logins) -> Iterator[Desk]:
    with guarded() as server:
        yield Desk(rig, logins, server)


@pytest.fixture
async def record(desk: Desk) -> TokenRecord:
    """Logs in once, and returns the stored login."""
    await desk.log_in()
    return await desk.record()
