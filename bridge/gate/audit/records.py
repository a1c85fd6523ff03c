"""The audit log's records, and the lines that they become. Pure.

A line is the record as canonical JSON (ASCII, keys sorted, no spaces) with one more member at the
end: `"hash"`, the SHA-256 of the line without it. So a line is checked as the bytes that it is, and
not one of them can change unnoticed. docs/reference/audit.md describes the fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

from bridge.gate.approval import Approval
from bridge.gate.canonical import canonical, digest
from bridge.model import Json

Record = dict[str, Json]

CallKind = Literal["call", "refused", "held", "replayed"]
RunKind = Literal["run", "apply", "command", "end", "outcome", "found", "question", "plan", "skill"]
Kind = CallKind | RunKind | Literal["start", "approved", "policy", "retention"]
"""What a record is about. The last one is about the log itself."""

CALL_KINDS = frozenset(get_args(CallKind))
"""Kinds of records that each call of a program has one of."""

MAX_RECORD_BYTES = 32 * 1024  # Of a record as JSON: a program sends arguments of any size.

_LINE = re.compile(rb'(.+),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)


class Link(NamedTuple):
    """A record's number in its file, from 1, and its hash."""

    seq: int
    hash: str


class RecordLine(NamedTuple):
    """A line that is what it was when it was written; `prev` is the hash of the one before."""

    link: Link
    prev: str
    record: Mapping[str, Json]


def before_first(file: str) -> Link:
    """Return what the first record of a file follows: its name, so that it can get no other."""
    return Link(0, hashlib.sha256(file.encode()).hexdigest())


def linked(record: Mapping[str, Json], after: Link, time: str) -> tuple[bytes, Link]:
    """Return a record's line, cut where it is too large, and its place in its file's chain."""
    chain = {"seq": after.seq + 1, "prev": after.hash, "time": time}
    body = _text({**record, **chain})
    if not 0 < len(body) <= MAX_RECORD_BYTES:
        body = canonical({**bounded(record), **chain})
    found = hashlib.sha256(body.encode("ascii")).hexdigest()
    return f'{body[:-1]},"hash":"{found}"}}\n'.encode("ascii"), Link(after.seq + 1, found)


def read_line(line: bytes) -> RecordLine | None:
    """Return what a line (with its newline) says; None if it is not as it was written."""
    found = _LINE.fullmatch(line)
    if found is None or hashlib.sha256(found[1] + b"}").hexdigest().encode("ascii") != found[2]:
        return None
    record = parsed(line)
    seq, prev = record.get("seq"), record.get("prev")
    if type(seq) is not int or not isinstance(prev, str):
        return None
    return RecordLine(Link(seq, found[2].decode("ascii")), prev, record)


def parsed(line: bytes) -> Mapping[str, Json]:
    """Return the record in a line, unchecked; empty if it is none."""
    with suppress(ValueError, RecursionError):
        record: Json = json.loads(line)
        if isinstance(record, dict):
            return record
    return {}


def approval_fields(approval: Approval) -> Record:
    facts = {"holds": approval.holds, "earlier": approval.earlier, "note": approval.note}
    return without_empty({**facts, "waitedMs": approval.waited_ms or None})


def without_empty(facts: Mapping[str, Json]) -> Record:
    """Return facts without what is empty, which says nothing and would stand in every record."""
    return {
        name: value
        for name, value in facts.items()
        if value is not None and value != "" and value != []
    }


def when(seconds: float) -> str:
    """Return a time as records have it: UTC, in milliseconds."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def bounded(record: Mapping[str, Json], most: int = MAX_RECORD_BYTES) -> Mapping[str, Json]:
    """Return a record, cut if it has more bytes as JSON than it may, saying in "cut" what was.

    That is a field's name to the digest of all of it as canonical JSON, of which only the beginning
    is kept, as a text.
    """
    texts = {name: _text(value) for name, value in record.items()}
    if sum(map(len, texts.values())) <= most * 7 // 8 and all(texts.values()):
        return record
    found, cut = dict(record), dict(record.get("cut", {}))
    room = most // 16  # No record has more fields.
    for name, text in texts.items():
        if name != "cut" and not 0 < len(text) <= room:
            found[name] = f"{text[: room // 2]}… ({len(text):,} characters of JSON)"
            cut.setdefault(name, digest(text.encode("ascii")) if text else "")
    return {**found, "cut": cut}


def _text(value: Json) -> str:
    """Return a value as canonical JSON; empty if it is nested too deeply."""
    with suppress(RecursionError):
        return canonical(value)
    return ""
