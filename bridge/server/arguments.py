"""The arguments of `run_python`: their schema, and the way from JSON to a `RunRequest`. Pure.

The SDK's low-level server passes arguments unchecked, and a schema validator's messages do not tell
a model what to write instead, so the few rules are checked here in words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge.errors import InvalidRequestError
from bridge.model import ApplyRequest, Json, RunRequest
from bridge.server.arguments_kept import parse_files, parse_packages, parse_session

_KNOWN = (
    *("code", "servers", "timeout", "mode", "apply", "retry_of", "reads"),
    *("session", "end_session", "files", "packages"),
)

_ID = re.compile(r"[0-9a-f]{8,64}")

MAX_SERVERS = 200
"""Names in one request; more than anybody configures."""


def input_schema(max_timeout: float, default_timeout: float) -> dict[str, Any]:
    """Return the JSON Schema of the tool's arguments."""
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
                "description": "runId of a run that failed: calls it made already are answered "
                "from its journal, not repeated.",
            },
            "reads": {
                "type": "string",
                "enum": ["replay", "refresh"],
                "default": "replay",
                "description": "With retry_of: whether reads are answered so too, or made again.",
            },
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
"""What structured content looks like; fields that would be empty are left out."""


def parse_request(arguments: Mapping[str, Json] | None) -> RunRequest | ApplyRequest:
    """Return the request that the arguments make: to run a program, or to apply a plan.

    Raises:
        InvalidRequestError: They are unusable; the text says what to pass instead.
    """
    given = arguments or {}
    refuse_unknown("run_python", given, _KNOWN)
    if given.get("apply") is not None:
        return _apply(given)
    retry_of = _identifier("retry_of", given.get("retry_of"))
    if given.get("reads") is not None and not retry_of:
        message = "`reads` says how a retry is answered, and needs `retry_of`."
        raise InvalidRequestError(message)
    session, ends = parse_session(given)
    return RunRequest(
        code="" if ends and given.get("code") is None else _code(given.get("code")),
        session=session,
        end_session=ends,
        files=parse_files(given.get("files")),
        packages=parse_packages(given.get("packages")),
        servers=_servers(given.get("servers")),
        timeout=_timeout(given.get("timeout")),
        mode="plan" if _choice("mode", given.get("mode"), ("run", "plan")) == "plan" else "run",
        retry_of=retry_of,
        reads="refresh"
        if _choice("reads", given.get("reads"), ("replay", "refresh")) == "refresh"
        else "replay",
    )


def _apply(given: Mapping[str, Json]) -> ApplyRequest:
    others = sorted(name for name, value in given.items() if name != "apply" and value is not None)
    if others:
        message = (
            f"`apply` performs a plan exactly as it was shown, and takes nothing with it: leave "
            f"out {', '.join(others)}."
        )
        raise InvalidRequestError(message)
    return ApplyRequest(plan_id=_identifier("apply", given["apply"]))


def _identifier(name: str, value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        message = f"`{name}` must be an id as a result had it, not {value!r:.80}."
        raise InvalidRequestError(message)
    return value


def _choice(name: str, value: Json, choices: Sequence[str]) -> str:
    if value is None:
        return choices[0]
    if not isinstance(value, str) or value not in choices:
        message = f"`{name}` must be one of {', '.join(choices)}, not {value!r:.80}."
        if value == "apply":
            message = f'{message} A plan is applied with its id alone: run_python(apply="...").'
        raise InvalidRequestError(message)
    return value


def refuse_unknown(tool: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Accept only arguments that a tool has.

    Raises:
        InvalidRequestError: There is another; the text names those that there are.
    """
    for name in given:
        if name not in known:
            message = f"{tool} has no argument {name[:80]!r}; it takes {', '.join(known)}."
            raise InvalidRequestError(message)


def _code(value: Json) -> str:
    if value is None:
        message = "run_python needs `code`: a string holding a Python program."
        raise InvalidRequestError(message)
    if not isinstance(value, str):
        message = f"`code` must be a string, not {_kind(value)}."
        raise InvalidRequestError(message)
    if not value.strip():
        message = "`code` is empty; pass the Python program to run."
        raise InvalidRequestError(message)
    return value


def _servers(value: Json) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        message = (
            f"`servers` must be a list of server names such as "
            f'["git", "time"], not {_kind(value)}; or leave it out.'
        )
        raise InvalidRequestError(message)
    if len(value) > MAX_SERVERS:
        message = f"`servers` names {len(value)} servers; at most {MAX_SERVERS} are taken."
        raise InvalidRequestError(message)
    return tuple(value)


def _timeout(value: Json) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"`timeout` must be a number of seconds, not {_kind(value)}."
        raise InvalidRequestError(message)
    return float(value)


def _kind(value: Json) -> str:
    if isinstance(value, list):
        odd = next((item for item in value if not isinstance(item, str)), None)
        return "a list" if odd is None else f"a list with {_kind(odd)} in it"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"the number {value!r:.40}")
