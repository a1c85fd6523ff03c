"""Checking that the audit log is what was written, and saying where it is not.

Owns the walk over all lines of all files, what each thing that is wrong means, and what is not
wrong though it looks so: a line that a crash cut short, and files that were removed for their age.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.gate.audit.chain import GENESIS, Line, Link, read_line
from bridge.gate.audit.folder import Found, list_files, open_file, open_folder
from bridge.gate.audit.reading import RawLine, lines
from bridge.gate.audit.resuming import HEAD_BYTES, HEAD_FILE, follows, parse_head
from bridge.model import Json

MAX_TOLD = 100
"""Problems, and notes, that are told one by one; more are counted."""

LEAST_EXPECTED = 16
"""Digits of a hash that are enough to look for it."""

LOCK_SECONDS = 2.0
"""Longest wait for a bridge that is writing."""

_PAUSE_SECONDS = 0.002
_TRIES = 3

CHANGED = "the line is not what a bridge wrote there"
CHANGED_MEANS = (
    "something in it was changed, or it was put there. What it says cannot be relied on; the "
    "records before and after it can"
)
BEGUN = "a line was begun and never finished"
BEGUN_MEANS = (
    "the machine or its disk failed while it was written, and the call that it was for was not made"
)
BEGUN_GONE = "the line that was begun, and that this one is about, is not there any more"
MOVED_MEANS = "it is a copy of another line, or lines have changed places"
REPLACED_MEANS = "one of the two, and perhaps more before it, was written by something else"
MISSING_MEANS = (
    "they were taken away, or the machine went down before they were on the disk "
    "(MCP_BRIDGE_AUDIT=sync waits for the disk). What is left says nothing of what was in them"
)
START_MEANS = "they were taken away: no retention record in the log accounts for them"
HEAD_MISSING = "it is not there, or not what a bridge wrote"
HEAD_MEANS = "records may have been taken away from the end of the log without a trace"
HEAD_WRONG_MEANS = "it was changed, or the end of the log was replaced"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about one place of the log.

    Attributes:
        line: From 1; 0 if it is about the file as a whole.
    """

    file: str
    line: int
    what: str
    meaning: str = ""

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.what}" + (f": {self.meaning}." if self.meaning else ".")


