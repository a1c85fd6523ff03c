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
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bridge.model import (
    Artifact,
    Isolation,
    Json,
    Loss,
    Plan,
    RunResult,
    SessionReport,
    ShownContent,
    Variable,
)
from bridge.text import valid_text

MAX_DEPTH = 64
"""Deepest nesting handed on as such; what is below becomes a string of JSON. pydantic gives up at
255 levels and other clients' parsers earlier."""

TOO_DEEP = "(nested too deep to be written)"

MAX_PLAN_CHARACTERS = 64 * 1024  # A plan's calls as JSON; a program holds any number.

_OUTCOME = ("run_id", "status", "summary", "exit_code")


def structured(result: RunResult) -> dict[str, Any]:
    """Return the contract's fields; those that are empty are left out.

    Keys:
        noFinalNewline: Streams whose last line has no newline.
        whole: Stream to where all of it is kept, if it is not shown in full.
        isolation.unverified: Those of `layers` that were not seen from inside.
        plan.callsOmitted: How many calls are not listed.
        shown.uri: Where the original is kept.
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
        "plan": None if result.plan is None else plan_fields(result.plan),
        **{
            name: [contract_fields(found, *_COUNT) for found in getattr(result, name)]
            for name in ("replayed", "unused", "refused", "unknown")
        },
        "usage": contract_fields(result.usage, *_USAGE, always=_USAGE),
        "receipt": result.receipt and contract_fields(result.receipt, *_RECEIPT, always=_ACCOUNTED),
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
    if not isinstance(value, (Mapping, list, tuple)):
        return _scalar(value)
    if depth >= MAX_DEPTH:
        return _deep_text(value)
    if isinstance(value, Mapping):
        return {_key(key): to_json(item, depth + 1) for key, item in value.items()}
    return [to_json(item, depth + 1) for item in value]


def _deep_text(value: Json) -> str:
    try:
        return _dump(to_json(value, -sys.maxsize))
    except RecursionError:
        return TOO_DEEP


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


def contract_fields(value: object, *names: str, always: Collection[str] = ()) -> dict[str, Json]:
    """Return attributes of a value under the names that the contract has for them.

    Args:
        names: Of attributes: `exit_code` becomes "exitCode".
        always: Those that are there even if they are empty, as long as they are known.
    """
    found: dict[str, Json] = {}
    for name in names:
        own = getattr(value, name)
        if own or (own is not None and name in always):
            head, *rest = name.split("_")
            found[head + "".join(map(str.capitalize, rest))] = own
    return found


def isolation_fields(isolation: Isolation | None) -> dict[str, Json] | None:
    """Return what separated a run from the host; `unverified` layers were not seen from inside."""
    if isolation is None:
        return None
    unverified = [layer for layer in isolation.layers if layer not in isolation.verified]
    return {
        **contract_fields(isolation, "backend", "oci_runtime", "layers"),
        **({"unverified": unverified} if unverified else {}),
        **contract_fields(isolation, "weaker"),
    }


_HELD_CALL = (
    *("number", "server", "tool", "arguments", "effect", "action", "rule"),
    *("digest", "unlisted"),
)


def plan_fields(plan: Plan) -> dict[str, Json]:
    """Return a plan; each call with what is known of it, as far as there is room for them."""
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
_ACCOUNTED = ("result_bytes", "returned_bytes", "tokens_kept", "code_ms")
_RECEIPT = (
    *("calls", "replayed", "held", "refused", "unknown"),
    *(*_ACCOUNTED, "calls_ms", "waiting_ms", "audit", "masked", "unsent"),
)
_USAGE = ("wall_ms", "cpu_ms", "peak_memory_bytes", "tool_calls", "tool_result_bytes")


_ARTIFACT = ("uri", "name", "kind", "mime_type", "size")


def artifact_fields(artifact: Artifact) -> dict[str, Json]:
    fields = contract_fields(artifact, *_ARTIFACT, always=_ARTIFACT)
    return {**fields, "sha256": artifact.digest}


def output_links(result: RunResult) -> dict[str, Json]:
    """Return where all of the streams is that are not shown in full."""
    return {
        artifact.kind: artifact.uri
        for artifact in result.artifacts
        if artifact.kind in ("stdout", "stderr")
    }


def shown_fields(shown: ShownContent) -> dict[str, Json]:
    """Return the record of something shown, which itself is a content block."""
    uri = {"uri": shown.artifact.uri} if shown.artifact is not None else {}
    return {**contract_fields(shown, "mime_type", "width", "height", "text", "note"), **uri}


def loss_fields(loss: Loss) -> dict[str, Json]:
    return {"name": loss.name, "why": loss.why}


def session_fields(report: SessionReport) -> dict[str, Json]:
    fields = {
        "id": report.session_id,
        **contract_fields(report, "name", "run", "state"),
        "holds": held_fields(report.holds),
        "more": report.more,
        "lost": [loss_fields(loss) for loss in report.lost],
        "note": report.note,
    }
    return {name: value for name, value in fields.items() if value}


def held_fields(held: Iterable[Variable]) -> list[Json]:
    return [{"name": one.name, "type": one.kind, "size": one.size} for one in held]


def kept_fields(result: RunResult) -> Mapping[str, Json]:
    """Return the fields of a result about what outlives it; some may be empty."""
    return {
        "shown": [shown_fields(shown) for shown in result.shown],
        "whole": output_links(result),
        "artifacts": [artifact_fields(artifact) for artifact in result.artifacts],
        "missing": [loss_fields(loss) for loss in result.missing],
        "session": None if result.session is None else session_fields(result.session),
    }
