"""The JSON Schemas of `run_python`: what it takes, and what its record looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT: dict[str, Any] = {
    "session": {
        "type": "string",
        "description": "Name of a session: variables, imports and files are kept for the "
        "next run with the same one.",
    },
    "end_session": {
        "type": "boolean",
        "default": False,
        "description": "End the session after this; without code, only that.",
    },
    "files": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "text": {"type": "string"},
                "data": {"type": "string", "description": "Base64."},
                "uri": {"type": "string", "description": "bridge://artifacts/... or data:"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "description": "Files for the working directory. What the program writes to out/ "
        "comes back.",
    },
    "packages": {
        "type": "array",
        "items": {"type": "string"},
        "description": 'Packages from the allowed ones, such as "polars==1.*".',
    },
}
"""Arguments about what outlives a run."""


def input_schema(
    max_timeout: float, default_timeout: float, *, packages: bool = True
) -> dict[str, Any]:
    """Return the JSON Schema of the tool's arguments, `packages` only where some are allowed."""
    kept = {name: one for name, one in _KEPT.items() if packages or name != "packages"}
    return {
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "description": "The Python program. Top-level await works.",
            },
            "servers": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Servers to load besides those that the code names.",
            },
            "timeout": {
                "type": "number",
                "minimum": 1,
                "maximum": max_timeout,
                "default": default_timeout,
                "description": "Seconds the program may take.",
            },
            "mode": {
                "type": "string",
                "enum": ["run", "plan"],
                "default": "run",
                "description": "plan: reads happen, calls that change something are held back and "
                "listed under an id for `apply`; what they return can be passed on, not looked at.",
            },
            "apply": {
                "type": "string",
                "description": "Id of a plan whose calls are to be made now; nothing else with it.",
            },
            "retry_of": {
                "type": "string",
                "description": "Id of a run that failed: calls it made already are answered "
                "from its journal, not repeated.",
            },
            "reads": {
                "type": "string",
                "enum": ["replay", "refresh"],
                "default": "replay",
                "description": "With retry_of: whether reads are answered so too, or made again.",
            },
            **kept,
        },
        "additionalProperties": False,
    }


def _object(types: Mapping[str, str], *required: str) -> dict[str, Any]:
    fields: dict[str, Any] = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": fields, "required": list(required)}


_CALL_COUNTS: dict[str, Any] = {
    "type": "array",
    "items": _object(
        {"server": "string", "tool": "string", "count": "integer", "why": "string"}, "count"
    ),
}

_INTEGERS = (
    "replayed",
    "held",
    "refused",
    "unknown",
    "resultBytes",
    "returnedBytes",
    "tokensKept",
    "codeMs",
    "callsMs",
    "waitingMs",
)

_RECEIPT = _object(
    {"calls": "object", **dict.fromkeys(_INTEGERS, "integer"), "audit": "string"},
    "resultBytes",
    "returnedBytes",
    "tokensKept",
    "codeMs",
)

_PLAN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "seconds": {"type": "number"},
        "calls": {
            "type": "array",
            "items": _object(
                {
                    "number": "integer",
                    "server": "string",
                    "tool": "string",
                    "arguments": "object",
                    "effect": "string",
                    "action": "string",
                    "rule": "string",
                    "digest": "string",
                    "unlisted": "array",
                },
                "number",
                "server",
                "tool",
                "arguments",
            ),
        },
        "callsOmitted": {"type": "integer"},
        "stopped": {"type": "string"},
        "stale": {"type": "string"},
    },
}

OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "runId": {"type": "string"},
        "status": {"type": "string", "enum": ["success", "error", "timeout", "validation_error"]},
        "summary": {"type": "string"},
        "reason": {"type": "string"},
        "exitCode": {"type": "integer"},
        "stdout": {"type": "array", "items": {"type": "string"}},
        "stderr": {"type": "array", "items": {"type": "string"}},
        "noFinalNewline": {"type": "array", "items": {"type": "string"}},
        "result": {},
        "resultRepr": {"type": "string"},
        "error": {"type": "string"},
        "servers": {"type": "array", "items": {"type": "string"}},
        "timeoutSeconds": {"type": "number"},
        "truncated": {"type": "object"},
        "whole": {"type": "object"},
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "line": {"type": "integer"},
                    "column": {"type": "integer"},
                    "rule": {"type": "string"},
                    "severity": {"type": "string", "enum": ["deny", "note"]},
                    "message": {"type": "string"},
                },
                "required": ["rule", "severity", "message"],
            },
        },
        "findingsOmitted": {"type": "integer"},
        "isolation": {"type": "object"},
        "plan": _PLAN,
        "replayed": _CALL_COUNTS,
        "unused": _CALL_COUNTS,
        "refused": _CALL_COUNTS,
        "unknown": _CALL_COUNTS,
        "usage": {"type": "object"},
        "receipt": _RECEIPT,
        "shown": {"type": "array", "items": {"type": "object"}},
        "artifacts": {"type": "array", "items": {"type": "object"}},
        "missing": {"type": "array", "items": {"type": "object"}},
        "session": {"type": "object"},
    },
    "required": ["runId", "status", "summary"],
}
"""What a result's record looks like; fields that would be empty are left out."""
