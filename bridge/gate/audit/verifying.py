"""Checking that the audit log is what was written, and saying where it is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bridge.gate.audit.files import Found, lines, opened
from bridge.gate.audit.records import Line, Link, before_first, read_line

MAX_TOLD = 100
"""Problems, and notes, that are told one by one; more are counted."""

LEAST_EXPECTED = 16
"""Digits of a hash that are enough to look for it."""

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
OLD = "an earlier version of the bridge wrote it, in one chain for all bridges; it is not checked"


class Finding(NamedTuple):
    """Something about one place of the log; `line` is from 1, or 0 for the file as a whole."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.what}."


@dataclass(kw_only=True)
class Report:
    """What a log looks like.

    Attributes:
        head: Hash of the last record of the newest file; empty if there is none.
        problems: What is wrong.
        notes: What is not, and may be wondered about.
        omitted: How many more there are of both.
        expected: Where the hash that was asked for is; None if it is nowhere.
    """

    files: int = 0
    records: int = 0
    head: str = ""
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    omitted: int = 0
    expected: Finding | None = None


def verify(directory: Path, expect: str = "") -> Report:
    """Check all of a log.

    Args:
        expect: A hash, or the beginning of one, that has to be in it.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    try:
        return _Verifier(expect).checked(directory)
    except FileNotFoundError:
        # Removed meanwhile for its age; or there is no directory, which then is said.
        return _Verifier(expect).checked(directory)


class _Verifier:
    """Checks the files in the order in which they were begun."""

    def __init__(self, expect: str) -> None:
        self._report = Report()
        self._expect = expect
        # What first records say of a file: the number of a record, its hash, and who says so.
        self._ends: dict[str, list[tuple[int, str, str]]] = {}
        self._kept_since = ""

    def checked(self, directory: Path) -> Report:
        """Return the report. Files are read as far as they go then, later than they were listed."""
        with opened(directory) as (folder, files):
            for file in files:
                first = next(lines(folder, file.name), (b"", 0))[0]
                self._learn(file.name, read_line(first))
            for file in files:
                self._report.files += 1
                if file.number:
                    self._file(folder, file)
                else:
                    self._tell(self._report.notes, Finding(file.name, 0, OLD))
        for name in sorted(self._ends.keys() - {file.name for file in files}):
            # By its day it may have been removed for its age.
            if name[:10] >= self._kept_since:
                what = f"{self._ends[name][0][2]} names it, and it is not there: {MISSING}"
                self._tell(self._report.problems, Finding(name, 0, what))
        return self._report

    def _learn(self, file: str, line: Line | None) -> None:
        previous = line.record.get("previous") if line else None
        for name, end in previous.items() if isinstance(previous, dict) else ():
            # Empty of a file that had no record yet, or one that was not as it was written.
            seq, found = end if isinstance(end, list) and len(end) == 2 else (0, "")
            if type(seq) is int:
                self._ends.setdefault(name, []).append((seq, str(found), file))

    def _file(self, folder: int, file: Found) -> None:
        report, after, number, torn = self._report, before_first(file.name), 0, False
        ends = {seq: (found, said_by) for seq, found, said_by in self._ends.get(file.name, ())}
        for number, (data, _) in enumerate(lines(folder, file.name), 1):
            line = read_line(data)
            if not data.endswith(b"\n"):
                torn = True
            elif line is None:
                self._tell(report.problems, Finding(file.name, number, CHANGED))
                # What follows goes on from it, whatever its hash was.
                after = Link(after.seq + 1, "")
            else:
                if line.link.seq != after.seq + 1 or (after.hash and line.prev != after.hash):
                    what = f"record {line.link.seq} does not go on from record {after.seq}: {MOVED}"
                    self._tell(report.problems, Finding(file.name, number, what))
                after = line.link
                self._took(Finding(file.name, number, f"record {after.seq}"), line)
                wanted, said_by = ends.get(after.seq, (after.hash, ""))
                if wanted != after.hash:
                    what = f"record {after.seq} is another than {said_by} says: {MOVED}"
                    self._tell(report.problems, Finding(file.name, number, what))
        if torn or not number:
            self._tell(report.notes, Finding(file.name, number, BEGUN if number else EMPTY))
        last = max(ends, default=0)
        if last > after.seq:
            what = f"record {last}, which {ends[last][1]} says was there, is missing: {MISSING}"
            self._tell(report.problems, Finding(file.name, 0, what))
        report.head = after.hash if after.seq else report.head

    def _took(self, place: Finding, line: Line) -> None:
        report, record = self._report, line.record
        report.records += 1
        if self._expect and line.link.hash.startswith(self._expect):
            report.expected = place
        if record.get("kind") == "retention":
            # No file has a record that its day is too early for.
            before = min(str(record.get("before")), place.file)
            self._kept_since = max(self._kept_since, before)
            what = f"what was older than {record.get('before')} was removed for its age"
            self._tell(report.notes, place._replace(what=what))
        elif record.get("kind") == "lost":
            what = f"{record.get('records')} outcomes of calls could not be recorded"
            self._tell(report.notes, place._replace(what=what))

    def _tell(self, told: list[Finding], finding: Finding) -> None:
        if len(told) < MAX_TOLD:
            told.append(finding)
        else:
            self._report.omitted += 1
