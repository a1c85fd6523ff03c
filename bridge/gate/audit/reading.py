"""What is in the audit log: its last records, those of one run or plan, and counts of calls."""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import anyio.to_thread

from bridge.gate.audit.files import Found, UnsafeError, last_lines, lines, opened
from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.records import CALL_KINDS, parsed
from bridge.model import Json

By = Literal["day", "server", "tool", "decision", "outcome"]

MAX_TAIL = 10_000
"""Records that are returned from the end at once."""

SEARCH_BYTES = 512 * 1024 * 1024
"""Of the newest files, which are looked through for a plan: what takes about a second."""

MAX_SHOWN = 100_000
"""Records about one run: two for each call that it may make, and more."""

MAX_GROUPS = 10_000
"""Different groups of calls; what is beyond is counted together."""

MAX_OPEN = 100_000
"""Calls whose outcome has not been read yet; of more, the oldest are taken to have none."""


def last_records(directory: Path, count: int) -> tuple[list[Mapping[str, Json]], dict[str, int]]:
    """Return the last records by their times, and how far each file was read.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    with opened(directory) as (folder, files):
        places = {file.name: last_lines(folder, file, count) for file in files}
        found = enumerate(_since(folder, files, places))
        # With their order, for those of one time.
        last = heapq.nlargest(count, ((str(each.get("time")), at, each) for at, each in found))
    return [record for _, _, record in reversed(last)], places


def records_since(directory: Path, places: dict[str, int]) -> list[Mapping[str, Json]]:
    """Return what has been written since, up to a bound, and note how far each file was read.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    with opened(directory) as (folder, files):
        found = zip(range(MAX_TAIL), _since(folder, files, places), strict=False)
        return [record for _, record in found]


def _since(
    folder: int, files: Sequence[Found], places: dict[str, int], needle: bytes = b""
) -> Iterator[Mapping[str, Json]]:
    for file in files:
        start = places.setdefault(file.name, 0)
        for line, end in lines(folder, file.name, start) if start < file.size else ():
            if not line.endswith(b"\n"):
                break
            places[file.name] = end
            if needle in line and (record := parsed(line)):
                yield record


