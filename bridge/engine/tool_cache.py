"""The catalogue: what servers' tools were when last asked, kept between bridges.

Owns one small file per server definition in the state directory: the tools, the version that listed
them, and when. With it the tools of fifty servers can be described and searched although none has
been started. It is never the last word: a run asks the server itself, and what is old is asked
again in the background (`bridge.engine.refreshing`).

Several bridges use the files at once. Each file is replaced as a whole, and what cannot be read is
as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from bridge.discovery.files import read_regular
from bridge.model import MEBIBYTE, ServerSpec, Tool
from bridge.saving import UNFINISHED, replace_file

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * MEBIBYTE
"""Of one server's listing. Hundreds of tools with large schemas take a tenth of it."""

MAX_ENTRIES = 500
"""Files kept. Definitions change as versions in their arguments do, and the old ones stay here."""

MAX_TOTAL_BYTES = 128 * MEBIBYTE
"""Of all files together; real listings take a few megabytes."""

MAX_AGE_SECONDS = 90 * 24 * 3600.0
"""A listing that was not renewed for this long belongs to a server that nobody has any more."""

_LEFTOVER_SECONDS = 3600.0
"""A temporary file this old was left by a bridge that ended while it wrote."""

_ENTRY = re.compile(r"[0-9a-f]{32}\.json")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A server's tools, and the circumstances in which it listed them.

    Attributes:
        server: The server's own name in the configuration.
        info: The name and version that it gave itself, and the protocol in use.
        listed_at: Seconds since the epoch.
        start_seconds: What it took to start it and list; None if it was running already.
        form: Of the file; another number is another version's file.
    """

    server: str
    tools: tuple[Tool, ...]
    info: Mapping[str, str] = field(default_factory=dict)
    listed_at: float = 0.0
    start_seconds: float | None = None
    form: Literal[2] = 2

    @property
    def schema_bytes(self) -> int:
        """Bytes of the tools as their server describes them, in compact JSON."""
        return sum(map(_described_bytes, self.tools))


_LISTING = TypeAdapter(Listing)


def listing_digest(spec: ServerSpec) -> str:
    """Return what identifies a server's list of tools between bridges: 32 hexadecimal digits."""
    identity = [
        spec.name,
        spec.definition,
        None if spec.tools.only is None else sorted(spec.tools.only),
        sorted(spec.tools.without),
    ]
    digest = hashlib.sha256(json.dumps(identity).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


class ToolCache:
    """Reads and writes the files; what cannot be read or written is as if it were not there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, spec: ServerSpec) -> Listing | None:
        """Return what this definition listed last time, if that is known."""
        path = self._path(spec)
        data = read_regular(path, limit=MAX_BYTES)
        if isinstance(data, str):
            return None
        try:
            listing = _LISTING.validate_json(data)
        except ValidationError as error:
            logger.debug("ignoring %s: %s", path, error)
            return None
        # A file made for another name would put its tools under the wrong server.
        if listing.server != spec.name or any(tool.server != spec.name for tool in listing.tools):
            return None
        return listing

    def save(self, spec: ServerSpec, listing: Listing) -> None:
        """Keep a listing for the next bridge."""
        data = _LISTING.dump_json(listing)
        if len(data) > MAX_BYTES:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(spec), data)
        except OSError as error:
            logger.debug("tools of %s are not kept: %s", spec.name, error)

    def prune(self, now: float) -> int:
        """Remove what is old or too much, the oldest first; return how many files went."""
        try:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in self._entries()]
        except OSError as error:
            logger.debug("the catalogue was not looked through: %s", error)
            return 0
        newest_first = sorted(
            ((status.st_mtime, status.st_size, name) for name, status in found), reverse=True
        )
        removed, count, size = 0, 0, 0
        for modified, length, name in newest_first:
            temporary = name.startswith(UNFINISHED)
            count, size = count + (not temporary), size + length
            old = now - modified > (_LEFTOVER_SECONDS if temporary else MAX_AGE_SECONDS)
            if old or (not temporary and (count > MAX_ENTRIES or size > MAX_TOTAL_BYTES)):
                try:
                    (self._directory / name).unlink(missing_ok=True)
                except OSError as error:
                    logger.debug("%s stays: %s", name, error)
                    continue
                removed += 1
        return removed

    def _entries(self) -> list[os.DirEntry[str]]:
        """Return the directory's entries that are ours by name, and nothing else's."""
        if not self._directory.is_dir():
            return []
        with os.scandir(self._directory) as found:
            return [
                entry
                for entry in found
                if _ENTRY.fullmatch(entry.name) or entry.name.startswith(UNFINISHED)
            ]

    def _path(self, spec: ServerSpec) -> Path:
        return self._directory / f"{listing_digest(spec)}.json"


def _described_bytes(tool: Tool) -> int:
    described = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
    }
    if tool.output_schema is not None:
        described["outputSchema"] = tool.output_schema
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace"))
