"""A file is replaced whole, or stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.atomic_files import exclusive_lock, replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_whole_and_is_private(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError, match="kept"):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o640])
def test_a_users_own_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "kept"
    replace_file(path, b"new", mode=mode)
    assert path.stat().st_mode & 0o777 == mode


def test_only_one_at_a_time_has_a_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        exclusive_lock(lock),
        pytest.raises(TimeoutError, match="another bridge"),
        exclusive_lock(lock),
    ):
        raise AssertionError
    with exclusive_lock(lock):
        assert lock.stat().st_mode & 0o777 == 0o600
