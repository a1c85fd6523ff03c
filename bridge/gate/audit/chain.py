"""What makes a change to the audit log show: each record's line holds the hash of the one before.

Owns the form of a line, its hash, and what one line says of itself. Pure. How lines
follow each other over files is `bridge.gate.audit.verifying`'s.

A line is the record as canonical JSON (ASCII, keys sorted, no spaces) with one more member at the
end: `"hash"`, the SHA-256 of the line without that member. So a line is checked as the bytes that
it is, and not one of them can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bridge.gate.canonical import canonical
from bridge.model import Json

_HASH = b',"hash":"'
_END = b'"}'
_HEX = 64
_HASH_BYTES = len(_HASH) + _HEX + len(_END)


class Link(NamedTuple):
    """A place in the chain. A tuple: one is made for each record.

    Attributes:
        seq: Number of a record, from 1.
        hash: Of that record.
    """

    seq: int
    hash: str


GENESIS = Link(seq=0, hash="0" * _HEX)
"""What the first record of all follows."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line that is what it was when it was written.

    Attributes:
        prev: Hash of the record that it was written after.
    """

    link: Link
    prev: str
    record: Mapping[str, Json]


def linked(record: Mapping[str, Json], after: Link, time: str) -> tuple[bytes, Link]:
    """Return a record's line, and its place in the chain.

    Args:
        time: When it is written.

    Raises:
        RecursionError: The record is nested too deeply.
    """
    seq = after.seq + 1
    body = canonical({**record, "seq": seq, "prev": after.hash, "time": time}).encode("ascii")
    found = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body[:-1], found.encode("ascii")), Link(seq, found)


def read_line(line: bytes) -> Line | None:
    """Return what a line (without its newline) says; None if it is not as it was written."""
    hex_end = len(line) - len(_END)
    body_end = len(line) - _HASH_BYTES
    if body_end < 1 or line[body_end : hex_end - _HEX] != _HASH or line[hex_end:] != _END:
        return None
    body = line[:body_end] + b"}"
    stored = line[hex_end - _HEX : hex_end]
    if hashlib.sha256(body).hexdigest().encode("ascii") != stored:
        return None
    try:
        record: Json = json.loads(body)
        seq, prev = record["seq"], record["prev"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(seq) is not int or not isinstance(prev, str):
        return None
    return Line(link=Link(seq=seq, hash=stored.decode("ascii")), prev=prev, record=record)
