"""What outlives a run, as part of its result: sessions, artifacts, what was shown.

Owns the field names and the wording. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.model import Artifact, Json, Loss, RunResult, SessionReport, Shown


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


def shown_fields(shown: Shown) -> dict[str, Json]:
    """Return what is to be said of something shown, which itself is a block of content."""
    fields: dict[str, Json] = {
        "mimeType": shown.mime_type,
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
        "artifacts": [artifact_fields(artifact) for artifact in result.artifacts],
        "missing": [loss_fields(loss) for loss in result.missing],
        "session": None if result.session is None else session_fields(result.session),
    }


def kept_sections(result: RunResult) -> list[str]:
    """Return the sections of the compact text about it."""
    return []
