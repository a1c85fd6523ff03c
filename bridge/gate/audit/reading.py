"""Reads, counts and verifies the audit log, and records the ends of runs of dead bridges."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from bridge.atomic_files import exclusive_lock
from bridge.event_loop import utc_text
from bridge.gate.audit.log import (
    ALIVE,
    AuditLog,
    ChainLink,
    before_first,
    check_line,
    last_lines,
    lines,
    opened,
    parse_line,
)
from bridge.model import Json

MAX_TAIL = 10_000  # Records that `tail` prints at once; a program can add ten thousand in seconds.

CHANGED = "the line is not what a bridge wrote there; other lines are not affected"
MOVED = "records between them were removed, or one was copied, moved or inserted"
MISSING = "it was removed, or lost in a crash of the machine (MCP_BRIDGE_AUDIT=sync prevents that)"
BEGUN = "its last line is unfinished: the bridge stopped before that call, or the end was removed"
EMPTY = "it is empty: its bridge stopped before the first record, or all records were removed"


def read(
    directory: Path,
    ids: Sequence[str] = ("",),
    *,
    since: str = "",
    places: dict[str, int] | None = None,
) -> Iterator[Mapping[str, Json]]:
    """Yield unchecked records that contain one of `ids`, from the offsets `places` by file on.

    Updates `places`. The consumer may add to `ids`.
    """
    places = {} if places is None else places
    with opened(directory) as (folder, files):
        for name, size in files.items():
            start = places.setdefault(name, 0)
            wanted = start < size and name >= since
            for line in lines(folder, name, start) if wanted else ():
                if not line.endswith(b"\n"):
                    break
                places[name] += len(line)
                matches = any(json.dumps(each)[1:-1].encode() in line for each in ids)
                if matches and (record := parse_line(line)):
                    yield record


def last_records(directory: Path, count: int) -> tuple[list[Mapping[str, Json]], dict[str, int]]:
    """Return the last records by time, and the offset up to which each file was read."""
    with opened(directory) as (folder, files):
        places = {name: last_lines(folder, name, count) for name in files}
    # Records with equal times keep their order.
    records = enumerate(read(directory, places=places))
    last = heapq.nlargest(count, records, lambda each: (str(each[1].get("time")), each[0]))
    return [record for _, record in reversed(last)], places


def records_since(directory: Path, places: dict[str, int]) -> list[Mapping[str, Json]]:
    return list(islice(read(directory, places=places), MAX_TAIL))


def about(directory: Path, wanted: str, since: str = "") -> list[Mapping[str, Json]]:
    """Return the records of runs and plans with this id prefix, and of runs that applied them."""
    records, ids = [], [wanted]
    for record in read(directory, ids, since=since):
        run, plan = str(record.get("run") or ""), str(record.get("plan") or "")
        if (run, plan) != ("", "") and (run.startswith(tuple(ids)) or plan.startswith(wanted)):
            records.append(record)
            if record.get("kind") == "apply" and run not in ids:
                ids.append(run)
    return records


class Tampering(NamedTuple):
    """A finding about a line of the log, from 1, or about a whole file (line 0)."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.what}."


