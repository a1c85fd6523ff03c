"""Renders a `RunResult` or a `CommandResult` as structured content: JSON that any client can read.

The JSON has no lone surrogates, no NaN and no nesting that is too deep for serialisers.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from signal import Signals
from typing import Any

from bridge.model import (
    Artifact,
    CommandResult,
    Isolation,
    Json,
    Plan,
    RunResult,
    SessionReport,
    StageResult,
    Variable,
)
from bridge.text import valid_text

MAX_DEPTH = 64
"""Levels of nesting; deeper values become strings of JSON. pydantic fails at 255 levels, and other
clients' parsers earlier."""

TOO_DEEP = "(nested too deep to be written)"

MAX_PLAN_CHARACTERS = 64 * 1024  # A plan's calls as JSON; a program makes any number.

_OUTCOME = ("run_id", "status", "summary", "exit_code")


def to_structured(result: RunResult) -> dict[str, Any]:
    """Return the contract's fields without the empty ones.

    Keys:
        noFinalNewline: Streams whose last line has no newline.
        whole: By stream, the URI of the whole output if the result has only a part.
        isolation.unverified: Those of `layers` that the sandbox did not see from inside.
        plan.callsOmitted: Number of calls that are not listed.
        shown.uri: URI of the original.
    """
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    fields: dict[str, Json] = {
        **contract_fields(
            result, "run_id", "status", "summary", "reason", "exit_code", always=_OUTCOME
        ),
        **{name: stream_lines(text) for name, text in streams.items()},
        "noFinalNewline": [
            name for name, text in streams.items() if text and not text.endswith("\n")
        ],
        "result": result.result if result.has_result else None,
        **contract_fields(result, "result_repr", "error", "servers"),
        "timeoutSeconds": _plain_number(result.timeout_seconds) or None,
        "truncated": result.truncated,
        "findings": [contract_fields(found, *_FINDING) for found in result.findings],
        "findingsOmitted": result.findings_omitted or None,
        "isolation": isolation_fields(result.isolation),
        "plan": None if result.plan is None else _plan_fields(result.plan),
        **{
            name: [contract_fields(found, *_COUNT) for found in getattr(result, name)]
            for name in ("replayed", "unused", "refused", "unknown")
        },
        "usage": contract_fields(result.usage, *_USAGE, always=_USAGE),
        "receipt": result.receipt and contract_fields(result.receipt, *_RECEIPT, always=_ACCOUNTED),
        "shown": [
            contract_fields(shown, *_SHOWN)
            | (contract_fields(shown.artifact, "uri") if shown.artifact else {})
            for shown in result.shown
        ],
        "whole": output_links(result),
        "artifacts": [artifact_fields(artifact) for artifact in result.artifacts],
        "missing": [asdict(loss) for loss in result.missing],
        "session": None if result.session is None else _session_fields(result.session),
    }
    return {
        name: to_json(value)
        for name, value in fields.items()
        # A result of None, "" or [] is a result.
        if value not in (None, "", [], {}) or (name == "result" and result.has_result)
    }


def stream_lines(text: str) -> list[str]:
    """Return the lines of `text`; only "\\n" separates lines."""
    return text.removesuffix("\n").split("\n") if text else []


