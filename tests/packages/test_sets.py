"""Sets of packages on disk: what installed ones may be, and what goes."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.packages import sets
from bridge.packages.sets import (
    KEPT_SECONDS,
    LEFT_SECONDS,
    Lock,
    PackageSet,
    make_room,
    tidy,
    within,
)
from bridge.store import Store
from tests.packages.rig import tree

ROOM = 10_000_000


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def size_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.glob("*/**/*"))


def kept(root: Path, name: str, size: int) -> Path:
    """Make a set with one file."""
    one, lock = PackageSet(root / "sets", Store(root), [name]), Lock(packages=(), made=1.0)
    into = one.begin() / "installed"
    into.mkdir()
    (into / "a.py").write_bytes(b"x" * size)
    one.keep(lock, into)
    into.parent.rmdir()
    return one.tree(lock)


def test_what_was_not_used_for_longest_goes_and_what_it_came_to_is_still_known(
    tmp_path: Path,
) -> None:
    old, newer, used = [kept(tmp_path, name, 1000) for name in ("old", "newer", "used")]
    sets = tmp_path / "sets"
    aged(old, KEPT_SECONDS + 200)
    aged(newer, KEPT_SECONDS + 100)
    make_room(sets, size_of(sets))
    assert old.is_dir()
    make_room(sets, size_of(sets) - 1)
    assert (old.is_dir(), newer.is_dir(), used.is_dir()) == (False, True, True)
    assert PackageSet(sets, Store(tmp_path), ["old"]).read() == Lock(packages=(), made=1.0)
    # What was used lately stays, and nothing is added to it.
    with pytest.raises(PackageUnavailableError, match="too much") as refusal:
        make_room(sets, 10)
    assert "`cache_bytes`" in refusal.value.remedy
    assert used.is_dir()


def test_choices_that_are_remembered_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "MAX_SETS", 3)
    for number in range(6):
        kept(tmp_path, f"{number}", 1)
    found = [PackageSet(tmp_path, Store(tmp_path), [f"{number}"]).read() for number in range(6)]
    assert [number for number, lock in enumerate(found) if lock] == [3, 4, 5]


def test_what_a_killed_bridge_left_goes_when_nobody_can_be_at_it(tmp_path: Path) -> None:
    one = PackageSet(tmp_path / "sets", Store(tmp_path), ["a"])
    left, busy = one.begin(), one.begin()
    (left / "half").write_text("x")
    aged(left, LEFT_SECONDS + 1)
    make_room(tmp_path / "sets", ROOM)
    assert (left.exists(), busy.exists()) == (False, True)


def test_what_was_installed_becomes_plain_files_of_fixed_modes(tmp_path: Path) -> None:
    for name, mode in (("a/tool", 0o4711), ("a/shut.py", 0o000), (".lock", 0o666)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.write_text("x")
        path.chmod(mode)
    tidy(tmp_path, ROOM)
    assert tree(tmp_path) == {"a/tool": "0o755", "a/shut.py": "0o644"}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755


def test_nothing_that_an_interpreter_would_run_by_itself_is_kept(tmp_path: Path) -> None:
    (tmp_path / "usercustomize").mkdir()
    (tmp_path / "a").mkdir()
    evil = ("evil.pth", "other.PTH", "sitecustomize.py", "SiteCustomize.so")
    for name in (*evil, "usercustomize/__init__.py", "a/fine.pth", "a/sitecustomize.py"):
        (tmp_path / name).write_text("import os")
    tidy(tmp_path, ROOM)
    assert set(tree(tmp_path)) == {"a/fine.pth", "a/sitecustomize.py"}


@pytest.mark.guarantee("packages")
def test_what_is_neither_file_nor_directory_is_refused(tmp_path: Path) -> None:
    for name, make in (("link", lambda path: path.symlink_to("/etc")), ("pipe", os.mkfifo)):
        place = tmp_path / name
        place.mkdir()
        make(place / "x")
        with pytest.raises(PackageRefusedError, match="neither a file nor a directory"):
            tidy(place, ROOM)


@pytest.mark.guarantee("packages")
def test_packages_beyond_the_bounds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(b"x" * 300)
    assert within(tmp_path, 1200)
    assert not within(tmp_path, 1199)
    tidy(tmp_path, 1200)
    with pytest.raises(PackageRefusedError, match="`max_bytes`"):
        tidy(tmp_path, 1199)
    monkeypatch.setattr(sets, "MAX_ENTRIES", 3)
    with pytest.raises(PackageRefusedError, match="more than 3 files"):
        tidy(tmp_path, ROOM)
    monkeypatch.setattr(sets, "MAX_ENTRIES", 1)
    assert not within(tmp_path, ROOM)
