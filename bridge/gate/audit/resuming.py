"""Where a chain goes on, from what is found on the disk. Pure.

Owns the names of the files, the form of the `head` file, and what a writer records when the end of
the log is not as the last writer left it.

The `head` file names the last record and the file that is being written. Without it, records taken
away from the end of the log would leave no trace. A writer that is killed between a record and the
head leaves a head that is one record behind, which is nothing; a head that is ahead of the log
means that records are gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.gate.audit.chain import GENESIS, Line, Link, read_line
from bridge.gate.audit.records import Record
from bridge.gate.canonical import digest

HEAD_FILE = "head"

HEAD_BYTES = 116
"""Of the `head` file, always; so it is overwritten in place."""

MAX_PART = 99_999
"""Parts of one day; beyond, the last one grows."""

_FILE = re.compile(r"(\d{4}-\d\d-\d\d)(?:\.([1-9]\d{0,4}))?\.jsonl")
_HEAD = re.compile(rb"(\d{20}) ([0-9a-f]{64}) ([0-9.jsonl-]{0,28}) *\n")


@dataclass(frozen=True, order=True)
class Name:
    """The name of a file: a day in UTC, and which part of it; they sort as they were written."""

    day: str
    part: int = 1

    def __str__(self) -> str:
        return f"{self.day}.jsonl" if self.part == 1 else f"{self.day}.{self.part}.jsonl"

    @property
    def next(self) -> Name:
        """The part after this one."""
        return Name(self.day, min(self.part + 1, MAX_PART))


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the `head` file says.

    Attributes:
        name: Of the file that is being written; None before there is one.
    """

    link: Link
    name: Name | None = None


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The end of the last file that has anything in it.

    Attributes:
        last: Its last whole line; None if it has none, or that is not as it was written.
        rest: What comes after the last newline.
        name: The file.
    """

    name: Name
    last: Line | None
    rest: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """How a writer goes on.

    Attributes:
        after: What the next record follows.
        lacks_newline: Whether the last line is whole but for that, and needs it first.
        ending: What ends a line that was only begun, if the next record goes into the same file.
        records: What has to be recorded before anything else.
    """

    after: Link
    lacks_newline: bool = False
    ending: bytes = b""
    records: tuple[Record, ...] = ()


def parse_name(text: str) -> Name | None:
    """Return the name of a file of the log; None if it is none."""
    found = _FILE.fullmatch(text)
    if found is None or found[2] == "1":
        return None
    return Name(found[1], int(found[2] or 1))


def head_bytes(link: Link, name: str) -> bytes:
    """Return the whole of a `head` file."""
    return b"%020d %b %-29b\n" % (link.seq, link.hash.encode("ascii"), name.encode("ascii"))


def parse_head(data: bytes) -> Head | None:
    """Return what a `head` file says; None if it is not as it was written."""
    found = _HEAD.fullmatch(data)
    if found is None or len(data) != HEAD_BYTES:
        return None
    text = found[3].decode("ascii")
    name = parse_name(text)
    if text and name is None:
        return None
    return Head(link=Link(seq=int(found[1]), hash=found[2].decode("ascii")), name=name)


def resume(head: Link | None, tail: Tail | None) -> Resumption:
    """Return how to go on.

    Args:
        head: The last record that is known to have been written; None if nobody knows.
        tail: None if there is no file with anything in it.
    """
    if tail is None:
        # A log that was taken away whole goes on where it was, so that this shows.
        return Resumption(after=head or GENESIS, records=_resumed(head, None))
    last, ending, records, lacking = tail.last, b"", [], False
    if tail.rest:
        whole = read_line(tail.rest)
        if last is not None and whole is not None and follows(whole, last.link):
            last, lacking = whole, True
        else:
            ending = b"\n"
            records.append(torn_record(tail.name, tail.rest))
    found = None if last is None else last.link
    if found is not None and (head is None or found.seq > head.seq or found == head):
        after = found
        records += _resumed(head, found) if head is None else ()
    else:
        after = head or GENESIS
        records += _resumed(head, found)
    return Resumption(after=after, lacks_newline=lacking, ending=ending, records=tuple(records))


def follows(line: Line, after: Link) -> bool:
    """Tell whether a line was written right after another."""
    return line.prev == after.hash and line.link.seq == after.seq + 1


def torn_record(name: Name, rest: bytes) -> Record:
    """Return what is recorded of a line that was only begun."""
    return {"kind": "torn", "file": str(name), "bytes": len(rest), "digest": digest(rest)}


def _resumed(expected: Link | None, found: Link | None) -> tuple[Record, ...]:
    """Return what is recorded of a log that does not end where it should."""
    if expected == found or (expected == GENESIS and found is None):
        return ()
    record: Record = {"kind": "resumed"}
    if expected is not None:
        record["expected"] = {"seq": expected.seq, "hash": expected.hash}
    if found is not None:
        record["found"] = {"seq": found.seq, "hash": found.hash}
    return (record,)
