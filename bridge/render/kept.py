"""What outlives a run, as part of its result: sessions, artifacts, what was shown.

Owns the field names and the wording. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.model import Artifact, Json, Loss, RunResult, SessionReport, Shown
from bridge.render.session import session_section
from bridge.text import counted, visible

MAX_FILES = 25
"""Listed in text: a line takes some 50 tokens."""

OUT = "out"


def artifact_fields(artifact: Artifact) -> dict[str, Json]:
    """Return one thing that is kept."""
    return {
        "uri": artifact.uri,
        "name": artifact.name,
        "kind": artifact.kind,
        "mimeType": artifact.mime_type,
        "size": artifact.size,
        "sha256": artifact.digest,
    }


def whole_output(result: RunResult) -> dict[str, Json]:
    """Return where all of the streams is that are not shown in full."""
    return {
        artifact.kind: artifact.uri
        for artifact in result.artifacts
        if artifact.kind in ("stdout", "stderr")
    }


def shown_fields(shown: Shown) -> dict[str, Json]:
    """Return what is to be said of something shown, which itself is a block of content."""
    fields: dict[str, Json] = {
        "mimeType": shown.mime_type,
        "width": shown.width,
        "height": shown.height,
        "text": shown.text,
        "note": shown.note,
        "uri": shown.artifact.uri if shown.artifact is not None else "",
    }
    return {name: value for name, value in fields.items() if value}


def loss_fields(loss: Loss) -> dict[str, Json]:
    """Return a name and why it is not there."""
    return {"name": loss.name, "why": loss.why}


def session_fields(report: SessionReport) -> dict[str, Json]:
    """Return what became of a session."""
    fields: dict[str, Json] = {
        "id": report.session_id,
        "name": report.name,
        "run": report.run,
        "state": report.state,
        "holds": [
            {"name": held.name, "type": held.kind, "size": held.size} for held in report.holds
        ],
        "more": report.more,
        "lost": [loss_fields(loss) for loss in report.lost],
        "note": report.note,
    }
    return {name: value for name, value in fields.items() if value not in ("", 0, [])}


def kept_fields(result: RunResult) -> Mapping[str, Json]:
    """Return the fields of a result about what outlives it; some may be empty."""
    return {
        "shown": [shown_fields(shown) for shown in result.shown],
        "whole": whole_output(result),
        "artifacts": [artifact_fields(artifact) for artifact in result.artifacts],
        "missing": [loss_fields(loss) for loss in result.missing],
        "session": None if result.session is None else session_fields(result.session),
    }


def kept_sections(result: RunResult) -> list[str]:
    """Return the sections of the compact text about it."""
    sections = [shown_section(result), files_section(result), missing_section(result)]
    sections.append(session_section(result))
    return [section for section in sections if section]


def shown_section(result: RunResult) -> str:
    """Return what was shown, as far as that has to be said; empty for nothing."""
    lines = [_shown_line(shown) for shown in result.shown if not shown.text or shown.note]
    if result.shown and not lines:
        lines = [f"{counted(len(result.shown), 'text')}, below"]
    return _section("shown", lines) if lines else ""


def _shown_line(shown: Shown) -> str:
    size = f"{shown.width}x{shown.height}" if shown.data else ""
    # Of a picture that is here as it was drawn nobody needs another.
    where = shown.artifact.uri if shown.artifact is not None and shown.note else ""
    told = [shown.mime_type, size, f"({visible(shown.note, keep='')})" if shown.note else "", where]
    return " ".join(part for part in told if part)


def files_section(result: RunResult) -> str:
    """Return what came back in files, one line each; empty for none."""
    files = [artifact for artifact in result.artifacts if artifact.kind == "file"]
    if not files:
        return ""
    lines = [_file_line(artifact) for artifact in files[:MAX_FILES]]
    if len(files) > MAX_FILES:
        lines.append(f"and {len(files) - MAX_FILES:,} more")
    return _section("files", lines)


def _file_line(artifact: Artifact) -> str:
    size = counted(artifact.size, "byte")
    return f"{OUT}/{visible(artifact.name, keep='')} ({artifact.mime_type}, {size}) {artifact.uri}"


def missing_section(result: RunResult) -> str:
    """Return what a program left that could not be read or kept; empty for nothing."""
    lines = [
        f"{visible(loss.name, keep='')}: {visible(loss.why, keep='')}"
        for loss in result.missing[:MAX_FILES]
    ]
    if len(result.missing) > MAX_FILES:
        lines.append(f"and {len(result.missing) - MAX_FILES:,} more")
    return _section("missing", lines) if lines else ""


def _section(label: str, lines: list[str]) -> str:
    """Return lines under a label; a single one beside it."""
    return f"[{label}] {lines[0]}" if len(lines) == 1 else "\n".join((f"[{label}]", *lines))
