"""Which refused calls of a run are recorded one by one, and which are counted. Pure.

Owns the bounds: a program that asks ten thousand times for what it may not have must not fill the
log, and must not hide among its refusals what else it asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.gate.audit.records import SHORT_TEXT, Record
from bridge.gate.canonical import canonical, digest
from bridge.gate.decision import CallFacts, Decision

WHOLE_RECORDS = 10
"""Of a kind that are recorded one by one; equal ones after them are counted. Each time as many were
counted as there were before, a record says so, and another at the run's end."""

MAX_KINDS = 50
"""Kinds that are counted apart; the rest is counted together."""

REFUSAL_BYTES = 256 * 1024
"""Of records about refused calls in one run, but for what its end adds: a count for each kind."""

ARGUMENT_BYTES = 2 * 1024
"""Of a refused call's arguments as JSON; the record has the digest of what is longer."""


class RefusedKind(NamedTuple):
    """What refused calls have in common if they are equal."""

    server: str
    tool: str
    decision: str
    rule: str
    why: str


OTHERS = RefusedKind("", "", "", "others", "")
"""What calls beyond the bound on kinds are counted as."""


@dataclass(frozen=True, kw_only=True)
class _Count:
    """Of one kind: all of them, those that no record has yet, and the last one's number."""

    total: int = 0
    pending: int = 0
    last: int = 0


def refused_kind(call: CallFacts, decision: Decision, why: str) -> RefusedKind:
    """Return the kind of a refused call, its names cut."""
    parts = (call.server, call.tool, decision.action, decision.rule, why)
    return RefusedKind(*(_short(part) for part in parts))


class Refusals:
    """Counts the refused calls of one run.

    Attributes:
        total: How many there were.
    """

    def __init__(self) -> None:
        self.total = 0
        self._room = REFUSAL_BYTES
        self._counts: dict[RefusedKind, _Count] = {}

    def count(self, kind: RefusedKind, number: int, *, whole: bool = True) -> bool:
        """Count a call; tell whether it is to be recorded by itself.

        Args:
            whole: Whether it may be.
        """
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = OTHERS
        found = self._counts.get(kind, _Count())
        whole = whole and self._room > 0 and kind != OTHERS and found.total < WHOLE_RECORDS
        pending = found.pending + (not whole)
        self._counts[kind] = _Count(total=found.total + 1, pending=pending, last=number)
        self.total += 1
        return whole

    def spend(self, record: Record) -> None:
        """Count what a record takes."""
        self._room -= len(canonical(record))

    def due(self, kind: RefusedKind) -> Record | None:
        """Return the record of what was counted of a kind, if it is time for one."""
        kind = kind if kind in self._counts else OTHERS
        found = self._counts[kind]
        if self._room <= 0 or found.pending < max(WHOLE_RECORDS, found.total - found.pending):
            return None
        record = self._summary(kind)
        self.spend(record)
        return record

    def rest(self) -> list[Record]:
        """Return the records of all that was counted and is in no record yet."""
        return [self._summary(kind) for kind, found in self._counts.items() if found.pending]

    def _summary(self, kind: RefusedKind) -> Record:
        found = self._counts[kind]
        self._counts[kind] = replace(found, pending=0)
        record: Record = {"kind": "refused", "call": found.last, "times": found.pending}
        record |= {name: text for name, text in kind._asdict().items() if text}
        return record


def capped(record: Record) -> Record:
    """Return the record of a refused call with no more than it may take, saying what was cut."""
    found = {
        name: _short(value) if isinstance(value, str) else value for name, value in record.items()
    }
    if isinstance(found.get("led"), list):
        found["led"] = [_short(str(each)) for each in found["led"][:WHOLE_RECORDS]]
    try:
        text = canonical(record["arguments"])
    except RecursionError:
        # Cut by whoever writes it.
        return found
    if len(text) > ARGUMENT_BYTES:
        cut = record.get("cut")
        found["cut"] = {"arguments": digest(text.encode("ascii")), **(cut or {})}
        found["arguments"] = f"{text[:ARGUMENT_BYTES]}…"
    return found


def _short(text: str) -> str:
    return text if len(text) <= SHORT_TEXT else f"{text[:SHORT_TEXT]}…"
