"""What is in the audit log: its last records, those of one run, counts, and whether it is whole."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from bridge.gate.audit.log import LogFile, last_lines, lines, opened
from bridge.gate.audit.records import CALL_KINDS, Link, RecordLine, before_first, parsed, read_line
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


def last_records(directory: Path, count: int) -> tuple[list[Mapping[str, Json]], dict[str, int]]:
    """Return the last records by their times, and how far each file was read."""
    with opened(directory) as (folder, files):
        offsets = {file.name: last_lines(folder, file, count) for file in files}
        records = enumerate(_since(folder, files, offsets))
        # With their order, for those of one time.
        last = heapq.nlargest(count, ((str(each.get("time")), at, each) for at, each in records))
    return [record for _, _, record in reversed(last)], offsets


def records_since(directory: Path, places: dict[str, int]) -> list[Mapping[str, Json]]:
    """Return what has been written since, and note how far each file was read."""
    with opened(directory) as (folder, files):
        return list(islice(_since(folder, files, places), MAX_TAIL))


def _since(
    folder: int,
    files: Sequence[LogFile],
    offsets: dict[str, int],
    needles: Collection[bytes] = (b"",),
) -> Iterator[Mapping[str, Json]]:
    """Yield records from where each file was read up to, of lines that have one of some texts."""
    for file in files:
        start = offsets.setdefault(file.name, 0)
        for line, end in lines(folder, file.name, start) if start < file.size else ():
            if not line.endswith(b"\n"):
                break
            offsets[file.name] = end
            if any(needle in line for needle in needles) and (record := parsed(line)):
                yield record


def about(directory: Path, wanted: str, since: str = "") -> list[Mapping[str, Json]]:
    """Return all records of runs and plans that begin so, and of the runs that applied those.

    Args:
        since: The day from which on files are read.
    """
    records: list[Mapping[str, Json]] = []
    applied: set[str] = set()
    needles = {json.dumps(wanted)[1:-1].encode("ascii")}
    with opened(directory) as (folder, files):
        files = [file for file in files if file.day >= since]
        for record in _since(folder, files, {}, needles):
            run, plan = str(record.get("run") or ""), str(record.get("plan") or "")
            if record.get("kind") == "apply" and plan.startswith(wanted):
                # The other records of that run come after this one.
                applied.add(run)
                needles.add(json.dumps(run).encode("ascii"))
            if run in applied or run.startswith(wanted) or plan.startswith(wanted):
                records.append(record)
    return records


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

    def count(self, directory: Path, since: str = "") -> None:
        with opened(directory) as (folder, files):
            self.feed(_since(folder, [file for file in files if file.day >= since], {}))

    def feed(self, records: Iterable[Mapping[str, Json]]) -> None:
        """Count records; calls that have no outcome then are unknown."""
        calls: dict[tuple[str, str], Mapping[str, Json]] = {}
        for record in records:
            self.records += 1
            kind, key = record.get("kind"), (str(record.get("run")), str(record.get("call")))
            self.runs += kind in ("run", "apply")
            if kind == "call":
                calls[key] = record
            elif kind == "outcome" and key in calls:
                self._made(calls.pop(key), record)
            elif kind in CALL_KINDS:
                self._group(record, str(kind))[str(kind)] += _number(record.get("times", 1))
        for call in calls.values():
            self._made(call, {})

    def _made(self, call: Mapping[str, Json], outcome: Mapping[str, Json]) -> None:
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
        return self.groups.setdefault(tuple(facts[name] for name in self.by), Counter())


def _number(value: Json) -> Json:
    return value if type(value) in (int, float) else 0


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
        problems: What is wrong.
        notes: What is not wrong, and may surprise.
        omitted: How many more there are of both.
        expected: Where the hash that was asked for is; None if it is nowhere.
    """

    files: int = 0
    records: int = 0
    head: str = ""
    problems: list[Tampering] = field(default_factory=list)
    notes: list[Tampering] = field(default_factory=list)
    omitted: int = 0
    expected: Tampering | None = None

    def add(self, findings: list[Tampering], file: str, line: int, what: str) -> None:
        """Add a finding to one of the lists; only the first hundred are listed."""
        if len(findings) < 100:
            findings.append(Tampering(file, line, what))
        else:
            self.omitted += 1


