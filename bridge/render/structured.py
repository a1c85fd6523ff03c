"""A `RunResult` as structured content.

Owns the field names of the contract, what counts as empty, how a stream becomes lines, and that
the outcome is JSON which any client can take: no lone surrogates, no NaN, no nesting that makes a
serialiser give up. Bounds nothing in size: that was done where the output was captured.

A stream is a list of lines without their newlines. A newline at the very end ends the last line
and adds no empty one; every other blank line is there; "\r" stays. A stream whose last line has no
newline is named in `noFinalNewline`, so that exactly what was written can be had back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.model import (
    Artifact,
    CallCount,
    Finding,
    Isolation,
    Json,
    Loss,
    Plan,
    Receipt,
    RunResult,
    SessionReport,
    Shown,
    Usage,
)
from bridge.text import valid_text

MAX_DEPTH = 64
"""Deepest nesting handed on as such; what is below becomes a string of JSON. pydantic gives up at
255 levels and other clients' parsers earlier."""

MAX_PLAN_CHARACTERS = 64 * 1024
"""Of a plan's calls, as JSON: what clients put before a model. The rest is counted."""


def structured(result: RunResult) -> dict[str, Any]:
    """Return the contract's fields; those that are empty are left out."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    fields: dict[str, Json] = {
        "runId": result.run_id,
        "status": result.status,
        "summary": result.summary,
        "reason": result.reason,
        "exitCode": result.exit_code,
        **{name: stream_lines(text) for name, text in streams.items()},
        "noFinalNewline": [
            name for name, text in streams.items() if text and not text.endswith("\n")
        ],
        "result": result.result if result.has_result else None,
        "resultRepr": result.result_repr,
        "error": result.error,
        "servers": list(result.servers),
        "timeoutSeconds": _plain_number(result.timeout_seconds) or None,
        "truncated": dict(result.truncated),
        "findings": [_finding(found) for found in result.findings],
        "findingsOmitted": result.findings_omitted or None,
        "isolation": isolation_fields(result.isolation),
        "plan": None if result.plan is None else plan_fields(result.plan),
        "replayed": [_count(found) for found in result.replayed],
        "unused": [_count(found) for found in result.unused],
        "refused": [_count(found) for found in result.refused],
        "unknown": [_count(found) for found in result.unknown],
        "usage": _usage(result.usage),
        "receipt": None if result.receipt is None else _receipt(result.receipt),
        **kept_fields(result),
    }
    return {
        name: to_json(value)
        for name, value in fields.items()
        # A result of None, "" or [] is a result.
        if value not in (None, "", [], {}) or (name == "result" and result.has_result)
    }


def stream_lines(text: str) -> list[str]:
    """Return the lines of `text`, parted at "\\n" and nowhere else."""
    if not text:
        return []
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def to_json(value: Json, depth: int = 0) -> Json:
    """Return `value` as JSON that every client can take, losing nothing that can be written.

    Non-finite numbers become their names, other types their `repr`, and what is nested more than
    `MAX_DEPTH` levels deep a string of compact JSON.
    """
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return _deep_text(value)
        return {_key(key): to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            return _deep_text(value)
        return [to_json(item, depth + 1) for item in value]
    return _scalar(value)


@dataclass(frozen=True)
class _Text:
    """A piece of JSON that is already written."""

    text: str


def _deep_text(value: Json) -> str:
    """Return `value` as JSON without recursing, however deep it is."""
    written: list[str] = []
    stack: list[Json] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, _Text):
            written.append(item.text)
        elif isinstance(item, Mapping):
            written.append("{")
            stack.append(_Text("}"))
            for number, (key, own) in enumerate(reversed(list(item.items()))):
                stack += [_Text("," if number else ""), own, _Text(f"{_dump(_key(key))}:")]
        elif isinstance(item, (list, tuple)):
            written.append("[")
            stack.append(_Text("]"))
            for number, own in enumerate(reversed(item)):
                stack += [_Text("," if number else ""), own]
        else:
            written.append(_dump(_scalar(item)))
    return "".join(written)


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
            # Past the interpreter's limit on decimal digits.
            return hex(value)
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return valid_text(repr(value))


def _plain_number(number: float) -> int | float:
    return int(number) if math.isfinite(number) and number == int(number) else number


def _finding(found: Finding) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "line": found.line,
        "column": found.column,
        "rule": found.rule,
        "severity": found.severity,
        "message": found.message,
    }
    # What is about the program as a whole is in no line.
    return {name: value for name, value in fields.items() if value != 0}


def isolation_fields(isolation: Isolation | None) -> dict[str, Json] | None:
    """Return what separated a run from the host, as the contract has it.

    Nearly all layers are seen from inside: to name the others says the same in a fifth of the
    room, in every result. None is passed over because nobody looked: what was not seen is named.
    """
    if isolation is None:
        return None
    unverified = [layer for layer in isolation.layers if layer not in isolation.verified]
    fields: dict[str, Json] = {
        "backend": isolation.backend,
        "ociRuntime": isolation.oci_runtime,
        "layers": list(isolation.layers),
        "unverified": unverified,
        "weaker": list(isolation.weaker),
    }
    return {name: value for name, value in fields.items() if value}


def plan_fields(plan: Plan) -> dict[str, Json]:
    """Return a plan; each call with what is known of it, as far as there is room for them."""
    calls: list[Json] = []
    left = MAX_PLAN_CHARACTERS
    for call in plan.calls:
        fields: dict[str, Json] = {
            "number": call.number,
            "server": call.server,
            "tool": call.tool,
            "arguments": dict(call.arguments),
            "effect": call.effect,
            "action": call.action,
            "rule": call.rule,
        }
        fields |= {"digest": call.digest} if call.digest else {}
        fields |= {"unlisted": list(call.unlisted)} if call.unlisted else {}
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


def _count(found: CallCount) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "server": found.server,
        "tool": found.tool,
        "count": found.count,
        "why": found.why,
    }
    return {name: value for name, value in fields.items() if value != ""}


def _receipt(receipt: Receipt) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "calls": dict(receipt.calls),
        "replayed": receipt.replayed,
        "held": receipt.held,
        "refused": receipt.refused,
        "unknown": receipt.unknown,
        "resultBytes": receipt.result_bytes,
        "returnedBytes": receipt.returned_bytes,
        "tokensKept": receipt.tokens_kept,
        "codeMs": receipt.code_ms,
        "callsMs": receipt.calls_ms,
        "waitingMs": receipt.waiting_ms,
        "audit": receipt.audit,
    }
    always = ("resultBytes", "returnedBytes", "tokensKept", "codeMs")
    return {name: value for name, value in fields.items() if value or name in always}


def _usage(usage: Usage) -> dict[str, Json]:
    fields = {
        "wallMs": usage.wall_ms,
        "cpuMs": usage.cpu_ms,
        "peakMemoryBytes": usage.peak_memory_bytes,
        "toolCalls": usage.tool_calls,
        "toolResultBytes": usage.tool_result_bytes,
    }
    return {name: value for name, value in fields.items() if value is not None}


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
