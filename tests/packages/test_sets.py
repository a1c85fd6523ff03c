"""Packages on disk: what unpacked wheels may be, how sets share them, and what goes."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from bridge.errors import PackageRefusedError
from bridge.packages import sets
from bridge.packages.sets import Lock, Locked, StoredSet, make_room, tidy, within
from bridge.private_files import in_use
from bridge.store import Store
from tests.packages.rig import tree

ROOM = 10_000_000
SIZE = 1000


def make_old(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def package(name: str) -> Locked:
    return Locked(name=name, version="1", sha256=hashlib.sha256(name.encode()).hexdigest())


def kept(root: Path, *names: str) -> Path:
    one = StoredSet(root / "kept", Store(root), names)
    work, packages = one.begin(), tuple(map(package, names))
    for each in packages:
        made = work / each.name
        (made / f"{each.name}-1.dist-info").mkdir(parents=True)
        (made / f"{each.name}-1.dist-info/METADATA").write_text("x")
        (made / f"{each.name}.py").write_bytes(b"x" * SIZE)
        if not one.wheel(each).exists():
            one.keep_wheel(each, made, ROOM)
    lock = Lock(packages=packages, made=1.0)
    one.keep(lock, work, ROOM)
    one.remember(lock)
    shutil.rmtree(work)
    return one.tree(lock)


def wheels(root: Path) -> int:
    return len(list((root / "kept/wheels").iterdir()))


def disk(root: Path) -> int:
    found = {path.lstat().st_ino: path.lstat().st_size for path in root.rglob("*.py")}
    return sum(found.values())


def test_a_wheel_in_many_sets_is_stored_once(tmp_path: Path) -> None:
    places = [kept(tmp_path, "numpy", f"other{number}") for number in range(20)]
    assert disk(tmp_path / "kept") == 21 * SIZE
    assert {"numpy.py", "other19.py"} <= set(tree(places[-1]))


def test_what_was_used_longest_ago_is_evicted_whatever_its_age_with_wheels_of_no_set(
    tmp_path: Path,
) -> None:
    old, used = kept(tmp_path, "a", "b"), kept(tmp_path, "b", "c")
    newest = kept(tmp_path, "d")
    make_old(old, 120)
    make_old(used, 100)
    room = 4 * (SIZE + 100_000)
    make_room(tmp_path / "kept", room)
    assert (old.is_dir(), wheels(tmp_path)) == (True, 4)
    total = sum(path.lstat().st_size for path in (tmp_path / "kept/wheels").glob("*/**/*"))
    make_room(tmp_path / "kept", total - 1)
    # "b" stays, since another set has it.
    assert (old.is_dir(), used.is_dir(), wheels(tmp_path)) == (False, True, 3)
    make_room(tmp_path / "kept", 0)
    # One that was used a moment ago may not be mounted yet.
    assert (used.is_dir(), newest.is_dir(), wheels(tmp_path)) == (False, True, 1)
    assert StoredSet(tmp_path / "kept", Store(tmp_path), ["a", "b"]).read() is not None


def test_a_set_that_a_sandbox_has_mounted_is_not_evicted_by_any_bridge(tmp_path: Path) -> None:
    mounted, other = make_old(kept(tmp_path, "a"), 1e6), make_old(kept(tmp_path, "b"), 1e5)
    with in_use(mounted) as held:
        assert held
        make_room(tmp_path / "kept", 0)
        assert (mounted.is_dir(), other.is_dir(), wheels(tmp_path)) == (True, False, 1)
    make_room(tmp_path / "kept", 0)
    assert not mounted.exists()


def test_nothing_is_evicted_while_a_bridge_installs_wheels_that_are_in_no_set_yet(
    tmp_path: Path,
) -> None:
    old = make_old(kept(tmp_path, "a"), 1e6)
    with in_use(tmp_path / "kept/wheels"):
        make_room(tmp_path / "kept", 0)
    assert old.is_dir()


def test_where_there_are_no_hard_links_a_set_is_a_copy_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    place = make_old(kept(tmp_path, "a"), 1e6)
    assert disk(tmp_path / "kept") == 2 * SIZE
    make_room(tmp_path / "kept", 0)
    assert not place.exists()


def test_what_a_killed_bridge_left_goes_when_no_one_can_be_at_it(tmp_path: Path) -> None:
    one = StoredSet(tmp_path / "kept", Store(tmp_path), ["a"])
    left, busy = one.begin(), one.begin()
    (left / "half").write_text("x")
    make_old(left, 7201)
    make_room(tmp_path / "kept", ROOM)
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
