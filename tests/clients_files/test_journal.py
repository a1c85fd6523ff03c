"""Changes of clients' files are kept, for this user alone, and undone where nothing came after."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from bridge.clients.journal import Journal, Record, digest

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


def test_a_record_that_is_dropped_or_damaged_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    first, second, third = (journal.add(INSTALLED) for _ in range(3))
    journal.drop(second.id)
    (tmp_path / f"{third.id}.json").write_text("{")
    assert journal.records() == (first,)


def test_no_records_are_read_without_making_anything(tmp_path: Path) -> None:
    assert Journal(tmp_path / "clients").records() == ()
    assert not (tmp_path / "clients").exists()


def test_a_change_is_known_by_what_it_left() -> None:
    assert INSTALLED.describes(b"new")
    assert not INSTALLED.describes(b"newer")
    assert not INSTALLED.describes(None)
    assert replace(INSTALLED, after_sha256=digest(None)).describes(None)
