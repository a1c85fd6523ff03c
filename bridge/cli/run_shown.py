"""What a program showed, for a terminal.

Owns the lines that say where a picture is: terminals show none.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.cli.output import visible
from bridge.gate.tally import Tally
from bridge.model import Artifact, CallCount, RunResult, Shown
from bridge.text import counted


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


def interrupted(tally: Tally | None) -> str:
    """Return which calls of an interrupted run went out: nobody else will say so."""
    sent = tally.sent if tally is not None else ()
    if tally is None or not sent:
        return "Interrupted. No call went out."
    total = sum(each.count for each in sent)
    text = f"Interrupted. {counted(total, 'call')} had gone out: {_tools(sent)}."
    if tally.unknown:
        text += f" Not known whether carried out: {_tools(tally.unknown)}."
    return text


def _tools(counts: Sequence[CallCount]) -> str:
    names = (
        visible(f"{each.server}.{each.tool}" if each.server else each.why, keep="")
        + (f" ({each.count:,} times)" if each.count > 1 else "")
        for each in counts
    )
    return ", ".join(names)
