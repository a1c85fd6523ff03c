"""A user for each test, whose background bridges end with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.cli.background import ask_all
from tests.background.rig import Person, person, wait_for


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Person]:
    with tempfile.TemporaryDirectory(prefix="mcb-") as home, person(Path(home)) as somebody:
        yield somebody


@pytest.fixture
def shared_user(shared_home: Person, request: pytest.FixtureRequest) -> Iterator[Person]:
    """A user whose bridge has served the clients of earlier tests, and has none now."""
    somebody = Person(shared_home.home, project=Path(request.node.name))
    somebody.add_servers()
    yield somebody
    wait_for(lambda: not any(each["clients"] for each in ask_all(somebody.environ)))


@pytest.fixture
def user() -> Iterator[Person]:
    # pytest's own directories are too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="mcb-") as home, person(Path(home)) as somebody:
        yield somebody
