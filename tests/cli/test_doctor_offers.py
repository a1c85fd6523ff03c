"""What `doctor` says of the directories that programs find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.cli.doctor_offers import describe_directories
from bridge.model import Directory
from bridge.settings import load


@pytest.mark.parametrize(
    ("mode", "writable", "usable"),
    [(0o755, False, True), (0o750, False, False), (0o755, True, False), (0o777, True, True)],
)
def test_a_directory_that_a_roots_programs_may_not_use_is_told(
    tmp_path: Path, mode: int, writable: bool, usable: bool
) -> None:
    """Every run would be refused for it, or fail; an ordinary user's programs are that user."""
    place = tmp_path / "data"
    place.mkdir()
    place.chmod(mode)
    if writable and not usable and place.stat().st_uid != 0:
        pytest.skip("only root can make a directory of root's")
    directory = Directory(name="data", path=str(place), inside="/mnt/data", writable=writable)
    settings = replace(load({}, {"HOME": str(tmp_path)}), directories=(directory,))
    told = describe_directories(settings, root=True)
    assert told.startswith(f"directory: data: {place} at /mnt/data, ")
    assert ("FAIL" in told) is not usable
    if not usable:
        # Not more than is needed: nobody but programs is to write there.
        assert f"run `{'chown 65534' if writable else 'chmod o+rx'} {place}`" in told
    assert "FAIL" not in describe_directories(settings, root=False)
