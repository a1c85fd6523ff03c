"""What is in the audit log: its last records, those of one run, counts, and whether it is whole.

Also records the ends of runs whose bridge died, so that each run that began has exactly one.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import anyio.to_thread

from bridge.atomic_files import exclusive_lock
from bridge.gate.audit.log import (
    ALIVE,
    CALL_KINDS,
    AuditLog,
    Link,
    before_first,
    check_line,
    last_lines,
    lines,
    opened,
    parse_line,
    when,
)
from bridge.model import Json

By = Literal["day", "server", "tool", "decision", "outcome"]

MAX_TAIL = 10_000  # Records that `tail` prints at once; a program can add ten thousand in seconds.

CHANGED = (
    "the line is not what a bridge wrote there: something in it was changed, or it was put there. "
    "What it says cannot be relied on; the records before and after it can"
)
MOVED = "records between them were taken away, or one is a copy, was moved, or was put there"
MISSING = (
    "it was taken away, or the machine went down before it was on the disk "
    "(MCP_BRIDGE_AUDIT=sync waits for the disk)"
)
BEGUN = (
    "it ends with a line that was begun and never finished: the bridge or its machine was stopped "
    "while that was written, and its call was not made; or its end was taken away"
)
EMPTY = "it is empty: its bridge was stopped before its first record, or all was taken away"


def read(
    directory: Path,
    ids: Sequence[str] = ("",),
    *,
    since: str = "",
    places: dict[str, int] | None = None,
) -> Iterator[Mapping[str, Json]]:
    """Yield the records of each file, unchecked, in the order in which the files were begun.

    Each has one of the texts `ids`; more may be added meanwhile. `places` is updated: how far each
    file has been read.
    """
    places = {} if places is None else places
    with opened(directory) as (folder, files):
        for file in files:
            start = places.setdefault(file.name, 0)
            wanted = start < file.size and file.day >= since
            for line, end in lines(folder, file.name, start) if wanted else ():
                if not line.endswith(b"\n"):
                    break
                places[file.name] = end
                found = any(json.dumps(each)[1:-1].encode() in line for each in ids)
                if found and (record := parse_line(line)):
                    yield record


def last_records(directory: Path, count: int) -> tuple[list[Mapping[str, Json]], dict[str, int]]:
    """Return the last records by their times, and how far each file was read."""
    with opened(directory) as (folder, files):
        places = {file.name: last_lines(folder, file, count) for file in files}
    # With their order, for those of one time.
    records = enumerate(read(directory, places=places))
    last = heapq.nlargest(count, records, lambda each: (str(each[1].get("time")), each[0]))
    return [record for _, record in reversed(last)], places


def records_since(directory: Path, places: dict[str, int]) -> list[Mapping[str, Json]]:
    """Return what has been written since, and note how far each file was read."""
    return list(islice(read(directory, places=places), MAX_TAIL))


def about(directory: Path, wanted: str, since: str = "") -> list[Mapping[str, Json]]:
    """Return all records of runs and plans that begin so, and of the runs that applied those."""
    records, ids = [], [wanted]
    for record in read(directory, ids, since=since):
        run, plan = str(record.get("run") or ""), str(record.get("plan") or "")
        if (run, plan) != ("", "") and (run.startswith(tuple(ids)) or plan.startswith(wanted)):
            records.append(record)
            # The other records of that run come after this one.
            if record.get("kind") == "apply" and run not in ids:
                ids.append(run)
    return records


@dataclass(kw_only=True)
class CallCounts:
    """Counts of runs that began, of records, and of calls and their results by group."""

    runs: int = 0
    records: int = 0
    groups: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)


def count_calls(records: Iterable[Mapping[str, Json]], by: Sequence[By]) -> CallCounts:
    """Count calls in groups from records in their order; without an outcome they are unknown."""
    counts, open_calls = CallCounts(), dict[tuple[str, str], Mapping[str, Json]]()

    def add(call: Mapping[str, Json], outcome: str, more: Mapping[str, Json]) -> None:
        server = str(call.get("server", ""))
        facts = {
            "day": str(call.get("time", ""))[:10],
            "server": server,
            "tool": f"{server}.{call.get('tool', '')}",
            "decision": f"{call.get('decision', '-')}: {call.get('rule', '-')}",
            "outcome": outcome,
        }
        numbers = {name: n if type(n) in (int, float) else 0 for name, n in more.items()}
        counts.groups.setdefault(tuple(facts[name] for name in by), Counter()).update(numbers)

    def add_made(call: Mapping[str, Json], end: Mapping[str, Json]) -> None:
        outcome = str(end.get("outcome", "unknown"))
        state = outcome if outcome in ("ok", "unknown") else "failed"
        add(call, outcome, {"made": 1, state: 1, "size": end.get("bytes"), "ms": end.get("ms")})

    for record in records:
        counts.records += 1
        kind, key = str(record.get("kind")), (str(record.get("run")), str(record.get("call")))
        counts.runs += kind in ("run", "apply")
        if kind == "call":
            open_calls[key] = record
        elif kind == "outcome" and key in open_calls:
            add_made(open_calls.pop(key), record)
        elif kind in CALL_KINDS:
            add(record, kind, {kind: record.get("times", 1)})
    for call in open_calls.values():
        add_made(call, {})
    return counts


class Tampering(NamedTuple):
    """Something about one place of the log; `line` is from 1, or 0 for the file as a whole."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.what}."


