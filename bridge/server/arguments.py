"""The arguments of `run_python` and its record: schemas, and the way from JSON to a request. Pure.

The SDK's low-level server passes arguments unchecked, and a schema validator's messages do not tell
a model what to write instead, so the few rules are checked here in words.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from bridge.errors import InvalidRequestError
from bridge.guest.schema.validation import convert
from bridge.model import ApplyRequest, InputFile, Json, RetriedReads, RunMode, RunRequest
from bridge.runs.input_files import MAX_FILES
from bridge.server.content import Kind, record_schema
from bridge.settings.profiles import BUILT_IN

_KNOWN = (
    *("code", "servers", "timeout", "mode", "apply", "retry_of", "reads"),
    *("session", "end_session", "files", "packages", "lose_state", "profile"),
)

_ID = re.compile(r"[0-9a-f]{8,64}")

_UNUSED = frozenset(("", "null", "none", "undefined"))
"""Texts that clients and models write for an argument that is not used."""

_UNSAID: Mapping[str, Json] = {
    "mode": "run",
    "reads": "replay",
    "end_session": False,
    "lose_state": False,
}
"""What arguments are that were left out."""

MAX_NUMBER = 10**12
"""Of seconds; more than any limit."""

MAX_SERVERS = 200
"""Names in one request; more than anybody configures."""


def parse_request(arguments: Mapping[str, Json] | None) -> RunRequest | ApplyRequest:
    """Return the request that the arguments make: to run a program, or to apply a plan."""
    given = convert_arguments(arguments, input_schema(1, 1))
    refuse_unknown("run_python", given, _KNOWN)
    if given.get("apply") is not None:
        return _apply(given)
    retry_of = _identifier("retry_of", given.get("retry_of"))
    if given.get("reads") not in (None, _UNSAID["reads"]) and not retry_of:
        raise InvalidRequestError("`reads` says how a retry is answered, and needs `retry_of`.")
    session, ends = parse_session(given)
    servers = given.get("servers")
    return RunRequest(
        code="" if ends and not given.get("code") else _code(given.get("code")),
        session=session,
        end_session=ends,
        files=parse_files(given.get("files")),
        packages=parse_packages(given.get("packages")),
        loses_state=_flag("lose_state", given.get("lose_state")),
        profile=str(given.get("profile") or ""),
        servers=None if servers is None else _servers(servers),
        timeout=parse_timeout(given.get("timeout")),
        mode=_choice("mode", given.get("mode"), get_args(RunMode)),
        retry_of=retry_of,
        reads=_choice("reads", given.get("reads"), get_args(RetriedReads)),
    )


def convert_arguments(
    arguments: Mapping[str, Json] | None,
    schema: Mapping[str, Any],
    texts: Iterable[str] = ("code",),
) -> dict[str, Json]:
    """Return a call's arguments as their schema declares them, where the meaning is certain.

    A JSON text of the declared type is that value, one item for a list is a list of it, and a
    blank or "null" is an argument that was left out.

    Args:
        texts: Names of the arguments that may be any text.
    """
    given = {}
    for name, value in (arguments or {}).items():
        own = schema["properties"].get(name, {})
        if name not in texts and isinstance(value, str):
            if value.strip().casefold() in _UNUSED:
                continue
            value = convert(value, own, schema)
        item = own.get("items", {}).get("type")
        if isinstance(value, dict if item == "object" else str) and item is not None:
            value = [value]
        given[name] = value
    return given


def _apply(given: Mapping[str, Json]) -> ApplyRequest:
    others = sorted(
        name
        for name, value in given.items()
        if name != "apply" and value not in (None, "", []) and value != _UNSAID.get(name)
    )
    if others:
        raise InvalidRequestError(
            f"`apply` performs a plan exactly as it was shown, and takes nothing with it: leave "
            f"out {', '.join(others)}."
        )
    return ApplyRequest(plan_id=_identifier("apply", given["apply"]))


def _identifier(name: str, value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequestError(f"`{name}` must be an id as a result had it, not {value!r:.80}.")
    return value


def _choice(name: str, value: Json, choices: Sequence[str]) -> Any:
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
        raise InvalidRequestError("run_python needs `code`: a string holding a Python program.")
    if not isinstance(value, str):
        raise InvalidRequestError(f"`code` must be a string, not {kind_of(value)}.")
    if not value.strip():
        raise InvalidRequestError("`code` is empty; pass the Python program to run.")
    return value


def _servers(value: Json) -> tuple[str, ...]:
    names = _listed("servers", value, str, 'server names such as ["git", "time"]')
    if len(names) > MAX_SERVERS:
        message = f"`servers` names {len(names)} servers; at most {MAX_SERVERS} are taken."
        raise InvalidRequestError(message)
    return tuple(names)


def _listed(name: str, value: Json, of: type, example: str) -> list[Any]:
    """Return a list of what has one type; an empty one for nothing."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, of) for item in value):
        message = f"`{name}` must be a list of {example}, not {kind_of(value)}; or leave it out."
        raise InvalidRequestError(message)
    return value


