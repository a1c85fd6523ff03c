"""The arguments of `run_python`: their schema, and the way from JSON to a `RunRequest`. Pure.

The SDK's low-level server passes arguments unchecked, and a schema validator's messages do not tell
a model what to write instead, so the few rules are checked here in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bridge.errors import InvalidRequestError
from bridge.model import ApplyRequest, Json, RunRequest
from bridge.server.arguments_kept import kind_of, parse_files, parse_packages, parse_session

_KNOWN = (
    *("code", "servers", "timeout", "mode", "apply", "retry_of", "reads"),
    *("session", "end_session", "files", "packages"),
)

_ID = re.compile(r"[0-9a-f]{8,64}")

_BLANK_IS_NONE = frozenset(("session", "apply", "retry_of", "mode", "reads"))
_UNSAID: Mapping[str, Json] = {"mode": "run", "reads": "replay", "end_session": False}
"""What arguments are that were left out."""

MAX_NUMBER = 10**12
"""Of seconds; more than any limit."""

MAX_SERVERS = 200
"""Names in one request; more than anybody configures."""


def parse_request(arguments: Mapping[str, Json] | None) -> RunRequest | ApplyRequest:
    """Return the request that the arguments make: to run a program, or to apply a plan.

    Raises:
        InvalidRequestError: They are unusable; the text says what to pass instead.
    """
    given = _without_blanks(arguments or {})
    refuse_unknown("run_python", given, _KNOWN)
    if given.get("apply") is not None:
        return _apply(given)
    retry_of = _identifier("retry_of", given.get("retry_of"))
    if given.get("reads") not in (None, _UNSAID["reads"]) and not retry_of:
        message = "`reads` says how a retry is answered, and needs `retry_of`."
        raise InvalidRequestError(message)
    session, ends = parse_session(given)
    return RunRequest(
        code="" if ends and not given.get("code") else _code(given.get("code")),
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


def _without_blanks(given: Mapping[str, Json]) -> dict[str, Json]:
    """Leave out what says nothing: some models fill in every argument there is."""
    return {
        name: value for name, value in given.items() if value != "" or name not in _BLANK_IS_NONE
    }


def _apply(given: Mapping[str, Json]) -> ApplyRequest:
    others = sorted(
        name
        for name, value in given.items()
        if name != "apply" and value not in (None, "", []) and value != _UNSAID.get(name)
    )
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
        message = f"`code` must be a string, not {kind_of(value)}."
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
            f'["git", "time"], not {kind_of(value)}; or leave it out.'
        )
        raise InvalidRequestError(message)
    if len(value) > MAX_SERVERS:
        message = f"`servers` names {len(value)} servers; at most {MAX_SERVERS} are taken."
        raise InvalidRequestError(message)
    return tuple(value)


def _timeout(value: Json) -> float | None:
    if value is None:
        return None
    # Before it is one for the machine: there are whole numbers that no float can hold.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -MAX_NUMBER < value < MAX_NUMBER:
        message = f"`timeout` must be a number of seconds, not {kind_of(value)}."
        raise InvalidRequestError(message)
    return float(value)
