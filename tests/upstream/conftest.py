"""Fixtures of the upstream tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.upstream.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Give a test its servers, and hold it to leaving none of them behind."""
    rig = Rig(tmp_path)
    yield rig
    assert rig.survivors() == []
