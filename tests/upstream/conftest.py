"""Fixtures of the upstream tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail

from bridge.upstream.oauth import Logins
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
    """A keyring, chosen for one test; what hangs in it continues when the test ends."""
    made = Ring()
    keyring.set_keyring(made)
    yield made
    made.release.set()
    for question in pending:
        # The next test's keyring is not asked before.
        question.exception(PATIENCE_SECONDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the tests of modules with `ERAS` speak to their servers in each; see `Rig`."""
    if hasattr(metafunc.module, "ERAS") and "rig" in metafunc.fixturenames:
        eras = ["auto", pytest.param("modern", marks=pytest.mark.full)]
        metafunc.parametrize("rig", eras, indirect=True)


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Give a test its servers, and hold it to leaving none of them behind."""
    rig = Rig(tmp_path, getattr(request, "param", "auto"))
    yield rig
    assert rig.survivors() == []


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    return Logins(tmp_path / "logins")