@dataclass(kw_only=True)
class Report:
    """What a log looks like.

    Attributes:
        first, last: Numbers of the first and the last record that is there.
        head: Hash of the last one; empty if there is none.
        problems: What is wrong, in the order of the log; what is beyond `MAX_TOLD` is only counted.
        notes: What is not, and may be wondered about.
        expected: Where the hash that was asked for is; None if it is nowhere.
    """

    files: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    head: str = ""
    problems: list[Finding] = field(default_factory=list)
    problems_more: int = 0
    notes: list[Finding] = field(default_factory=list)
    notes_more: int = 0
    expected: Finding | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(directory: Path, expect: str = "") -> Report:
    """Check all of a log, in one pass.

    Args:
        expect: A hash, or the beginning of one, that has to be in it.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    for _ in range(_TRIES):
        try:
            return _verify(directory, expect)
        except FileNotFoundError:
            if not directory.is_dir():
                raise
            # Removed meanwhile for its age.
    return _verify(directory, expect)


def _verify(directory: Path, expect: str) -> Report:
    folder = open_folder(directory, create=False)
    try:
        head, files = _snapshot(folder)
        verifier = Verifier(head, expect)
        for file in files:
            verifier.file(str(file.name), lines(folder, file))
        return verifier.finish(files)
    finally:
        os.close(folder)


def _snapshot(folder: int) -> tuple[bytes, list[Found]]:
    """Return the head and the files as they are between two writes.

    Who has stopped with the lock in hand does not write either; it is not waited for.
    """
    try:
        descriptor = open_file(folder, HEAD_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return b"", list_files(folder)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            time.sleep(_PAUSE_SECONDS)
        return os.pread(descriptor, HEAD_BYTES + 1, 0), list_files(folder)
    finally:
        os.close(descriptor)


class Verifier:
    """Checks lines in the order in which they were written.

    Args:
        head: What the `head` file holds.
    """

    def __init__(self, head: bytes = b"", expect: str = "") -> None:
        self._report = Report()
        self._expect = expect
        self._head_data = head
        self._head = parse_head(head)
        self._after: Link | None = None
        self._name = ""
        self._doubt: tuple[Finding, RawLine] | None = None
        self._broken = 0
        self._start: tuple[Finding, Link] | None = None
        self._removed: set[tuple[Json, Json]] = set()
        self._head_hash = ""

    def file(self, name: str, found: Iterable[RawLine]) -> None:
        """Check the lines of the next file."""
        self._name = name
        self._report.files += 1
        for raw in found:
            line = read_line(raw.data) if raw.complete and not raw.whole_digest else None
            if line is None:
                self._settle_doubt(None)
                self._doubt = (self._finding(raw.number, CHANGED, CHANGED_MEANS), raw)
                self._broken += 1
                continue
            begun = self._settle_doubt(line)
            # What the very first record is about was removed with the file that it was in.
            if line.record.get("kind") == "torn" and not begun and self._after is not None:
                self._problem(self._finding(raw.number, BEGUN_GONE, MISSING_MEANS))
            if self._in_place(raw, line):
                self._took(raw, line)
            self._broken = 0

    def finish(self, files: list[Found]) -> Report:
        """Return the report, with what only the whole log can tell."""
        report = self._report
        if self._doubt is not None:
            doubt, raw = self._doubt
            if raw.complete or doubt.file != _newest(files):
                self._problem(doubt)
            else:
                self._note(replace(doubt, what=BEGUN, meaning=BEGUN_MEANS))
        if self._start is not None:
            finding, link = self._start
            known = {seq for seq, _ in self._removed} if not link.hash else self._removed
            if (link.seq if not link.hash else (link.seq, link.hash)) not in known:
                report.problems.insert(0, finding)
        self._check_head(files)
        return report

    def _settle_doubt(self, following: Line | None) -> bool:
        """Tell whether a line that cannot be read was only begun: the next record says so."""
        if self._doubt is None:
            return False
        (doubt, raw), self._doubt = self._doubt, None
        said = {} if following is None else following.record
        expected = {"kind": "torn", "file": doubt.file, "bytes": raw.size, "digest": raw.digest}
        # It was ended if the writer went on in that file, and only then.
        ended = raw.complete == (doubt.file == self._name)
        if not ended or any(said.get(name) != value for name, value in expected.items()):
            self._problem(doubt)
            return False
        self._note(replace(doubt, what=BEGUN, meaning=BEGUN_MEANS))
        self._broken -= 1
        return True

    def _in_place(self, raw: RawLine, line: Line) -> bool:
        """Tell whether a line stands where it was written; say what is wrong before it."""
        after, seq, broken = self._after, line.link.seq, self._broken
        if after is None:
            self._begin(raw, line)
            return True
        if follows(line, after) or (broken and after.seq < seq <= after.seq + broken + 1):
            return True
        if seq <= after.seq:
            what = f"record {seq} does not belong here, after record {after.seq}"
            self._problem(self._finding(raw.number, what, MOVED_MEANS))
            return False
        if seq == after.seq + 1:
            what = f"record {seq} was not written after the record {after.seq} before it"
            self._problem(self._finding(raw.number, what, REPLACED_MEANS))
        else:
            what = f"{_records(after.seq + broken + 1, seq - 1)} missing before this line"
            self._problem(self._finding(raw.number, what, MISSING_MEANS))
        return True

    def _begin(self, raw: RawLine, line: Line) -> None:
        seq, broken = line.link.seq, self._broken
        if follows(line, GENESIS) or (broken and seq == broken + 1):
            return
        missing = seq - broken - 1
        what = f"{_records(1, missing)} missing before this line"
        # With a broken line in between, what it went on from is not known.
        before = Link(seq=missing, hash="" if broken else line.prev)
        self._start = (self._finding(raw.number, what, START_MEANS), before)

    def _took(self, raw: RawLine, line: Line) -> None:
        report, link, record = self._report, line.link, line.record
        self._after = link
        report.records += 1
        report.first = report.first or link.seq
        report.last, report.head = link.seq, link.hash
        if self._head is not None and link.seq == self._head.link.seq:
            self._head_hash = link.hash
        if self._expect and link.hash.startswith(self._expect):
            what = f"record {link.seq}, {str(record.get('kind'))!r:.40}"
            report.expected = self._finding(raw.number, what)
        if record.get("kind") == "retention":
            self._retention(raw, record)
        elif record.get("kind") == "resumed":
            self._resumed(raw, record)
        elif record.get("kind") == "lost":
            what = f"{record.get('records')} outcomes of calls could not be recorded"
            self._note(self._finding(raw.number, what))

    def _retention(self, raw: RawLine, record: Mapping[str, Json]) -> None:
        files = record.get("files")
        found = files if isinstance(files, list) else []
        self._removed.update((entry.get("last"), entry.get("hash")) for entry in found)
        what = f"{len(found)} files were removed for their age"
        self._note(self._finding(raw.number, what))

    def _resumed(self, raw: RawLine, record: Mapping[str, Json]) -> None:
        if "expected" in record:
            what = "the bridge that wrote this found the log shorter than it had been, or changed"
            self._note(self._finding(raw.number, what))
        else:
            what = "the bridge that wrote this found no usable head file"
            self._problem(self._finding(raw.number, what, HEAD_MEANS))

    def _check_head(self, files: list[Found]) -> None:
        head, report = self._head, self._report
        if head is None:
            if report.files or self._head_data:
                self._problem(
                    Finding(file=HEAD_FILE, line=0, what=HEAD_MISSING, meaning=HEAD_MEANS)
                )
            return
        seq = head.link.seq
        if seq > report.last:
            what = f"{_records(report.last + 1, seq)} missing at the end of the log"
            file = _newest(files) or HEAD_FILE
            self._problem(Finding(file=file, line=0, what=what, meaning=MISSING_MEANS))
        elif (seq, head.link.hash) != (0, GENESIS.hash) and self._head_hash != head.link.hash:
            what = f"it names a record {seq} that is not in the log"
            self._problem(Finding(file=HEAD_FILE, line=0, what=what, meaning=HEAD_WRONG_MEANS))
        name = "" if head.name is None else str(head.name)
        if report.records and name != _newest(files) and name not in _empty_at_end(files):
            what = f"it names {name or 'no file'}, which is not the one written last"
            self._problem(Finding(file=HEAD_FILE, line=0, what=what, meaning=HEAD_WRONG_MEANS))

    def _finding(self, line: int, what: str, meaning: str = "") -> Finding:
        return Finding(file=self._name, line=line, what=what, meaning=meaning)

    def _problem(self, finding: Finding) -> None:
        if len(self._report.problems) < MAX_TOLD:
            self._report.problems.append(finding)
        else:
            self._report.problems_more += 1

    def _note(self, finding: Finding) -> None:
        if len(self._report.notes) < MAX_TOLD:
            self._report.notes.append(finding)
        else:
            self._report.notes_more += 1


def _newest(files: Sequence[Found]) -> str:
    """Return the name of the newest file with anything in it."""
    return next((str(file.name) for file in reversed(files) if file.size), "")


def _empty_at_end(files: Sequence[Found]) -> set[str]:
    """Return the names of newer files, which were made and not written yet."""
    found = set()
    for file in reversed(files):
        if file.size:
            break
        found.add(str(file.name))
    return found


def _records(first: int, last: int) -> str:
    return f"record {first} is" if first >= last else f"records {first} to {last} are"