def parse_timeout(value: Json) -> float | None:
    """Return seconds; None for none."""
    if value is None:
        return None
    # Before it is one for the machine: there are whole numbers that no float can hold.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -MAX_NUMBER < value < MAX_NUMBER:
        raise InvalidRequestError(f"`timeout` must be a number of seconds, not {kind_of(value)}.")
    return float(value)


MAX_DATA_CHARS = 48 * 1024 * 1024
"""Of base64: what 32 MiB take, with ends of lines. Decoding more would only hold everybody up."""

MAX_NAME_CHARS = 1024
"""Of a file. Where it is put, less may be allowed."""

MAX_PACKAGES = 100
MAX_PACKAGE_CHARS = 500
"""Of one requirement; more is a mistake."""

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_session(given: Mapping[str, Json]) -> tuple[str, bool]:
    """Return the session's name or id, empty for none, and whether it is to end."""
    session, ends = given.get("session"), _flag("end_session", given.get("end_session"))
    if session is None:
        if ends:
            raise InvalidRequestError("`end_session` needs `session`: the session to end.")
        return "", False
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise InvalidRequestError(
            "`session` must be a name of up to 64 letters, digits, dots, dashes and underscores, "
            f'such as "analysis", not {session!r:.80}.'
        )
    return session, ends


def _flag(name: str, value: Json) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"`{name}` must be true or false.")
    return bool(value)


def parse_files(value: Json) -> tuple[InputFile, ...]:
    """Return the files. Whether they can be taken, is for the engine to see."""
    files = _listed("files", value, dict, 'files such as [{"name": "data.csv", "text": "a,b"}]')
    if len(files) > MAX_FILES:
        message = f"There are {len(files):,} files; a run takes {MAX_FILES}."
        raise InvalidRequestError(message, remedy="Send an archive, and unpack it in the program.")
    return tuple(_file(item) for item in files)


_CONTENTS = ("text", "data", "uri")
_BLANK = dict.fromkeys(map(ord, " \t\r\n"))


