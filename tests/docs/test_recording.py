"""The recording of a run is drawn from what a terminal showed, and needs nothing but itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import recording

MAX_BYTES = 60 * 1024


def test_what_a_terminal_erased_or_wrote_over_is_gone() -> None:
    assert recording.left("0 s\r\x1b[J1 s\r\x1b[J60 commits\r\ndone\r\n") == "60 commits\ndone"


def test_times_of_day_and_durations_are_the_same_in_every_recording() -> None:
    said = "read at 2026-11-23T09:06:38+01:00, 2,862,766 bytes, 1.62 s"
    again = "read at 2027-01-02T19:16:08+01:00, 2,862,766 bytes, 1.07 s"
    assert recording.normalised(said) == recording.normalised(again)
    assert recording.normalised(said).endswith("12:00:00+01:00, 2,862,766 bytes, 2 s")


def test_a_picture_has_the_commands_and_what_each_printed() -> None:
    picture = recording.drawn({"run -c '{}' & <x>": "\x1b[1mNAME\x1b[0m\n60 commits"})
    text = " ".join(ElementTree.fromstring(picture).itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "$  run -c '{}' & <x>" in text
    assert "NAME 60 commits" in " ".join(text.split())


def test_the_same_session_gives_the_same_picture() -> None:
    session = {"servers": "git\ntime"}
    assert recording.drawn(session) == recording.drawn(session)


def test_the_picture_in_the_documents_is_small_and_fetches_nothing() -> None:
    picture = recording.PICTURE.read_bytes()
    assert len(picture) <= MAX_BYTES
    assert set(re.findall(rb"https?://[^\s\"]+", picture)) == {b"http://www.w3.org/2000/svg"}
    assert not re.search(rb"@import|@font-face|<script|<image", picture)
    ElementTree.fromstring(picture)


def test_a_screen_is_as_wide_as_the_picture(tmp_path: Path) -> None:
    """So that commands lay out their tables for it."""
    environ = {"PATH": os.environ["PATH"]}
    assert recording.screen("stty size; test -t 2 && pwd", tmp_path, environ).splitlines() == [
        f"40 {recording.COLUMNS}",
        str(tmp_path),
    ]


def test_a_command_that_prints_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="printed too much"):
        recording.screen("yes", tmp_path, {"PATH": os.environ["PATH"]})
