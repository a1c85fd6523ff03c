"""The record that a result of the bridge carries for programs."""

from __future__ import annotations

from typing import Any

from mcp.types import CallToolResult

from bridge.server.content import RECORD_KEY


def record_of(result: CallToolResult) -> dict[str, Any]:
    """Return a result's record."""
    assert result.structured_content is None
    assert result.meta is not None, result.content
    record = result.meta[RECORD_KEY]
    assert isinstance(record, dict), record
    return record
