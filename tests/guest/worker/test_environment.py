"""Files that a run brings along, written where its program begins."""

from __future__ import annotations

import base64
from pathlib import Path

from bridge.guest.worker.environment import write_files


def given(**files: bytes) -> list[dict[str, str]]:
    return [
        {"name": name.replace("__", "/"), "data": base64.b64encode(data).decode()}
        for name, data in files.items()
    ]


def test_files_are_there_byte_for_byte_and_replace_what_is_there(tmp_path: Path) -> None:
    """What a link of the same name leads to stays as it is; their text is let go of."""
    (tmp_path / "a").write_text("a longer one of an earlier run")
    (tmp_path / "elsewhere").write_text("untouched")
    (tmp_path / "b").symlink_to("elsewhere")
    files = given(a=b"\0\xff\n", b=b"", c__d__e=b"1", c__f=b"2")
    assert write_files(files, str(tmp_path)) is None
    assert files == []
    assert (tmp_path / "a").read_bytes() == b"\0\xff\n"
    assert (tmp_path / "b").read_bytes() == b""
    assert not (tmp_path / "b").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "untouched"
    assert (tmp_path / "c" / "d" / "e").read_bytes() + (tmp_path / "c" / "f").read_bytes() == b"12"


def test_one_that_cannot_be_written_ends_the_run_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "f").touch()
    done = write_files(given(a=b"1"), str(tmp_path))
    assert done is not None
    assert (done.outcome, done.exit_code, done.error_type) == ("exception", 1, "IsADirectoryError")
    assert "the file 'a' could not be put into the working directory" in done.error
    done = write_files(given(f__x=b"1"), str(tmp_path))
    assert done is not None
    assert "'f/x'" in done.error
