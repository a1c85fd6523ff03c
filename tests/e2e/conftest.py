"""A user per test, on each engine in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.rig import User, engines


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def user(tmp_path: Path, engine_name: str) -> User:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "run").mkdir(mode=0o700)
    somebody = User(home=tmp_path / "home", project=tmp_path / "project", engine=engine_name)
    somebody.configure()
    return somebody
