"""The user and the project of most tests of discovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.discovery.finder import DiscoveryContext


@pytest.fixture
def context(tmp_path: Path) -> DiscoveryContext:
    cwd = tmp_path / "home" / "repo"
    cwd.mkdir(parents=True)
    return DiscoveryContext(
        home=tmp_path / "home",
        cwd=cwd,
        platform="linux",
        environ={"TOKEN": "the-secret"},
        system_root=tmp_path / "system",
        project_servers="all",
    )
