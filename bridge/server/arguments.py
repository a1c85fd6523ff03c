"""The arguments and the record of `run_python`: schemas, and parsing into a request. Pure.

The SDK's low-level server does not validate arguments. This module validates those of every tool
against its schema, with the validator for programs' calls.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from bridge.errors import InvalidRequestError
from bridge.guest.schema.validation import convert, problem
from bridge.model import ApplyRequest, InputFile, Json, RetriedReads, RunMode, RunRequest
from bridge.runs.input_files import MAX_FILES
from bridge.server.content import Kind, record_schema
from bridge.settings import BUILT_IN_PROFILES

_ID = re.compile(r"[0-9a-f]{8,64}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_UNUSED = frozenset(("", "null", "none", "undefined"))
"""Texts that clients and models write for an unused argument."""


def parse_request(arguments: Mapping[str, Json] | None) -> RunRequest | ApplyRequest:
    """Return the request to run a program or to apply a plan."""
    schema = _parsed_schema()
    given = checked_arguments("run_python", arguments, schema, ("code",))
    properties = schema["properties"].items()
    defaults = {name: own["default"] for name, own in properties if "default" in own}
    if "apply" in given:
        others = sorted(
            name
            for name, value in given.items()
            if name != "apply" and value not in ("", []) and value != defaults.get(name)
        )
        if others:
            raise InvalidRequestError(
                "`apply` performs a plan exactly as it was shown, and takes nothing with it: leave "
                f"out {', '.join(others)}."
            )
        return ApplyRequest(plan_id=_identifier("apply", given["apply"]))
    given = {**defaults, **given}
    retry_of = _identifier("retry_of", given.get("retry_of", ""))
    if given["reads"] != "replay" and not retry_of:
        raise InvalidRequestError("`reads` says how a retry is answered, and needs `retry_of`.")
    ends = given["end_session"]
    session = parse_session(given.get("session"), ends=ends)
    code, servers, timeout = (given.get(name) for name in ("code", "servers", "timeout"))
    if (code or not ends) and not (code or "").strip():
        raise InvalidRequestError("run_python needs `code`: a string holding a Python program.")
    return RunRequest(
        code=code or "",
        session=session,
        end_session=ends,
        files=tuple(map(_file, given.get("files", ()))),
        packages=parse_packages(given.get("packages", ())),
        loses_state=given["lose_state"],
        profile=given.get("profile", ""),
        servers=None if servers is None else tuple(servers),
        timeout=None if timeout is None else float(timeout),
        mode=given["mode"],
        retry_of=retry_of,
        reads=given["reads"],
    )


def checked_arguments(
    tool: str, arguments: Mapping[str, Json] | None, schema: Mapping[str, Any], texts: Iterable[str]
) -> dict[str, Any]:
    """Return a call's arguments with the types of their schema, without unused ones.

    JSON text of the declared type becomes that value, and a single item becomes a list. Blank text
    and "null" count as absent.

    Args:
        texts: Names of the arguments that may be any text.
    """
    given: dict[str, Any] = {}
    properties = schema["properties"]
    for name, value in (arguments or {}).items():
        if name not in properties:
            message = f"{tool} has no argument {name[:80]!r}; it takes {', '.join(properties)}."
            raise InvalidRequestError(message)
        own = properties[name]
        if name not in texts and isinstance(value, str):
            if value.strip().casefold() in _UNUSED:
                continue
            value = convert(value, own, schema)
        item = own.get("items", {}).get("type")
        if isinstance(value, dict if item == "object" else str) and item is not None:
            value = [value]
        if isinstance(value, list):
            value = [_without_nulls(each) for each in value]
        if value is not None:
            given[name] = value
    wrong = problem(given, schema, schema)
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            wrong = f"{name} must be a number, not {value}"
    if given.get("mode") == "apply":
        wrong = f'{wrong}. A plan is applied with its id alone: {tool}(apply="...")'
    if wrong is not None:
        raise InvalidRequestError(f"{tool}: {wrong}.")
    return given


def _without_nulls(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each is not None}


def parse_session(session: str | None, *, ends: bool) -> str:
    """Return the session's name or id, empty for none; `ends` if the run must end it."""
    if session is None:
        if ends:
            raise InvalidRequestError("`end_session` needs `session`: the session to end.")
        return ""
    if not _SESSION.fullmatch(session):
        raise InvalidRequestError(
            "`session` must be a name of up to 64 letters, digits, dots, dashes and underscores, "
            f'such as "analysis", not {session!r:.80}.'
        )
    return session


def parse_packages(requirements: Sequence[str]) -> tuple[str, ...]:
    # Parsing megabytes of requirements would block the bridge.
    if sum(map(len, requirements)) > 50_000:
        raise InvalidRequestError("`packages` takes 50,000 characters in all.")
    return tuple(text.strip() for text in requirements)


def _identifier(name: str, value: str) -> str:
    if value and not _ID.fullmatch(value):
        raise InvalidRequestError(f"`{name}` must be an id as a result had it, not {value!r:.80}.")
    return value


_BLANK = dict.fromkeys(map(ord, " \t\r\n"))


