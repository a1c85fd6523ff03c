"""Removing old files of the audit log so that it does not look like tampering.

Owns which files are too old, the record that is written before they go, and their removal. The
record names each file with the place of its last record: that is what the first file that stays
goes on from, and how a reader knows that what came before was removed by rule.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta

from bridge.gate.audit.folder import file_end, list_files
from bridge.gate.audit.records import Record
from bridge.gate.audit.resuming import Name

MAX_AT_ONCE = 100
"""Files removed at a time; more wait for the next time, at the latest the next day."""


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What is to be removed.

    Attributes:
        record: To be written before.
        names: Of the files.
    """

    record: Record
    names: tuple[Name, ...]


def find_expired(folder: int, current: Name, *, today: str, days: int) -> Removal | None:
    """Return what is older than it may become.

    Args:
        current: The file that is being written, which stays.

    Raises:
        UnsafeError, OSError: Something cannot be read; nothing is to be removed then.
    """
    oldest = (date.fromisoformat(today) - timedelta(days=days)).isoformat()
    expired = [
        file.name for file in list_files(folder) if file.name.day < oldest and file.name < current
    ][:MAX_AT_ONCE]
    files: list[Record] = []
    for name in expired:
        last, _ = file_end(folder, name)
        # Without a last record there is nothing that what follows could go on from.
        files.append(
            {"file": str(name)}
            if last is None
            else {"file": str(name), "last": last.link.seq, "hash": last.link.hash}
        )
    if not files:
        return None
    return Removal(record={"kind": "retention", "days": days, "files": files}, names=tuple(expired))


def remove(folder: int, names: Sequence[Name]) -> None:
    """Remove files whose removal has been recorded; what stays is removed the next time."""
    for name in names:
        with suppress(OSError):
            os.unlink(str(name), dir_fd=folder)
