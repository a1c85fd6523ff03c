"""Reads which servers were moved from clients' files behind the bridge.

`bridge.client_configs.move` stores a client's entries in a bridge file of the same format. The
manifest lists these files, and discovery reads each as a part of the client's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bridge.discovery.documents import MalformedError
from bridge.discovery.files import read_own
from bridge.discovery.report import ConfigWarning

MANIFEST = "moved.json"

_FORM = 1


@dataclass(frozen=True, kw_only=True)
class MovedEntry:
    """A moved entry: its keys from the root to the table of servers, and its index."""

    table: tuple[str, ...]
    name: str
    index: int


@dataclass(frozen=True)
class MovedFile:
    """Entries that were moved from a client's file `original` to the file `store`."""

    original: Path
    store: Path
    client: str
    entries: tuple[MovedEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """All moved entries, by the client's file."""

    files: Mapping[Path, MovedFile] = field(default_factory=dict)
    read: tuple[Path, ...] = ()  # The files that moved servers depend on, present or not.
    # Why no entry counts as moved, if the manifest cannot be read.
    warnings: tuple[ConfigWarning, ...] = ()


def read_moved(directory: Path | None) -> Moved:
    if directory is None:
        return Moved()
    path = directory / MANIFEST
    try:
        files = read_manifest(directory)
    except MalformedError as error:
        warning = ConfigWarning(path=str(path), key="", reason=str(error), unread=True, own=True)
        return Moved(read=(path,), warnings=(warning,))
    by_original = {each.original: each for each in files}
    return Moved(files=by_original, read=(path, *(each.store for each in files)))


def read_manifest(directory: Path) -> tuple[MovedFile, ...]:
    """Return the manifest, empty if absent. Raises `MalformedError` if it is damaged."""
    try:
        found = read_own(directory / MANIFEST, form=_FORM, private=True)
        return tuple(_file(each, directory) for each in (found["files"] if found else ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"the servers that were moved behind the bridge are not used: {error!s:.200}"
        raise MalformedError(message) from None


def manifest_text(files: tuple[MovedFile, ...]) -> bytes:
    written = [
        {
            "original": str(each.original),
            "store": each.store.name,
            "client": each.client,
            "entries": [asdict(entry) for entry in each.entries],
        }
        for each in files
    ]
    return json.dumps({"form": _FORM, "files": written}, indent=1).encode() + b"\n"


def _file(value: Mapping[str, Any], directory: Path) -> MovedFile:
    store = value["store"]
    if Path(store).name != store:
        raise ValueError(f"{store!r:.80} is not the name of a file next to it")
    entries = (MovedEntry(**{**each, "table": tuple(each["table"])}) for each in value["entries"])
    original = Path(value["original"])
    return MovedFile(original, directory / store, str(value["client"]), tuple(entries))
