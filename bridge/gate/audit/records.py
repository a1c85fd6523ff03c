"""The audit log's records. Pure.

Owns which records there are, the names of their fields (docs/audit.md describes them all), and the
bound on their size. Who and when, number and hashes are added where they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from bridge.gate.approval import Approval
from bridge.gate.canonical import arguments_digest, canonical, digest
from bridge.gate.decision import CallFacts, Decision
from bridge.model import Json, ServerSpec
from bridge.settings.policy import PolicySpec

Record = dict[str, Json]

Kind = Literal[
    "run",
    "call",
    "outcome",
    "refused",
    "held",
    "replayed",
    "found",
    "question",
    "plan",
    "apply",
    "command",
    "start",
    "approved",
    "end",
    "policy",
    "skill",
    "retention",
    "torn",
    "resumed",
    "lost",
]
"""What a record is about. The last four are about the log itself."""

CALL_KINDS = frozenset({"call", "refused", "held", "replayed"})
"""Records of which there is one for each call that a program wanted."""

MAX_RECORD_BYTES = 32 * 1024
"""Of a record as JSON. A call's arguments are rarely a tenth of it."""

LONG_TEXT = 1000
"""Characters of one text that are kept in a record that would be too large."""

LONG_LIST = 100
"""Items of one list or object, likewise."""

SHORT_TEXT = 100
"""Characters that are kept of a field that is too large even so."""

MAX_FIELD_BYTES = 1200
"""Of such a field as JSON; a record has fewer than twenty fields."""

MAX_DEPTH = 20
"""Levels of a value that are kept of a record that would be too large."""


def call_record(
    kind: Kind,
    run: str,
    number: int,
    call: CallFacts,
    arguments: Json,
    decision: Decision | None = None,
) -> Record:
    """Return the record of a call: who wanted what, and what was decided.

    Args:
        arguments: As they may be written down; the digest is of what they are.
    """
    record: Record = {
        "kind": kind,
        "run": run,
        "call": number,
        "server": call.server,
        "tool": call.tool,
        "arguments": arguments,
    }
    if call.arguments:
        record["digest"] = arguments_digest(call.arguments)
    if decision is not None:
        record["decision"] = decision.action
        record["rule"] = decision.rule
        record["effect"] = decision.effect
        if decision.reason:
            record["reason"] = decision.reason
        if decision.led:
            record["led"] = list(decision.led)
    return record


def start_record(
    spec: ServerSpec,
    decision: Decision,
    run: str = "",
    *,
    approval: Approval | None = None,
    why: str = "",
) -> Record:
    """Return the record of a server's start, or of one that does not happen.

    Args:
        run: That needs it; empty for a listing, a search or a person's command.
        why: The code of the error, of one that does not happen.
    """
    record: Record = {
        "kind": "start",
        "server": spec.name,
        "definition": spec.definition,
        "transport": spec.transport,
        "decision": decision.action,
        "rule": decision.rule,
    }
    if run:
        record["run"] = run
    if decision.reason:
        record["reason"] = decision.reason
    if approval is not None:
        record["approval"] = approval_fields(approval)
    if why:
        record["why"] = why
    return record


def approved_record(
    spec: ServerSpec, how: Literal["client", "terminal"], holds: str, run: str = ""
) -> Record:
    """Return the record of a person's yes to a server as it is defined.

    Args:
        how: Where they were asked.
        run: In which they were; empty for none.
    """
    record: Record = {
        "kind": "approved",
        "server": spec.name,
        "definition": spec.definition,
        "file": spec.source.path,
        "how": how,
        "holds": holds,
    }
    return {**record, "run": run} if run else record


def approval_fields(approval: Approval) -> Record:
    """Return what is recorded of a person's yes."""
    record: Record = {"holds": approval.holds, "earlier": approval.earlier}
    if approval.note:
        record["note"] = approval.note
    return record


def policy_digest(spec: PolicySpec) -> str:
    """Return what changes when a policy means something else; empty if there is none."""
    if not spec.present:
        return ""
    return digest(canonical(_plain(spec)).encode("ascii"))


def _plain(value: object) -> Json:
    """Return a value of the settings as JSON that is the same in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            # Where a rule stands is no part of what it means.
            if field.name not in ("path", "place") or type(getattr(value, field.name)) is tuple
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def when(seconds: float) -> str:
    """Return a time as records have it: UTC, in milliseconds."""
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def fitted(record: Mapping[str, Json]) -> Record:
    """Return a record that is not too large, and says what of it was cut.

    What is cut is in "cut": name of the field to the digest of all of it as canonical JSON.
    """
    found = dict(record)
    before = record.get("cut")
    cut: dict[str, str] = dict(before) if isinstance(before, Mapping) else {}
    for name, value in record.items():
        try:
            text = canonical(value)
        except RecursionError:
            found[name], cut[name] = "nested too deeply to be recorded", ""
            continue
        if len(text) <= MAX_FIELD_BYTES:
            continue
        whole = digest(text.encode("ascii"))
        shorter = _shortened(value)
        if shorter != value:
            found[name], cut[name] = shorter, whole
    if len(canonical(found)) > MAX_RECORD_BYTES:
        for name, value in record.items():
            text = "" if name in cut and not cut[name] else canonical(value)
            if len(text) > MAX_FIELD_BYTES:
                found[name] = f"{text[:SHORT_TEXT]}…"
                cut[name] = digest(text.encode("ascii"))
    return {**found, "cut": cut} if cut else found


def _shortened(value: Json, depth: int = 0) -> Json:
    if isinstance(value, str):
        return value if len(value) <= LONG_TEXT else _cut_text(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, list):
        items = [_shortened(item, depth + 1) for item in value[:LONG_LIST]]
        return items if len(value) <= LONG_LIST else [*items, f"… {len(value) - LONG_LIST} more"]
    kept = {
        _shortened(key): _shortened(item, depth + 1)
        for key, item in list(value.items())[:LONG_LIST]
    }
    if len(value) > LONG_LIST:
        kept["…"] = f"{len(value) - LONG_LIST} more"
    return kept


def _cut_text(text: str) -> str:
    whole = digest(text.encode("utf-8", "surrogatepass"))
    return f"{text[:LONG_TEXT]}… ({len(text)} characters, {whole})"