@dataclass(kw_only=True)
class LogReport:
    """The result of a verification."""

    files: int = 0
    records: int = 0
    head: str = ""  # Hash of the last record of the newest file.
    problems: list[Tampering] = field(default_factory=list)
    notes: list[Tampering] = field(default_factory=list)
    omitted: int = 0
    expected: Tampering | None = None  # The place of the hash that the user asked for.
    # By file: record numbers to hashes, with the later file whose first record has them.
    _ends: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    _kept_since: str = ""

    def check(self, directory: Path, expect: str) -> LogReport:
        """Check all files, the newest first: its first record names the ends of older files."""
        with opened(directory) as (folder, files):
            for name in reversed(files):
                self._check_file(name, lines(folder, name), expect)
        self.files = len(files)
        for name in sorted(self._ends.keys() - files.keys()):
            # Retention may have removed older files.
            if name[:10] >= self._kept_since:
                said_by = min(self._ends[name].items())[1][1]
                what = f"{said_by} names it, and it does not exist: {MISSING}"
                self._add(self.problems, name, 0, what)
        for findings in (self.problems, self.notes):
            findings.sort(key=lambda finding: finding.file)
        return self

    def _check_file(self, name: str, data: Iterable[bytes], expect: str) -> None:
        after, number, torn = before_first(name), 0, False
        # The file's own first record may name an earlier file with this name.
        ends = self._ends.setdefault(name, {})
        for number, line in enumerate(data, 1):
            if not line.endswith(b"\n"):
                torn = True
            elif record := check_line(line):
                link = ChainLink(record["seq"], record["hash"])
                if link.seq != after.seq + 1 or (after.hash and record["prev"] != after.hash):
                    what = f"record {link.seq} does not follow record {after.seq}: {MOVED}"
                    self._add(self.problems, name, number, what)
                after = link
                self.records += 1
                if expect and after.hash.startswith(expect):
                    self.expected = Tampering(name, number, f"record {after.seq}")
                self._note(name, number, record)
                wanted, said_by = ends.get(after.seq, (after.hash, ""))
                if wanted != after.hash:
                    what = f"record {after.seq} is not the one that {said_by} names: {MOVED}"
                    self._add(self.problems, name, number, what)
            else:
                self._add(self.problems, name, number, CHANGED)
                # The hash of this line is unknown, so that the next line is not checked against it.
                after = ChainLink(after.seq + 1, "")
        if torn or not number:
            self._add(self.notes, name, number, BEGUN if number else EMPTY)
        last = max(ends, default=0)
        if last > after.seq:
            what = f"record {last}, which {ends[last][1]} names, is missing: {MISSING}"
            self._add(self.problems, name, 0, what)
        self.head = self.head or (after.hash if after.seq else "")

    def _note(self, name: str, number: int, record: Mapping[str, Json]) -> None:
        previous = record.get("previous")
        for other, end in previous.items() if isinstance(previous, dict) and number == 1 else ():
            # Null for a file without a valid last record.
            seq, last = end if isinstance(end, list) and len(end) == 2 else (0, "")
            if type(seq) is int:
                self._ends.setdefault(other, {})[seq] = (str(last), name)
        if record.get("kind") == "retention":
            # A file's name starts with its day: a forged record cannot reach beyond it.
            self._kept_since = max(self._kept_since, min(str(record.get("before")), name))
            what = f"files older than {record.get('before')} were removed for their age"
            self._add(self.notes, name, number, what)

    def _add(self, findings: list[Tampering], file: str, line: int, what: str) -> None:
        if len(findings) < 100:  # A forger can write any number of lines.
            findings.append(Tampering(file, line, what))
        else:
            self.omitted += 1


def verify(directory: Path, expect: str = "") -> LogReport:
    """Check a log. `expect` is the prefix of a hash to find in it."""
    try:
        return LogReport().check(directory, expect)
    except FileNotFoundError:
        # Retention removed a file during the check. Without a directory this raises again.
        return LogReport().check(directory, expect)


async def end_orphans(log: AuditLog) -> int:
    """Record the missing ends of runs of dead bridges, and return their number.

    Each bridge locks its own file, whose name its records have. The bridge that gets this lock
    records the missing ends and then removes the file, so that each run gets exactly one end.
    Raises `AuditError` if it cannot write; the next call tries again.
    """
    ended = 0
    for path in sorted(log.directory.glob(f"*{ALIVE}")) if log.directory else ():
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(path, seconds=0))
            except OSError:
                # The bridge runs, or another bridge ends its runs.
                continue
            for run in await anyio.to_thread.run_sync(_find_unended, path):
                await log.append({"kind": "end", "run": run, "status": "lost", "of": path.stem})
                ended += 1
            path.unlink(missing_ok=True)
    return ended


def _find_unended(path: Path) -> list[str]:
    runs: dict[str, bool] = {}  # Whether each continues.
    if not path.exists():
        # Another bridge ended them just before this one got the lock.
        return []
    # No record of the process is older than its lock; clocks may differ a little.
    since = utc_text(path.stat().st_mtime - 3600)[:10]
    for record in read(path.parent, [path.stem], since=since):
        kind, run = record.get("kind"), str(record.get("run"))
        if kind in ("run", "apply", "command", "end"):
            # The files of several bridges have no common order.
            runs[run] = kind != "end" and runs.get(run, True)
    return [run for run, continues in runs.items() if continues]
