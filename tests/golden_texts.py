"""Texts that a test compares with a file; UPDATE_FROZEN=1 writes the file instead."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def assert_golden(file: Path, texts: Mapping[str, object]) -> None:
    """Compare JSON values by name with those in a file."""
    if os.environ.get("UPDATE_FROZEN"):
        file.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(json.dumps(texts)) == json.loads(file.read_text())


def programs(file: str) -> dict[str, list[str]]:
    """Return the programs of a file in `testdata/preflight` by section.

    A section begins with "## NAME"; "---" separates its programs.
    """
    text = (Path(__file__).parent / "testdata" / "preflight" / file).read_text("utf-8")
    sections = [part.partition("\n") for part in f"\n{text}".split("\n## ")[1:]]
    assert len({name for name, _, _ in sections}) == len(sections)
    return {name: body.rstrip("\n").split("\n---\n") for name, _, body in sections}
