"""What a program showed, for a terminal.

Owns the lines that say where a picture is: terminals show none.
"""

from __future__ import annotations

from bridge.cli.output import visible
from bridge.model import Artifact, RunResult, Shown


def pictures(result: RunResult) -> list[Artifact]:
    """Return the originals of the pictures that were shown, as far as they are kept."""
    kept = [item.artifact for item in result.shown if not item.text]
    return [artifact for artifact in kept if artifact is not None]


def shown_lines(result: RunResult) -> list[str]:
    """Return a line for each picture, and for each text that is not here whole."""
    return [_line(item) for item in result.shown if not item.text or item.note]


def _line(item: Shown) -> str:
    parts = [f"shown: {item.mime_type}"]
    if item.data:
        parts.append(f"{item.width}x{item.height}")
    if item.note:
        parts.append(f"({visible(item.note, keep='')})")
    if item.artifact is not None:
        parts.append(item.artifact.uri)
    return " ".join(parts)
