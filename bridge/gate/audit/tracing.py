"""What the audit log knows of one run or one plan.

Owns the search for it, and what it comes to: which calls went out, and what became of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.gate.audit.reading import opened, records
from bridge.gate.audit.records import CALL_KINDS
from bridge.model import Json

SEARCH_FILES = 14
"""Of the newest files that are looked through for a run: a fortnight's, where a day has one."""

SEARCH_BYTES = 512 * 1024 * 1024
"""Of those files: what takes about a second."""

MAX_SHOWN = 100_000
"""Records about one run: two for each call that it may make, and more."""

MAX_TRACED_CALLS = 1000
"""Calls of one run that are told one by one."""


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """A call as the log knows it.

    Attributes:
        kind: "call" if it went out, else "refused", "held" or "replayed".
        outcome: "unknown" too for one that went out and has no outcome on record.
        times: More than one where refused calls were counted; `number` is the last one's.
    """

    number: int
    server: str
    tool: str
    kind: str = "call"
    outcome: str = "unknown"
    times: int = 1

    def __str__(self) -> str:
        said = self.outcome if self.kind == "call" else self.kind
        often = f" {self.times:,} times" if self.times != 1 else ""
        return f"{self.number}. {self.server}.{self.tool}: {said}{often}"


@dataclass(frozen=True, kw_only=True)
class RunTrace:
    """What the log knows of a run.

    Attributes:
        began: Its first record; empty if that is not in the files that were read.
        ended: Its last one; empty if it has none: it is under way, or was cut off.
        calls_omitted: How many more calls there were.
    """

    run_id: str
    began: Mapping[str, Json]
    ended: Mapping[str, Json]
    calls: tuple[TracedCall, ...] = ()
    calls_omitted: int = 0

    @property
    def unknown(self) -> tuple[TracedCall, ...]:
        """Calls that went out, and nobody knows what became of them."""
        return tuple(c for c in self.calls if (c.kind, c.outcome) == ("call", "unknown"))


@dataclass(frozen=True, kw_only=True)
class PlanTrace:
    """What the log knows of a plan.

    Attributes:
        made: The record of its making; empty if that is not in the files that were read.
        applied: The run in which it was applied, or begun to be; None if it never was.
    """

    plan_id: str
    made: Mapping[str, Json]
    applied: RunTrace | None = None


def find_run(directory: Path, *, run_id: str, owner: str | None = None) -> RunTrace | None:
    """Return what the newest files know of a run; None if nothing, or if it is another owner's.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    found = _find(directory, "run", run_id, ("run", "apply"))
    return _trace(run_id, found, owner)


def find_plan(directory: Path, *, plan_id: str, owner: str | None = None) -> PlanTrace | None:
    """Return what the newest files know of a plan; None if nothing, or if it is another owner's.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    about = _find(directory, "plan", plan_id, ("plan",))
    made = next((r for r in about if r.get("kind") == "plan"), {})
    applied = next((r for r in reversed(about) if r.get("kind") == "apply"), None)
    known = made or applied
    if known is None or (owner is not None and known.get("owner", "") != owner):
        return None
    trace = None
    if applied is not None:
        trace = find_run(directory, run_id=str(applied.get("run", "")))
    return PlanTrace(plan_id=plan_id, made=made, applied=trace)


def _find(
    directory: Path, field: str, value: str, first: Sequence[str]
) -> list[Mapping[str, Json]]:
    """Return the records with a value, looking in the newest files first."""
    needle = f'"{field}":{json.dumps(value)}'.encode("ascii")
    found: list[Mapping[str, Json]] = []
    room = SEARCH_BYTES
    with opened(directory) as (folder, files):
        for file in list(reversed(files))[:SEARCH_FILES]:
            room -= file.size
            if room < 0:
                break
            here = [
                at.record for at in records(folder, file, needle) if at.record.get(field) == value
            ]
            found = here + found
            if any(record.get("kind") in first for record in here):
                break
    return found


def _trace(
    run_id: str, found: Sequence[Mapping[str, Json]], owner: str | None = None
) -> RunTrace | None:
    began = next((r for r in found if r.get("kind") in ("run", "apply")), {})
    if not found or (owner is not None and began.get("owner", "") != owner):
        return None
    if owner is not None and not began:
        return None
    outcomes = {r.get("call"): str(r.get("outcome")) for r in found if r.get("kind") == "outcome"}
    wanted = [r for r in found if r.get("kind") in CALL_KINDS]
    calls = tuple(
        TracedCall(
            number=r.get("call", 0),
            server=str(r.get("server")),
            tool=str(r.get("tool")),
            kind=str(r.get("kind")),
            outcome=outcomes.get(r.get("call"), "unknown"),
            times=r.get("times", 1),
        )
        for r in wanted[:MAX_TRACED_CALLS]
    )
    return RunTrace(
        run_id=run_id,
        began=began,
        ended=next((r for r in reversed(found) if r.get("kind") == "end"), {}),
        calls=calls,
        calls_omitted=sum(r.get("times", 1) for r in wanted[MAX_TRACED_CALLS:]),
    )


def about(directory: Path, wanted: str) -> list[Mapping[str, Json]]:
    """Return all records of runs and plans that begin so, and of the runs that applied the plans.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    found = _about(directory, wanted.encode("ascii"), lambda run: run.startswith(wanted))
    applied = {str(record["run"]) for record in found if record.get("kind") == "apply"}
    for run in sorted(applied):
        if not run.startswith(wanted):
            found += _about(directory, run.encode("ascii"), run.__eq__)
    unique = {seq: record for record in found if type(seq := record.get("seq")) is int}
    return [unique[seq] for seq in sorted(unique)]


def _about(
    directory: Path, needle: bytes, is_wanted: Callable[[str], bool]
) -> list[Mapping[str, Json]]:
    found: list[Mapping[str, Json]] = []
    with opened(directory) as (folder, files):
        for file in files:
            for at in records(folder, file, needle):
                ids = (at.record.get("run"), at.record.get("plan"))
                if any(isinstance(each, str) and is_wanted(each) for each in ids):
                    found.append(at.record)
                    if len(found) >= MAX_SHOWN:
                        return found
    return found
