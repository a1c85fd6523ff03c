"""Stores each server's last list of tools, which later bridges use without starting servers.

It has one document for each definition. An unreadable document counts as missing. A run still asks
the server itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Literal

from bridge.model import MEBIBYTE, ServerSpec, Tool
from bridge.store import Store, adapter

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * MEBIBYTE
"""Size of one listing, against a server's long list. Hundreds of large schemas take a tenth."""

AGE = 90 * 24 * 3600.0  # In seconds. A listing that was not renewed is of an unused server.

_KIND = "listing"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A server's list of tools.

    Attributes:
        info: As in `ServerState.server_info`.
        listed_at: Seconds since the epoch.
        start_seconds: Time of start and list; None if the server was already running.
        form: Version of this format; others are ignored.
    """

    server: str
    tools: tuple[Tool, ...]
    info: Mapping[str, str] = field(default_factory=dict)
    listed_at: float = 0.0
    start_seconds: float | None = None
    form: Literal[2] = 2

    @property
    def schema_bytes(self) -> int:
        return sum(map(_described_bytes, self.tools))


def listing_digest(spec: ServerSpec) -> str:
    identity = [
        spec.name,
        spec.definition,
        None if spec.tools.only is None else sorted(spec.tools.only),
        sorted(spec.tools.without),
    ]
    return hashlib.sha256(json.dumps(identity).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class ToolCache:
    """Reads and writes listings; logs and ignores failures."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, spec: ServerSpec) -> Listing | None:
        return self.load_all([spec]).get(spec.name)

    def load_all(self, specs: Iterable[ServerSpec]) -> dict[str, Listing]:
        named = {listing_digest(spec): spec for spec in specs}
        found: dict[str, bytes] = {}
        try:
            found = self._store.documents(_KIND, named)
        except OSError as error:
            logger.debug("stored lists of tools cannot be read: %s", error)
        listings: dict[str, Listing] = {}
        for name, data in found.items():
            spec = named[name]
            try:
                listing = adapter(Listing).validate_json(data)
            except ValueError as error:
                logger.debug("ignoring the stored tools of %s: %s", spec.name, error)
                continue
            # A listing of another name would attribute its tools to the wrong server.
            if {listing.server, *(tool.server for tool in listing.tools)} == {spec.name}:
                listings[spec.name] = listing
        return listings

    def save(self, spec: ServerSpec, listing: Listing) -> None:
        data = adapter(Listing).dump_json(listing)
        if len(data) > MAX_BYTES:
            return
        try:
            with self._store.writing() as kept:
                kept.put(_KIND, "", listing_digest(spec), data)
                kept.prune(_KIND, most=500, oldest=time() - AGE)
        except OSError as error:
            logger.debug("the tools of %s cannot be stored: %s", spec.name, error)


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
