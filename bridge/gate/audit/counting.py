"""What the audit log comes to: calls counted by what they have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bridge.gate.audit.records import CALL_KINDS
from bridge.model import Json

By = Literal["day", "server", "tool", "decision", "outcome"]

MAX_GROUPS = 10_000
"""Different groups; what is beyond is counted together."""

MAX_OPEN = 100_000
"""Calls whose outcome has not been read yet; of more, the oldest are taken to have none."""

OTHERS = "others"


@dataclass(kw_only=True)
class Count:
    """What the calls of one group came to.

    Attributes:
        made: Calls that went out.
        ok, failed, unknown: Of those: answered, answered or refused with an error or never sent,
            and without anybody knowing.
        refused, held, replayed: Calls that did not go out.
        size: Bytes of results.
        ms: Time that the calls took, in all.
    """

    made: int = 0
    ok: int = 0
    failed: int = 0
    unknown: int = 0
    refused: int = 0
    held: int = 0
    replayed: int = 0
    size: int = 0
    ms: float = 0.0


@dataclass(kw_only=True)
class Counting:
    """Counts calls from records in their order.

    Attributes:
        by: What calls of one group have in common.
        runs: How many began.
    """

    by: Sequence[By]
    runs: int = 0
    records: int = 0
    _counts: dict[tuple[str, ...], Count] = field(default_factory=dict)
    _open: dict[tuple[Json, Json], Mapping[str, Json]] = field(default_factory=dict)

    def feed(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Count more records."""
        for record in records:
            self.records += 1
            kind = record.get("kind")
            if kind in ("run", "apply"):
                self.runs += 1
            elif kind == "call":
                if len(self._open) >= MAX_OPEN:
                    self._settle(next(iter(self._open)), {})
                self._open[_key(record)] = record
            elif kind == "outcome":
                self._settle(_key(record), record)
            elif kind in CALL_KINDS:
                count = self._count(record, str(kind))
                times = record.get("times", 1)
                setattr(count, str(kind), getattr(count, str(kind)) + _number(times))

    def finish(self) -> list[tuple[tuple[str, ...], Count]]:
        """Return the groups, sorted by what they have in common."""
        while self._open:
            self._settle(next(iter(self._open)), {})
        return sorted(self._counts.items())

    def _settle(self, key: tuple[Json, Json], outcome: Mapping[str, Json]) -> None:
        call = self._open.pop(key, None)
        if call is None:
            return
        said = str(outcome.get("outcome", "unknown"))
        count = self._count(call, said)
        count.made += 1
        count.size += _number(outcome.get("bytes"))
        count.ms += _number(outcome.get("ms"))
        if said == "ok":
            count.ok += 1
        elif said == "unknown":
            count.unknown += 1
        else:
            count.failed += 1

    def _count(self, call: Mapping[str, Json], outcome: str) -> Count:
        said = {
            "day": str(call.get("time", ""))[:10],
            "server": str(call.get("server", "")),
            "tool": f"{call.get('server', '')}.{call.get('tool', '')}",
            "decision": f"{call.get('decision', '-')}: {call.get('rule', '-')}",
            "outcome": outcome,
        }
        key = tuple(said[name] for name in self.by)
        if key not in self._counts and len(self._counts) >= MAX_GROUPS:
            key = tuple(OTHERS for _ in self.by)
        return self._counts.setdefault(key, Count())


def _key(record: Mapping[str, Json]) -> tuple[Json, Json]:
    return str(record.get("run", "")), str(record.get("call", ""))


def _number(value: Json) -> Json:
    return value if type(value) in (int, float) else 0
