"""Reading files that may be anything, without being held up."""

from __future__ import annotations

import os
from pathlib import Path

from bridge.discovery.files import (
    ABSENT,
    MAX_FILES_PER_DIRECTORY,
    fingerprint,
    list_matching,
    read_regular,
)


def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"12345")
    assert read_regular(file, limit=5) == b"12345"
    assert read_regular(file, limit=4) == "it is larger than 4 bytes"
    # The kernel reports a size of 0 for this file.
    assert read_regular(Path("/proc/self/status"), limit=16) == "it is larger than 16 bytes"


def test_absence_is_told_apart_from_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for absent in ("none", "file/below", "dangling"):
        assert read_regular(tmp_path / absent, limit=9) is ABSENT
    assert read_regular(tmp_path, limit=9) == "it is not a regular file"
    assert "character" in str(read_regular(tmp_path / "a\0b", limit=9))
    assert fingerprint(tmp_path / "a\0b")[1] == -1
    assert "cannot be read" in str(read_regular(tmp_path / ("n" * 300), limit=9))


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").touch(mode=0)
    me = os.geteuid()
    if me == 0:  # Root may read every file.
        os.seteuid(4242)
    try:
        said = read_regular(tmp_path / "f", limit=9)
    finally:
        os.seteuid(me)
    assert said == "it cannot be read: Permission denied"


def test_a_directory_is_listed_by_name_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", ".hidden.json", "c.txt", "json"):
        (tmp_path / name).touch()
    assert list_matching(tmp_path, ".json") == ((tmp_path / "a.json", tmp_path / "b.json"), "")
    for absent in ("none", "json"):
        assert list_matching(tmp_path / absent, ".json") == ((), "")


def test_a_crowded_directory_is_cut_with_a_warning(tmp_path: Path) -> None:
    for number in range(MAX_FILES_PER_DIRECTORY + 1):
        (tmp_path / f"{number:04}.json").touch()
    found, said = list_matching(tmp_path, ".json")
    assert len(found) == MAX_FILES_PER_DIRECTORY
    assert said.startswith("only the first")
