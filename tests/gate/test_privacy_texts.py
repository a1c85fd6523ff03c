"""What the detectors of personal data take, and leave, of lines as people have them every day."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.gate.privacy_data import DETECTORS, find

PROJECT = Path(__file__).parents[2]


def _lines(name: str) -> list[str]:
    text = (PROJECT / "tests" / "testdata" / name).read_text()
    return [line.replace("\\n", "\n") for line in text.splitlines()]


@pytest.mark.parametrize("line", _lines("ordinary_lines.txt"))
def test_ordinary_text_is_left_alone(line: str) -> None:
    assert [line[one.start : one.end] for one in find(line, DETECTORS)] == []


@pytest.mark.parametrize("line", _lines("personal_lines.txt"))
def test_personal_data_is_found(line: str) -> None:
    text = re.sub("[«»]", "", line)
    found = [text[one.start : one.end] for one in find(text, DETECTORS)]
    assert found == [one for one in re.findall("«(.*?)»", line) if one]
