"""A `CommandResult` as structured content and as text.

Owns the field names and the compact form; how streams become lines is `structured`'s.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from signal import Signals
from typing import Any

from bridge.model import CommandResult, Json, StageResult
from bridge.render.structured import isolation_fields, stream_lines, to_json
from bridge.text import valid_text

NOTHING = "The command succeeded without output."


def structured_command(result: CommandResult) -> dict[str, Any]:
    """Return the fields; those that are empty are left out."""
    many = len(result.stages) > 1
    stderr = "".join(stage.stderr for stage in result.stages)
    fields: dict[str, Json] = {
        "runId": result.run_id,
        "status": result.status,
        "summary": result.summary,
        "profile": result.profile,
        "reason": result.reason,
        "exitCode": result.exit_code,
        "stages": [_stage(stage, many=many) for stage in result.stages],
        "stdout": stream_lines(result.stdout),
        "stderr": stream_lines(stderr),
        "error": result.error,
        "timeoutSeconds": result.timeout_seconds or None,
        "truncated": dict(result.truncated),
        "isolation": isolation_fields(result.isolation),
        "usage": {"wallMs": result.usage.wall_ms} if result.stages else None,
    }
    return {
        name: to_json(value) for name, value in fields.items() if value not in (None, "", [], {})
    }


def _stage(stage: StageResult, *, many: bool) -> Mapping[str, Json]:
    fields: dict[str, Json] = {
        "command": shlex.join(stage.words),
        "exitCode": stage.exit_code,
        "signal": Signals(stage.signal).name if stage.signal is not None else None,
        "cutShort": stage.cut_short or None,
        # One command's is the result's own.
        "stderr": stream_lines(stage.stderr) if many else None,
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def compact_command(result: CommandResult) -> str:
    """Return the text; of a command that succeeded and only printed, exactly what it printed."""
    sections = _sections(result)
    if not sections:
        return valid_text(result.stdout) or NOTHING
    parts = [result.stdout, *sections] if result.stdout else sections
    ended = [part if part.endswith("\n") else f"{part}\n" for part in parts[:-1]]
    return valid_text("".join(ended) + parts[-1])


def _sections(result: CommandResult) -> list[str]:
    sections = []
    for number, stage in enumerate(result.stages, 1):
        if stage.stderr:
            which = f" of stage {number}" if len(result.stages) > 1 else ""
            sections.append(f"[stderr{which}]\n{stage.stderr}")
    if result.truncated:
        cuts = "; ".join(f"{count:,} bytes of {name}" for name, count in result.truncated.items())
        sections.append(f"[truncated] {cuts} were dropped. Filter or count in a later stage.")
    if result.error:
        sections.append(f"[{result.status}] {result.error}")
    return sections
