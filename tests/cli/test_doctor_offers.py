"""What `doctor` says of the directories that programs find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.cli.doctor import check_packages, describe_directories, describe_packages
from bridge.model import Directory
from bridge.settings import load
from tests.packages.rig import allowing, wheel


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


async def test_packages_are_tried_with_the_index_that_programs_get_them_from(
    tmp_path: Path,
) -> None:
    wheel(tmp_path, "alpha", "1.0")
    settings = load({}, {"HOME": str(tmp_path)})
    assert "none are allowed" in describe_packages(await check_packages(settings))
    told = {}
    for allow in ("alpha==1.*", "beta", "types-*"):
        dependencies = allowing(tmp_path, "gamma-*", allow)
        check = await check_packages(replace(settings, dependencies=dependencies))
        told[allow] = describe_packages(check)
        assert f"allowed: gamma-*, {allow}\n" in told[allow]
        assert f"index: {tmp_path}\n" in told[allow]
    assert told["alpha==1.*"].startswith("packages: ok\n")
    assert told["beta"].startswith("packages: FAIL: beta cannot be resolved. uv says: ")
    assert told["types-*"].startswith("packages: ok\n")
    closed = replace(settings, profile="strict", dependencies=allowing(tmp_path, "alpha"))
    assert "the profile strict allows none" in describe_packages(await check_packages(closed))
