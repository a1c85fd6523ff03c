"""Fixtures of the upstream tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail

from bridge.upstream.token_store import pending
from tests.fakes.ring import Ring
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS
from tests.wire import wire

__all__ = ["no_keyring", "rig", "ring", "wire"]


@pytest.fixture(autouse=True)
def no_keyring() -> None:
    """Whatever the machine has, tests leave it alone."""
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]


@pytest.fixture
def ring() -> Iterator[Ring]:
    """A keyring, chosen for one test; what hangs in it goes on when the test ends."""
    made = Ring()
    keyring.set_keyring(made)
    yield made
    made.release.set()
    for question in pending:
        # The next test's keyring is not asked before.
        assert question.wait(PATIENCE_SECONDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the tests of some modules go each of their ways to a server."""
    ways = getattr(metafunc.module, "WAYS", ())
    if ways and "rig" in metafunc.fixturenames:
        first, *others = ways
        more = [pytest.param(way, marks=pytest.mark.full) for way in others]
        metafunc.parametrize("rig", [first, *more], indirect=True)


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Give a test its servers, and hold it to leaving none of them behind."""
    rig = Rig(tmp_path, getattr(request, "param", "direct"))
    yield rig
    assert rig.survivors() == []
