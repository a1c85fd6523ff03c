"""Comparisons with golden files; UPDATE_FROZEN=1 writes the files instead."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def assert_golden(file: Path, texts: Mapping[str, object]) -> None:
    """Compare JSON values by name with those in a file."""
    if os.environ.get("UPDATE_FROZEN"):
        file.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(json.dumps(texts)) == json.loads(file.read_text())


def assert_golden_text(file: Path, text: str) -> None:
    if os.environ.get("UPDATE_FROZEN"):
        file.write_text(text)
    assert text == file.read_text()


def assert_outcomes(file: Path, outcomes: Callable[[list[str]], Iterable[str]]) -> None:
    """Compare each block's outcomes with the lines after the block that begin with `->`."""
    written = []
    for block in file.read_text().strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("->")]
        said = [f"-> {line}" for line in outcomes(lines)] or ["-> nothing"]
        written.append("\n".join([*lines, *said]))
    assert_golden_text(file, "\n\n".join(written) + "\n")


def programs(file: str) -> dict[str, list[str]]:
    """Return the programs of a file in `testdata/preflight` by section.

    A section begins with "## NAME"; "---" separates its programs.
    """
    text = (Path(__file__).parent / "testdata" / "preflight" / file).read_text("utf-8")
    sections = [part.partition("\n") for part in f"\n{text}".split("\n## ")[1:]]
    assert len({name for name, _, _ in sections}) == len(sections)
    return {name: body.rstrip("\n").split("\n---\n") for name, _, body in sections}