def about(
    directory: Path, wanted: str, *, whole: bool = False, within: float = math.inf
) -> list[Mapping[str, Json]]:
    """Return all records of runs and plans that begin so, and of the runs that applied the plans.

    Args:
        whole: Whether `wanted` is the whole of an id.
        within: Bytes of the newest files to look through.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    quoted = json.dumps(wanted)
    is_wanted = wanted.__eq__ if whole else lambda text: text.startswith(wanted)
    found = _about(directory, quoted if whole else quoted[1:-1], is_wanted, within)
    applied = {str(record["run"]) for record in found.values() if record.get("kind") == "apply"}
    for run in applied:
        if not is_wanted(run):
            found |= _about(directory, json.dumps(run), run.__eq__, within)
    return [found[place] for place in sorted(found)]


def _about(
    directory: Path, needle: str, is_wanted: Callable[[str], bool], within: float
) -> dict[tuple[str, int, str, int], Mapping[str, Json]]:
    """Return records by their places."""
    found: dict[tuple[str, int, str, int], Mapping[str, Json]] = {}
    with opened(directory) as (folder, files):
        for file in reversed(files):
            within -= file.size
            here = _since(folder, [file] if within >= 0 else [], {}, needle.encode("ascii"))
            for record in here:
                seq, ids = record.get("seq"), (record.get("run"), record.get("plan"))
                if any(isinstance(each, str) and is_wanted(each) for each in ids):
                    found[file.day, file.number, file.name, seq if type(seq) is int else 0] = record
                if len(found) >= MAX_SHOWN:
                    return found
    return found


@dataclass(frozen=True, kw_only=True)
class PlanTrace:
    """What the log knows of a plan.

    Attributes:
        made: The record of its making; empty if that is not in the files that were read.
        applied: That of its application's beginning; empty if it never was applied.
        ended: That of its end; empty if it is under way, or was cut off.
        outcomes: What became of each call by its number: its outcome, "unknown" too for one that
            went out and has none on record, "not-sent" of one that was refused.
    """

    made: Mapping[str, Json]
    applied: Mapping[str, Json]
    ended: Mapping[str, Json]
    outcomes: Mapping[int, str]


async def find_plan(log: AuditLog, plan_id: str, owner: str | None = None) -> PlanTrace | None:
    """Return what the newest files know of a plan and its application; None if nothing.

    Args:
        owner: Whose plan it has to be; None for anybody's.

    Raises:
        AuditError: They cannot be read.
    """
    if log.directory is None:
        return None
    try:
        find = partial(about, log.directory, plan_id, whole=True, within=SEARCH_BYTES)
        found = await anyio.to_thread.run_sync(find)
    except FileNotFoundError:
        # Nothing was recorded yet, or it was removed for its age just now.
        return None
    except (OSError, UnsafeError) as error:
        raise log.failed(error, "read") from error
    known = {each.get("kind"): each for each in found if each.get("plan") == plan_id}
    made, applied = known.get("plan", {}), known.get("apply", {})
    if not (made or applied) or owner not in (None, (made or applied).get("owner", "")):
        return None
    outcomes: dict[int, str] = {}
    ended: Mapping[str, Json] = {}
    for record in found:
        kind, number = record.get("kind"), record.get("call", 0)
        if not applied or record.get("run") != applied.get("run"):
            continue
        if kind in CALL_KINDS:
            outcomes[number] = "unknown" if kind == "call" else "not-sent"
        elif kind == "outcome":
            outcomes[number] = str(record.get("outcome"))
        elif kind == "end":
            ended = record
    return PlanTrace(made=made, applied=applied, ended=ended, outcomes=outcomes)


@dataclass(kw_only=True)
class Counting:
    """Counts calls from records in their order.

    Attributes:
        by: What calls of one group have in common.
        runs: How many began.
        groups: Of each group the calls that went out ("made", and of those "ok", "failed" and
            "unknown"), "refused", "held" and "replayed" ones; the "size" of results and "ms".
    """

    by: Sequence[By]
    runs: int = 0
    records: int = 0
    groups: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)
    _open: dict[tuple[str, str], Mapping[str, Json]] = field(default_factory=dict)

    def count(self, directory: Path, since: str = "") -> None:
        """Count what is recorded from a day on.

        Raises:
            OSError, UnsafeError: It cannot be read.
        """
        with opened(directory) as (folder, files):
            self.feed(_since(folder, [file for file in files if file.day >= since], {}))

    def feed(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Count records; calls that have no outcome then are unknown."""
        for record in records:
            self.records += 1
            kind, key = record.get("kind"), (str(record.get("run")), str(record.get("call")))
            self.runs += kind in ("run", "apply")
            if kind == "call":
                self._open[key] = record
                if len(self._open) > MAX_OPEN:
                    self._settle(next(iter(self._open)), {})
            elif kind == "outcome":
                self._settle(key, record)
            elif kind in CALL_KINDS:
                self._group(record, str(kind))[str(kind)] += _number(record.get("times", 1))
        for key in list(self._open):
            self._settle(key, {})

    def _settle(self, key: tuple[str, str], outcome: Mapping[str, Json]) -> None:
        if call := self._open.pop(key, None):
            text = str(outcome.get("outcome", "unknown"))
            group = self._group(call, text)
            group["made"] += 1
            group[text if text in ("ok", "unknown") else "failed"] += 1
            group["size"] += _number(outcome.get("bytes"))
            group["ms"] += _number(outcome.get("ms"))

    def _group(self, call: Mapping[str, Json], outcome: str) -> Counter[str]:
        server = str(call.get("server", ""))
        facts = {
            "day": str(call.get("time", ""))[:10],
            "server": server,
            "tool": f"{server}.{call.get('tool', '')}",
            "decision": f"{call.get('decision', '-')}: {call.get('rule', '-')}",
            "outcome": outcome,
        }
        key = tuple(facts[name] for name in self.by)
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            key = tuple("others" for _ in self.by)
        return self.groups.setdefault(key, Counter())


def _number(value: Json) -> Json:
    return value if type(value) in (int, float) else 0