def _file(given: Mapping[str, str]) -> InputFile:
    name, kinds = given["name"], [key for key in ("text", "data", "uri") if key in given]
    if len(kinds) > 1:
        kinds = [key for key in kinds if given[key].strip().casefold() not in _UNUSED]
    if len(kinds) != 1:
        message = "Each of `files` needs a `name` and one of `text`, `data` (base64) and `uri`."
        raise InvalidRequestError(message)
    content = given[kinds[0]]
    if kinds == ["uri"]:
        return InputFile(name=name, uri=content)
    try:
        if kinds == ["text"]:
            return InputFile(name=name, data=content.encode())
        # Many encoders break base64 into lines.
        return InputFile(name=name, data=base64.b64decode(content.translate(_BLANK), validate=True))
    except UnicodeEncodeError as error:
        message = f"`text` of file {name!r:.80} is no text at character {error.start:,}."
        raise InvalidRequestError(message, remedy="Give bytes as `data`, in base64.") from None
    except ValueError:
        address = content.startswith("data:")
        remedy = "Give a data: address as `uri`." if address else "Give text as `text`."
        message = f"`data` of file {name!r:.80} is not base64."
        raise InvalidRequestError(message, remedy=remedy) from None


def field(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more, "description": description}


_STRINGS = {"type": "string"}
_FILE_SCHEMA = {
    "type": "object",
    "properties": {
        "name": _STRINGS,
        "text": _STRINGS,
        "data": field("string", "Base64."),
        "uri": field("string", "bridge://artifacts/... or data:"),
    },
    "required": ["name"],
    "additionalProperties": False,
}


def input_schema(
    max_timeout: float,
    default_timeout: float,
    *,
    packages: bool = True,
    listed_only: bool = False,
    profiles: Iterable[str] = BUILT_IN_PROFILES,
) -> dict[str, Any]:
    """Return the JSON Schema of the arguments; `packages` are offered only if some are allowed."""
    also = "Servers to load in addition to those that the code names."
    only = "The only servers that the code may use."
    seconds = {"minimum": 1, "maximum": max_timeout, "default": default_timeout}
    properties = {
        "code": field("string", "The Python program. Top-level await works."),
        "servers": field("array", only if listed_only else also, items=_STRINGS),
        "timeout": field("number", "Seconds the program may take, without its tools.", **seconds),
        "mode": field(
            "string",
            "plan: reads happen, calls that change something are held back and listed under an id "
            "for `apply`; what they return can be passed on, not looked at.",
            enum=list(get_args(RunMode)),
            default="run",
        ),
        "apply": field(
            "string", "Id of a plan whose calls are to be made now; nothing else with it."
        ),
        "retry_of": field(
            "string",
            "Id of a run that failed: calls it made already are answered from its journal, not "
            "repeated.",
        ),
        "reads": field(
            "string",
            "With retry_of: whether reads are answered so too, or made again.",
            enum=list(get_args(RetriedReads)),
            default="replay",
        ),
        "session": field(
            "string",
            "Name of a session: variables, imports and files are kept for the next run with the "
            "same one.",
        ),
        "end_session": field(
            "boolean", "End the session after this; without code, only that.", default=False
        ),
        "files": field(
            "array",
            "Files for the working directory. Files that the program writes come back.",
            items=_FILE_SCHEMA,
        ),
        "profile": field(
            "string", "Limits of this run; they only become narrower.", enum=list(profiles)
        ),
    }
    if packages:
        text = 'Packages from the allowed ones, such as "polars==1.*".'
        properties["packages"] = field("array", text, items=_STRINGS)
        text = "With packages, in a session: continue without what it cannot restore."
        properties["lose_state"] = field("boolean", text, default=False)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _parsed_schema() -> dict[str, Any]:
    """Return the schema for parsing; the engine checks its limits and profiles itself."""
    schema = input_schema(1, 1)
    own = schema["properties"]
    kinds = {
        "timeout": {"type": "number", "maximum": 10**9},
        # Looking up thousands of names takes minutes.
        "servers": {**own["servers"], "maxItems": 200},
        "files": {**own["files"], "maxItems": MAX_FILES},
    }
    del own["profile"]
    return {**schema, "properties": {**own, **kinds, "profile": _STRINGS}}


_COUNTS: list[Kind] = [{"server": "string", "tool": "string", "count": "integer", "why": "string"}]

OUTPUT_SCHEMA = record_schema(
    {
        **dict.fromkeys(("reason", "resultRepr", "error"), "string"),
        **dict.fromkeys(("stdout", "stderr", "noFinalNewline", "servers"), ["string"]),
        **dict.fromkeys(("exitCode", "findingsOmitted"), "integer"),
        **dict.fromkeys(("truncated", "whole", "isolation", "usage", "session"), "object"),
        **dict.fromkeys(("shown", "artifacts", "missing"), ["object"]),
        **dict.fromkeys(("replayed", "unused", "refused", "unknown"), _COUNTS),
        "result": "any",
        "timeoutSeconds": "number",
        "findings": [
            {
                **dict.fromkeys(("line", "column"), "integer"),
                "rule": "string",
                "severity": ("deny", "note"),
                "message": "string",
            }
        ],
        "plan": {
            "id": "string",
            "seconds": "number",
            "calls": [
                {
                    "number": "integer",
                    "arguments": "object",
                    "unlisted": ["string"],
                    **dict.fromkeys(("server", "tool", "effect"), "string"),
                    **dict.fromkeys(("action", "rule", "digest"), "string"),
                }
            ],
            "callsOmitted": "integer",
            **dict.fromkeys(("stopped", "stale"), "string"),
        },
        "receipt": {
            "calls": "object",
            **dict.fromkeys(("replayed", "held", "refused", "unknown"), "integer"),
            **dict.fromkeys(("resultBytes", "returnedBytes", "tokensKept"), "integer"),
            **dict.fromkeys(("codeMs", "callsMs", "waitingMs"), "integer"),
            "audit": "string",
            **dict.fromkeys(("masked", "unsent"), ["string"]),
        },
    }
)
"""The JSON Schema of a result's record, which omits empty fields."""
