"""Imports the files of versions without a database, once, when the database is made.

Only data that cannot be made again: memories, with what their writers had read, approvals of
skills, and the pins of tools and servers. Listings, shapes, artifacts and sessions are not
imported. The files stay where they are; the CHANGELOG says which may be removed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.atomic_files import read_regular

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_PINS = "pins.json"
_SKILLS_READ = "skills-read.json"
_SKILLS_APPROVED = "skills-approved.json"
_MEMORIES = "memories"

_PINS_BYTES = 16 * 1024**2
_MEMORY_BYTES = 256 * 1024
_TRACES_BYTES = 2 * 1024**2

_DAMAGED = b"?"
"""In place of data that could not be read: its reader reports that, and assumes the worst."""

_OWNER = re.compile(r"[0-9a-f]{32}")
_MEMORY = re.compile(r"[0-9a-f]{40}\.json")


def has_legacy_files(directory: Path) -> bool:
    """Return whether a directory has files of an earlier version to import."""
    return any(
        (directory / name).exists() for name in (_PINS, _SKILLS_READ, _SKILLS_APPROVED, _MEMORIES)
    )


def import_legacy_files(connection: Connection, documents: Table, directory: Path) -> None:
    """Import the files of earlier versions into an empty database.

    Raises:
        OSError: A file cannot be read. It must not count as absent.
    """

    def add(kind: str, owner: str, name: str, path: Path, most: int) -> None:
        with suppress(FileNotFoundError):
            try:
                data = read_regular(path, most)
            except ValueError:
                data = _DAMAGED
            row = {"kind": kind, "owner": owner, "name": name, "data": data, "size": len(data)}
            connection.execute(documents.insert().values(updated=path.lstat().st_mtime, **row))

    add("pins", "", "", directory / _PINS, _PINS_BYTES)
    add("read", "skills", "", directory / _SKILLS_READ, _TRACES_BYTES)
    add("approved", "skills", "", directory / _SKILLS_APPROVED, _TRACES_BYTES)
    memories = directory / _MEMORIES
    if not memories.is_dir():
        return
    for folder in memories.iterdir():
        if not _OWNER.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        add("read", f"memories/{folder.name}", "", folder / ".read", _TRACES_BYTES)
        for path in folder.iterdir():
            if _MEMORY.fullmatch(path.name) and not path.is_symlink():
                add("memory", folder.name, path.stem, path, _MEMORY_BYTES)
