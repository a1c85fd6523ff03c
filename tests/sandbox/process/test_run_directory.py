"""A run's directory: private, and gone whatever was put into it."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.background_instance import process_start
from bridge.errors import LaunchError
from bridge.sandbox.ownership import current_owner
from bridge.sandbox.process import base


def test_a_directory_is_private_and_named_after_its_owner(tmp_path: Path) -> None:
    owner = current_owner()
    made = base.make_run_directory(tmp_path, owner, None)
    assert [p.name for p in sorted(made.path.iterdir())] == ["tmp", "workspace"]
    for path in (made.path, made.tmp, made.workspace):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert base.reap_run_directories(tmp_path, owner) == 0
    assert base.remove_directory(made.path)
    assert base.remove_directory(made.path), "what is gone is gone"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LaunchError, match="cannot be made") as caught:
        base.make_run_directory(tmp_path / "none", owner, None)
    assert "TMPDIR" in caught.value.remedy


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives directories away")
def test_another_users_directory_is_passed_through_and_not_listed(tmp_path: Path) -> None:
    made = base.make_run_directory(tmp_path, current_owner(), 65534)
    assert (made.path.stat().st_uid, stat.S_IMODE(made.path.stat().st_mode)) == (0, 0o711)
    assert (made.tmp.stat().st_uid, stat.S_IMODE(made.tmp.stat().st_mode)) == (65534, 0o700)
    base.remove_directory(made.path)


def test_what_a_program_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("x")
    made = base.make_run_directory(tmp_path, current_owner(), None)
    (made.workspace / "out").symlink_to(keep)
    (made.tmp / "loop").symlink_to(".")
    os.mkfifo(made.tmp / "pipe")
    place = os.open(made.workspace, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("deep", dir_fd=place)
        os.symlink(keep, "link", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.fchmod(place, 0)
    os.close(place)
    (made.tmp / "shut").mkdir()
    (made.tmp / "shut" / "inner").mkdir(mode=0)
    (made.tmp / "shut").chmod(0)
    assert base.remove_directory(made.path)
    assert [p.name for p in tmp_path.iterdir()] == ["keep"]
    assert (keep / "file").read_text() == "x"


def test_only_a_dead_bridges_directories_are_reaped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = current_owner()
    dead = replace(owner, start="1")
    peer = replace(owner, pid=os.getppid(), start=process_start(os.getppid()))
    for other in (dead, peer):
        base.make_run_directory(tmp_path, other, None)
    (tmp_path / "mcp-code-bridge_x").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    left = base.make_run_directory(tmp_path, dead, None).path
    base.remove_directory(left)
    left.symlink_to(elsewhere)
    assert base.reap_run_directories(tmp_path, owner) == 1
    assert (elsewhere / "file").exists()
    assert len(list(tmp_path.iterdir())) == 4
    assert base.reap_run_directories(tmp_path / "none", owner) == 0
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_runs_go_where_temporary_files_go_if_they_can_enter(tmp_path: Path) -> None:
    assert base.base_directory(str(tmp_path), as_nobody=False) == tmp_path.resolve()
    tmp_path.chmod(0o700)
    common = Path("/tmp").resolve()
    assert base.base_directory(str(tmp_path), as_nobody=True) == common
    for wanted in (None, "", "relative", "/no/such/directory", "/" + 256 * "x"):
        assert base.base_directory(wanted, as_nobody=False) == common