def _file(given: Mapping[str, Json]) -> InputFile:
    unknown = sorted(given.keys() - {"name", *_CONTENTS})
    if unknown:
        message = f"A file has no {unknown[0]!r:.80}: give `name`, and `text`, `data` or `uri`."
        raise InvalidRequestError(message)
    name, kinds = given.get("name"), [key for key in _CONTENTS if given.get(key) is not None]
    if len(kinds) > 1:
        kinds = [key for key in kinds if str(given[key]).strip().casefold() not in _UNUSED]
    if isinstance(name, str) and len(kinds) == 1 and not isinstance(given[kinds[0]], str):
        found = kind_of(given[kinds[0]])
        message = f"`{kinds[0]}` of file {name!r:.80} must be a string, not {found}."
        remedy = "Give JSON as text, as json.dumps writes it." if kinds == ["text"] else None
        raise InvalidRequestError(message, remedy=remedy)
    if not isinstance(name, str) or len(kinds) != 1:
        message = "Each of `files` needs a `name` and one of `text`, `data` (base64) and `uri`."
        raise InvalidRequestError(message)
    if len(name) > MAX_NAME_CHARS:
        message = f"The name of file {name!r:.80} has {len(name):,} characters; "
        message += f"the limit is {MAX_NAME_CHARS:,}."
        raise InvalidRequestError(message)
    content: str = given[kinds[0]]
    if kinds == ["uri"]:
        return InputFile(name=name, uri=content)
    if kinds == ["text"]:
        return InputFile(name=name, data=_encoded(name, content))
    if len(content) > MAX_DATA_CHARS:
        message = f"`data` of file {name!r:.80} is more than a run takes: {len(content):,} "
        remedy = "Have the program fetch it with tool calls."
        raise InvalidRequestError(f"{message}characters.", remedy=remedy)
    try:
        # Many tools break it into lines.
        return InputFile(name=name, data=base64.b64decode(content.translate(_BLANK), validate=True))
    except ValueError:
        address = content.startswith("data:")
        remedy = "Give a data: address as `uri`." if address else "Give text as `text`."
        message = f"`data` of file {name!r:.80} is not base64."
        raise InvalidRequestError(message, remedy=remedy) from None


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"`text` of file {name!r:.80} is no text at character {error.start:,}."
        raise InvalidRequestError(message, remedy="Give bytes as `data`, in base64.") from None


def parse_packages(value: Json) -> tuple[str, ...]:
    texts = _listed("packages", value, str, 'requirements such as ["polars==1.*"]')
    if len(texts) > MAX_PACKAGES or any(len(text) > MAX_PACKAGE_CHARS for text in texts):
        message = f"`packages` takes {MAX_PACKAGES} requirements of {MAX_PACKAGE_CHARS} characters."
        raise InvalidRequestError(message)
    return tuple(text.strip() for text in texts)


def kind_of(value: Json) -> str:
    """Return what a value is, in words."""
    if isinstance(value, list):
        odd = next((item for item in value if not isinstance(item, str)), None)
        return "a list" if odd is None else f"a list with {kind_of(odd)} in it"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"the number {value!r:.40}")


def field(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more, "description": description}


_STRINGS = {"type": "string"}
_SERVERS = (
    "Servers to load besides those that the code names.",
    "The only servers that the code may use.",
)
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
    profiles: Iterable[str] = BUILT_IN,
) -> dict[str, Any]:
    """Return the JSON Schema of the tool's arguments, `packages` only where some are allowed."""
    seconds = {"minimum": 1, "maximum": max_timeout, "default": default_timeout}
    properties = {
        "code": field("string", "The Python program. Top-level await works."),
        "servers": field("array", _SERVERS[listed_only], items=_STRINGS),
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
        text = "With packages, in a session: go on without what it cannot restore."
        properties["lose_state"] = field("boolean", text, default=False)
    return {"type": "object", "properties": properties, "additionalProperties": False}


_COUNTS: list[Kind] = [{"server": "string", "tool": "string", "count": "integer", "why": "string"}]

_FINDING: dict[str, Kind] = {
    "line": "integer",
    "column": "integer",
    "rule": "string",
    "severity": ("deny", "note"),
    "message": "string",
}

_HELD_CALL: dict[str, Kind] = {
    "number": "integer",
    "arguments": "object",
    "unlisted": ["string"],
    **dict.fromkeys(("server", "tool", "effect", "action", "rule", "digest"), "string"),
}

_PLAN: dict[str, Kind] = {
    "id": "string",
    "seconds": "number",
    "calls": [_HELD_CALL],
    "callsOmitted": "integer",
    "stopped": "string",
    "stale": "string",
}

_RECEIPT: dict[str, Kind] = {
    "calls": "object",
    **dict.fromkeys(("replayed", "held", "refused", "unknown", "resultBytes"), "integer"),
    **dict.fromkeys(("returnedBytes", "tokensKept", "codeMs", "callsMs", "waitingMs"), "integer"),
    "audit": "string",
    "masked": ["string"],
    "unsent": ["string"],
}

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
        "findings": [_FINDING],
        "plan": _PLAN,
        "receipt": _RECEIPT,
    }
)
"""What a result's record looks like; fields that would be empty are left out."""