def verify(directory: Path, expect: str = "") -> LogReport:
    """Check all of a log.

    Args:
        expect: A hash, or the beginning of one, that has to be in it.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return _Verifier(expect).check(directory)
    except FileNotFoundError:
        # A file was removed meanwhile for its age. Without a directory this raises again.
        return _Verifier(expect).check(directory)


class _Verifier:
    """Checks the files in the order in which they were begun."""

    def __init__(self, expect: str) -> None:
        self._report = LogReport()
        self._expect = expect
        # What first records say of a file: a record's number to its hash, and the file that says.
        self._ends: dict[str, dict[int, tuple[str, str]]] = {}
        self._kept_since = ""

    def check(self, directory: Path) -> LogReport:
        """Return the report. Files are read to their present ends, after they were listed."""
        report = self._report
        with opened(directory) as (folder, files):
            for file in files:
                line = read_line(next(lines(folder, file.name), (b"", 0))[0])
                previous = line.record.get("previous") if line else None
                for name, end in previous.items() if isinstance(previous, dict) else ():
                    # Empty for a file without a record, or with one that was changed.
                    seq, found = end if isinstance(end, list) and len(end) == 2 else (0, "")
                    if type(seq) is int:
                        self._ends.setdefault(name, {}).setdefault(seq, (str(found), file.name))
            for file in files:
                report.files += 1
                self._check_file(folder, file.name)
        for name in sorted(self._ends.keys() - {file.name for file in files}):
            # By its day it may have been removed for its age.
            if name[:10] >= self._kept_since:
                said_by = next(iter(self._ends[name].values()))[1]
                what = f"{said_by} names it, and it is not there: {MISSING}"
                report.add(report.problems, name, 0, what)
        return report

    def _check_file(self, folder: int, name: str) -> None:
        report, after, number, torn = self._report, before_first(name), 0, False
        ends = self._ends.get(name, {})
        for number, (data, _) in enumerate(lines(folder, name), 1):
            line = read_line(data)
            if not data.endswith(b"\n"):
                torn = True
            elif line is None:
                report.add(report.problems, name, number, CHANGED)
                # The next record continues this one, whatever its hash was.
                after = Link(after.seq + 1, "")
            else:
                if line.link.seq != after.seq + 1 or (after.hash and line.prev != after.hash):
                    what = f"record {line.link.seq} does not go on from record {after.seq}: {MOVED}"
                    report.add(report.problems, name, number, what)
                after = line.link
                self._note(name, number, line)
                wanted, said_by = ends.get(after.seq, (after.hash, ""))
                if wanted != after.hash:
                    what = f"record {after.seq} is another than {said_by} says: {MOVED}"
                    report.add(report.problems, name, number, what)
        if torn or not number:
            report.add(report.notes, name, number, BEGUN if number else EMPTY)
        last = max(ends, default=0)
        if last > after.seq:
            what = f"record {last}, which {ends[last][1]} says was there, is missing: {MISSING}"
            report.add(report.problems, name, 0, what)
        report.head = after.hash if after.seq else report.head

    def _note(self, name: str, number: int, line: RecordLine) -> None:
        report, record = self._report, line.record
        report.records += 1
        if self._expect and line.link.hash.startswith(self._expect):
            report.expected = Tampering(name, number, f"record {line.link.seq}")
        if record.get("kind") == "retention":
            # No file has a record that its day is too early for.
            self._kept_since = max(self._kept_since, min(str(record.get("before")), name))
            what = f"what was older than {record.get('before')} was removed for its age"
            report.add(report.notes, name, number, what)
