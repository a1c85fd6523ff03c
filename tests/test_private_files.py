"""Who else could change what is at a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.private_files import exposure, exposure_reason, make_directory

OTHER = 4242
PRIVATE = ("", "")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.guarantee("other-users")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_a_directory_and_its_missing_parents_are_private_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(umask)
    try:
        make_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for place in ("a", "a/b", "a/b/c"):
        assert (tmp_path / place).stat().st_mode & 0o7777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_directory(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_directory(tmp_path / "file" / "below")


def test_what_only_its_owner_may_write_is_not_exposed(tmp_path: Path) -> None:
    assert exposure(tmp_path) == PRIVATE
    assert exposure(tmp_path / "not there" / "either") == PRIVATE


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_directory_that_every_user_may_write_is_exposed(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    assert exposure(tmp_path / "open") == (
        "every user can write to it",
        f"Run: chmod go-w {tmp_path / 'open'}",
    )


def test_a_directory_above_exposes_what_is_in_it_unless_it_is_sticky(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "mine").mkdir(parents=True)
    above.chmod(0o777)
    assert exposure(above / "mine")[0] == f"every user can write to {above}"
    assert exposure(above / "not there") == (
        f"every user can write to {above}",
        f"Run: chmod go-w {above}",
    )
    above.chmod(0o1777)
    assert exposure(above / "mine") == PRIVATE


@pytest.mark.guarantee("other-users")
def test_links_are_followed_step_by_step(tmp_path: Path) -> None:
    exposed, safe = tmp_path / "exposed", tmp_path / "safe"
    exposed.mkdir()
    safe.mkdir()
    (exposed / "second").symlink_to(safe)
    (tmp_path / "first").symlink_to(exposed / "second")
    assert exposure(tmp_path / "first") == PRIVATE
    exposed.chmod(0o777)
    assert exposure(tmp_path / "first")[0] == f"every user can write to {exposed}"
    (tmp_path / "circle").symlink_to("circle")
    assert exposure(tmp_path / "circle" / "below") == PRIVATE
    (tmp_path / "shared").symlink_to("exposed")
    assert exposure(tmp_path / "shared")[0] == "every user can write to it"


@as_root
def test_what_belongs_to_another_user_is_exposed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    assert exposure(theirs) == (
        "it belongs to another user (user 4242)",
        f"Have {theirs} belong to you (chown).",
    )
    assert exposure(theirs / "mine")[0] == f"{theirs} belongs to another user (user 4242)"


@as_root
def test_a_users_own_group_does_not_expose(tmp_path: Path) -> None:
    """Distributions with a group for each user create directories with mode 0775."""
    tmp_path.chmod(0o775)
    assert exposure_reason(tmp_path.stat()) == ""
    os.chown(tmp_path, 0, OTHER)
    assert exposure_reason(tmp_path.stat()) == "other users of its group can write to it"


@as_root
@pytest.mark.parametrize(("mode", "allowed"), [(0o755, True), (0o700, True), (0o775, False)])
def test_roots_own_directory_may_lie_in_another_users_home(
    tmp_path: Path, mode: int, allowed: bool
) -> None:
    home, state = tmp_path / "home", tmp_path / "home" / ".local" / "state" / "bridge"
    home.mkdir()
    os.chown(home, 1001, 1001)
    home.chmod(mode)
    assert exposure(state)[0].startswith(f"{home} belongs to another user")
    make_directory(state)
    assert (exposure(state) == PRIVATE) == allowed
    # That user can replace it only by a directory of its own or a link.
    state.rmdir()
    state.mkdir(mode=0o700)
    os.chown(state, 1001, 1001)
    assert exposure(state) != PRIVATE
    state.rmdir()
    make_directory(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    assert exposure(state) != PRIVATE
