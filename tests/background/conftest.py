"""A user for each test, whose background bridges end with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.background.rig import Person, person


@pytest.fixture
def user() -> Iterator[Person]:
    # pytest's own directories are too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="mcb-") as home, person(Path(home)) as somebody:
        yield somebody