def to_json(value: Json, depth: int = 0) -> Json:
    """Return `value` as JSON that every client can read.

    Non-finite numbers become their names, other types their `repr`, and values nested more than
    `MAX_DEPTH` levels deep a string of JSON.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        return _scalar(value)
    if depth >= MAX_DEPTH:
        try:
            return _dump(to_json(value, -sys.maxsize))
        except RecursionError:
            return TOO_DEEP
    if isinstance(value, Mapping):
        return {_key(key): to_json(item, depth + 1) for key, item in value.items()}
    return [to_json(item, depth + 1) for item in value]


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _key(key: object) -> str:
    if isinstance(key, str):
        return valid_text(key)
    scalar = _scalar(key)
    return scalar if isinstance(scalar, str) else _dump(scalar)


def _scalar(value: object) -> Json:
    if isinstance(value, str):
        return valid_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        try:
            str(value)
        except ValueError:
            # It exceeds the interpreter's limit on decimal digits.
            return hex(value)
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return valid_text(repr(value))


def _plain_number(number: float) -> int | float:
    return int(number) if math.isfinite(number) and number == int(number) else number


def contract_fields(value: object, *names: str, always: Collection[str] = ()) -> dict[str, Json]:
    """Return attributes under their names in the contract: `exit_code` becomes "exitCode".

    Args:
        always: The attributes that appear even if they are empty, unless they are None.
    """
    fields: dict[str, Json] = {}
    for name in names:
        attribute = getattr(value, name)
        if attribute or (attribute is not None and name in always):
            head, *rest = name.split("_")
            fields[head + "".join(map(str.capitalize, rest))] = attribute
    return fields


def isolation_fields(isolation: Isolation | None) -> dict[str, Json] | None:
    if isolation is None:
        return None
    unverified = [layer for layer in isolation.layers if layer not in isolation.verified]
    return {
        **contract_fields(isolation, "backend", "oci_runtime", "layers"),
        **({"unverified": unverified} if unverified else {}),
        **contract_fields(isolation, "weaker"),
    }


def _plan_fields(plan: Plan) -> dict[str, Json]:
    calls: list[Json] = []
    left = MAX_PLAN_CHARACTERS
    for call in plan.calls:
        fields = contract_fields(call, *_HELD_CALL, always=("arguments", "rule"))
        left -= len(_dump(to_json(fields)))
        if left < 0:
            break
        calls.append(fields)
    fields = {
        "id": plan.plan_id,
        "seconds": _plain_number(plan.seconds),
        "calls": calls,
        "callsOmitted": len(plan.calls) - len(calls),
        "stopped": plan.stopped,
        "stale": plan.stale,
    }
    return {name: value for name, value in fields.items() if value not in ("", 0)}


_COUNT = ("server", "tool", "count", "why")
_FINDING = ("line", "column", "rule", "severity", "message")
_HELD_CALL = (
    *("number", "server", "tool", "arguments", "effect", "action", "rule"),
    *("digest", "unlisted"),
)
_ACCOUNTED = ("result_bytes", "returned_bytes", "tokens_kept", "code_ms")
_RECEIPT = (
    *("calls", "replayed", "held", "refused", "unknown"),
    *(*_ACCOUNTED, "calls_ms", "waiting_ms", "audit", "masked", "unsent"),
)
_USAGE = ("wall_ms", "cpu_ms", "peak_memory_bytes", "tool_calls", "tool_result_bytes")
_SHOWN = ("mime_type", "width", "height", "text", "note")
_ARTIFACT = ("uri", "name", "kind", "mime_type", "size")


def artifact_fields(artifact: Artifact) -> dict[str, Json]:
    return {**contract_fields(artifact, *_ARTIFACT, always=_ARTIFACT), "sha256": artifact.digest}


def output_links(result: RunResult) -> dict[str, Json]:
    """Return the URI of each stream that the result shows only in part."""
    return {one.kind: one.uri for one in result.artifacts if one.kind in ("stdout", "stderr")}


def _session_fields(report: SessionReport) -> dict[str, Json]:
    fields = {
        "id": report.session_id,
        **contract_fields(report, "name", "run", "state"),
        "holds": held_fields(report.holds),
        "more": report.more,
        "lost": [asdict(loss) for loss in report.lost],
        "note": report.note,
    }
    return {name: value for name, value in fields.items() if value}


def held_fields(held: Iterable[Variable]) -> list[Json]:
    return [{"name": one.name, "type": one.kind, "size": one.size} for one in held]


def structured_command(result: CommandResult) -> dict[str, Any]:
    """Return the contract's fields without the empty ones.

    Keys:
        stages.command: The words, as a line.
    """
    stderr = "".join(stage.stderr for stage in result.stages)
    named = ("run_id", "status", "summary", "profile", "reason", "exit_code")
    fields: dict[str, Json] = {
        **contract_fields(result, *named, always=("exit_code",)),
        "stages": [_stage(stage, many=len(result.stages) > 1) for stage in result.stages],
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
        # The result itself has the output of a single command.
        **({"stderr": stream_lines(stage.stderr)} if many and stage.stderr else {}),
    }
