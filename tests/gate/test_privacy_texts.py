"""What the detectors of personal data take, and leave, of lines as people have them every day."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.gate.privacy_data import DETECTORS, find

PROJECT = Path(__file__).parents[2]


def _lines(name: str) -> list[str]:
    """Return a table's lines; in a row of several they are separated by `\\n`."""
    text = (PROJECT / "tests" / "testdata" / name).read_text()
    return [line.replace("\\n", "\n") for line in text.splitlines()]


@pytest.mark.parametrize("line", _lines("ordinary_lines.txt"))
def test_ordinary_text_is_left_alone(line: str) -> None:
    assert [line[one.start : one.end] for one in find(line, DETECTORS)] == []


@pytest.mark.parametrize("line", _lines("personal_lines.txt"))
def test_personal_data_is_found(line: str) -> None:
    """What stands between « and »."""
    text = re.sub("[«»]", "", line)
    found = [text[one.start : one.end] for one in find(text, DETECTORS)]
    assert found == [one for one in re.findall("«(.*?)»", line) if one]


def _output(*command: str) -> str:
    # Without a repository, or on another distribution, there are the other texts.
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=PROJECT).stdout
    except FileNotFoundError:
        return ""


def test_logs_locks_and_lists_of_packages_hold_no_personal_data() -> None:
    """As they are on this machine: some ten thousand lines."""
    texts = [
        (PROJECT / "requirements.lock").read_text(),
        *(path.read_text() for path in PROJECT.glob("tests/*/package-lock.json")),
        *(path.read_text() for path in PROJECT.glob("tests/*/node/package-lock.json")),
        _output("git", "log", "-n", "1000", "--format=%h %cI %s", "--stat"),
        _output(sys.executable, "-m", "pip", "list"),
        _output("dpkg", "-l"),
        _output("df"),
    ]
    assert sum(text.count("\n") for text in texts) > 2000
    hits = [text[one.start - 20 : one.end + 9] for text in texts for one in find(text, DETECTORS)]
    assert hits == []