@dataclass(kw_only=True)
class LogReport:
    """What a log looks like.

    Attributes:
        head: Hash of the last record of the newest file; empty if there is none.
        notes: What is not wrong, and may surprise.
        expected: Where the hash that was asked for is; None if it is nowhere.
    """

    files: int = 0
    records: int = 0
    head: str = ""
    problems: list[Tampering] = field(default_factory=list)
    notes: list[Tampering] = field(default_factory=list)
    omitted: int = 0
    expected: Tampering | None = None
    # What first records say of a file: a record's number to its hash, and the file that says so.
    _ends: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    _kept_since: str = ""

    def check(self, directory: Path, expect: str) -> LogReport:
        """Check the files from the newest on: each first record says how those before it ended."""
        with opened(directory) as (folder, files):
            for file in reversed(files):
                self._check_file(file.name, lines(folder, file.name), expect)
        self.files = len(files)
        for name in sorted(self._ends.keys() - {file.name for file in files}):
            # By its day it may have been removed for its age.
            if name[:10] >= self._kept_since:
                said_by = min(self._ends[name].items())[1][1]
                what = f"{said_by} names it, and it is not there: {MISSING}"
                self.problems.append(Tampering(name, 0, what))
        for findings in (self.problems, self.notes):
            findings.sort(key=lambda found: found.file)
            self.omitted += max(0, len(findings) - 100)
            del findings[100:]
        return self

    def _check_file(self, name: str, data: Iterable[tuple[bytes, int]], expect: str) -> None:
        after, number, torn = before_first(name), 0, False
        # Its own first record may say it: of a file that was there before, under the same name.
        ends = self._ends.setdefault(name, {})
        for number, (line, _) in enumerate(data, 1):
            if not line.endswith(b"\n"):
                torn = True
            elif record := check_line(line):
                link = Link(record["seq"], record["hash"])
                if link.seq != after.seq + 1 or (after.hash and record["prev"] != after.hash):
                    what = f"record {link.seq} does not go on from record {after.seq}: {MOVED}"
                    self.problems.append(Tampering(name, number, what))
                after = link
                self.records += 1
                if expect and after.hash.startswith(expect):
                    self.expected = Tampering(name, number, f"record {after.seq}")
                self._note(name, number, record)
                wanted, said_by = ends.get(after.seq, (after.hash, ""))
                if wanted != after.hash:
                    what = f"record {after.seq} is another than {said_by} says: {MOVED}"
                    self.problems.append(Tampering(name, number, what))
            else:
                self.problems.append(Tampering(name, number, CHANGED))
                # The next record continues this one, whatever its hash was.
                after = Link(after.seq + 1, "")
        if torn or not number:
            self.notes.append(Tampering(name, number, BEGUN if number else EMPTY))
        last = max(ends, default=0)
        if last > after.seq:
            what = f"record {last}, which {ends[last][1]} says was there, is missing: {MISSING}"
            self.problems.append(Tampering(name, 0, what))
        self.head = self.head or (after.hash if after.seq else "")

    def _note(self, name: str, number: int, record: Mapping[str, Json]) -> None:
        previous = record.get("previous")
        for other, end in previous.items() if isinstance(previous, dict) and number == 1 else ():
            # Empty for a file without a record, or with one that was changed.
            seq, found = end if isinstance(end, list) and len(end) == 2 else (0, "")
            if type(seq) is int:
                self._ends.setdefault(other, {})[seq] = (str(found), name)
        if record.get("kind") == "retention":
            # No file has a record that its day is too early for.
            self._kept_since = max(self._kept_since, min(str(record.get("before")), name))
            what = f"what was older than {record.get('before')} was removed for its age"
            self.notes.append(Tampering(name, number, what))


def verify(directory: Path, expect: str = "") -> LogReport:
    """Check all of a log; `expect` is a hash, or the beginning of one, that has to be in it."""
    try:
        return LogReport().check(directory, expect)
    except FileNotFoundError:
        # A file was removed meanwhile for its age. Without a directory this raises again.
        return LogReport().check(directory, expect)


async def end_orphans(log: AuditLog) -> int:
    """Record the ends of runs that dead bridges left without; return how many.

    Each of several bridges holds a lock on a file of its own while it lives, which its records
    name. The bridge that gets the lock of another records the missing ends. Only then does the file
    go, so that none is missed, or recorded twice.

    Raises:
        AuditError: They cannot be recorded; the next call tries again.
        OSError: The log cannot be read.
    """
    ended = 0
    for path in sorted(log.directory.glob(f"*{ALIVE}")) if log.directory else ():
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(path, seconds=0))
            except OSError:
                # It lives, or another bridge ends its runs.
                continue
            for run in await anyio.to_thread.run_sync(_find_unended, path):
                await log.append({"kind": "end", "run": run, "status": "lost", "of": path.stem})
                ended += 1
            path.unlink(missing_ok=True)
    return ended


def _find_unended(path: Path) -> list[str]:
    runs: dict[str, bool] = {}  # Whether each continues.
    if not path.exists():
        # Another was quicker.
        return []
    # What is older than the process says nothing about it; clocks may differ a little.
    since = when(path.stat().st_mtime - 3600)[:10]
    for record in read(path.parent, [path.stem], since=since):
        kind, run = record.get("kind"), str(record.get("run"))
        if kind in ("run", "apply", "command", "end"):
            # No order between the files of several bridges is relied on.
            runs[run] = kind != "end" and runs.get(run, True)
    return [run for run, continues in runs.items() if continues]
