"""A `CommandResult` as structured content and as text.

Owns the compact form; how values become fields and streams become lines is `structured`'s.
"""

from __future__ import annotations

import shlex
from signal import Signals
from typing import Any

from bridge.model import CommandResult, Json, StageResult
from bridge.render.structured import contract_fields, isolation_fields, stream_lines, to_json
from bridge.text import valid_text

NOTHING = "The command succeeded without output."


def structured_command(result: CommandResult) -> dict[str, Any]:
    """Return the fields; those that are empty are left out.

    Keys:
        stages.command: Its words, as a line.
    """
    many = len(result.stages) > 1
    stderr = "".join(stage.stderr for stage in result.stages)
    named = ("run_id", "status", "summary", "profile", "reason", "exit_code")
    fields: dict[str, Json] = {
        **contract_fields(result, *named, always=("exit_code",)),
        "stages": [_stage(stage, many=many) for stage in result.stages],
        "stdout": stream_lines(result.stdout),
        "stderr": stream_lines(stderr),
        **contract_fields(result, "error", "timeout_seconds", "truncated"),
        "isolation": isolation_fields(result.isolation),
        "usage": {"wallMs": result.usage.wall_ms} if result.stages else None,
    }
    return {name: to_json(value) for name, value in fields.items() if value not in (None, [])}


def _stage(stage: StageResult, *, many: bool) -> dict[str, Json]:
    signal = {"signal": Signals(stage.signal).name} if stage.signal is not None else {}
    return {
        "command": shlex.join(stage.words),
        **contract_fields(stage, "exit_code", always=("exit_code",)),
        **signal,
        **contract_fields(stage, "cut_short", "not_started"),
        # One command's is the result's own.
        **({"stderr": stream_lines(stage.stderr)} if many and stage.stderr else {}),
    }


def compact_command(result: CommandResult) -> str:
    """Return the text; of a command that succeeded and only printed, exactly what it printed."""
    sections = [result.stdout] if result.stdout else []
    for number, stage in enumerate(result.stages, 1):
        if stage.stderr:
            which = f" of stage {number}" if len(result.stages) > 1 else ""
            sections.append(f"[stderr{which}]\n{stage.stderr}")
    if result.truncated:
        cuts = "; ".join(f"{count:,} bytes of {name}" for name, count in result.truncated.items())
        sections.append(f"[truncated] {cuts} were dropped. Filter or count in a later stage.")
    if result.error:
        sections.append(f"[{result.status}] {result.error}")
    ended = [part if part.endswith("\n") else f"{part}\n" for part in sections[:-1]]
    return valid_text("".join((*ended, *sections[-1:]))) or NOTHING
