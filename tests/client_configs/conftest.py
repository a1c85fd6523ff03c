"""A machine of its own for each test of clients' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.discovery.finder import DiscoveryContext
from bridge.discovery.locations import Machine, machine_of


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    project = tmp_path / "home" / "repo"
    (project / ".git").mkdir(parents=True)
    return machine_of(
        DiscoveryContext(
            home=tmp_path / "home",
            cwd=project,
            platform="linux",
            environ={"PATH": str(tmp_path / "bin")},
            system_root=tmp_path / "system",
        )
    )
