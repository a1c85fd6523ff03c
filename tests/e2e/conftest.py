"""A user per test, on each engine in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rig import User, engines


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["off", pytest.param("on", marks=pytest.mark.full)])
def background(request: pytest.FixtureRequest) -> str:
    """Whether the user's clients share a background bridge."""
    value: str = request.param
    return value


@pytest.fixture
def user(tmp_path: Path, engine_name: str, background: str) -> Iterator[User]:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "run").mkdir(mode=0o700)
    home, project = tmp_path / "home", tmp_path / "project"
    somebody = User(home=home, project=project, engine=engine_name, background=background)
    somebody.configure()
    yield somebody
    somebody.end_background()
