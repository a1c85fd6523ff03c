"""Changes of clients' files are kept, for this user alone, and undone where nothing came after."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from bridge.clients.journal import KEPT_PER_FILE, Journal, Record, digest

INSTALLED = Record(
    path="/home/me/.cursor/mcp.json",
    action="move",
    name="code-bridge",
    before=b"\xff old",
    after_sha256=digest(b"new"),
    made_directories=("/home/me/.cursor",),
)


def test_a_record_is_read_as_it_was_added(tmp_path: Path) -> None:
    kept = Journal(tmp_path / "clients").add(INSTALLED)
    assert replace(kept, id="") == INSTALLED
    assert Journal(tmp_path / "clients").records() == (kept,)


def test_records_are_of_this_user_alone(tmp_path: Path) -> None:
    Journal(tmp_path / "clients").add(INSTALLED)
    assert stat.S_IMODE((tmp_path / "clients").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "clients").iterdir()}
    assert modes == {0o600}


def test_the_newest_of_each_file_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    other = journal.add(replace(INSTALLED, path="/other", before=None))
    for number in range(KEPT_PER_FILE + 3):
        journal.add(replace(INSTALLED, name=str(number)))
    names = [record.name for record in journal.records() if record.path == INSTALLED.path]
    assert names == [str(number) for number in range(3, KEPT_PER_FILE + 3)]
    assert other in journal.records()
    newest = journal.records()[-1]
    journal.drop(newest.id)
    assert (newest.name, journal.records()[-1].name) == (names[-1], names[-2])
    assert len(list(tmp_path.iterdir())) == 2 * (KEPT_PER_FILE - 1) + 1


def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    first, second = journal.add(INSTALLED), journal.add(INSTALLED)
    (tmp_path / f"{second.id}.before").unlink()
    assert journal.records() == (first,)


def test_no_records_are_read_without_making_anything(tmp_path: Path) -> None:
    assert Journal(tmp_path / "clients").records() == ()
    assert not (tmp_path / "clients").exists()


def test_a_change_is_known_by_what_it_left() -> None:
    assert INSTALLED.describes(b"new")
    assert not INSTALLED.describes(b"newer")
    assert not INSTALLED.describes(None)
    assert replace(INSTALLED, after_sha256=digest(None)).describes(None)
