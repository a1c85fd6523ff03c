"""The catalogue: what servers' tools were when last asked, kept between bridges.

Owns one document per server definition in the store: the tools, the version that listed them, and
when. With it the tools of fifty servers can be described and searched although none has been
started. It is never the last word: a run asks the server itself, and what is old is asked again in
the background (`bridge.servers.refresher`). What cannot be read is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from bridge.model import MEBIBYTE, ServerSpec, Tool
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * MEBIBYTE
"""Of one server's listing. Hundreds of tools with large schemas take a tenth of it."""

MAX_ENTRIES = 500
"""Listings kept. Definitions change as versions in their arguments do, and the old ones stay."""

MAX_TOTAL_BYTES = 128 * MEBIBYTE
"""Of all together; real listings take a few megabytes."""

MAX_AGE_SECONDS = 90 * 24 * 3600.0
"""A listing that was not renewed for this long belongs to a server that nobody has any more."""

_KIND = "listing"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A server's tools, and the circumstances in which it listed them.

    Attributes:
        server: The server's own name in the configuration.
        info: The name and version that it gave itself, and the protocol in use.
        listed_at: Seconds since the epoch.
        start_seconds: What it took to start it and list; None if it was running already.
        form: Another number is another version's.
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
    """Reads and writes listings; what cannot be read or written is as if it were not there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, spec: ServerSpec) -> Listing | None:
        """Return what this definition listed last time, if that is known."""
        return self.load_all([spec])[spec.name]

    def load_all(self, specs: Iterable[ServerSpec]) -> dict[str, Listing | None]:
        """Return what definitions listed last time, by their names, all of one moment."""
        named = {listing_digest(spec): spec for spec in specs}
        found: dict[str, bytes] = {}
        try:
            found = self._store.documents(_KIND, named)
        except OSError as error:
            logger.debug("what servers listed was not read: %s", error)
        return {spec.name: _listing(spec, found.get(name)) for name, spec in named.items()}

    def save(self, spec: ServerSpec, listing: Listing) -> None:
        """Keep a listing for the next bridge; of all of them what is old or too much goes."""
        data = _LISTING.dump_json(listing)
        if len(data) > MAX_BYTES:
            return
        try:
            with self._store.writing() as kept:
                kept.put(_KIND, "", listing_digest(spec), data)
                kept.prune(
                    _KIND,
                    most=MAX_ENTRIES,
                    most_bytes=MAX_TOTAL_BYTES,
                    oldest=time() - MAX_AGE_SECONDS,
                )
        except OSError as error:
            logger.debug("tools of %s are not kept: %s", spec.name, error)


def _listing(spec: ServerSpec, data: bytes | None) -> Listing | None:
    if data is None:
        return None
    try:
        listing = _LISTING.validate_json(data)
    except ValidationError as error:
        logger.debug("ignoring what %s listed: %s", spec.name, error)
        return None
    # One made for another name would put its tools under the wrong server.
    if listing.server != spec.name or any(tool.server != spec.name for tool in listing.tools):
        return None
    return listing


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
