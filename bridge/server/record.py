"""A tool's result as MCP has it: what a model reads, and the record that programs read.

Many clients show their model structured content in place of the text, so the record is in the
result's `_meta`, which reaches no model, unless the user asked for structured content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mcp_types as types

from bridge.settings import RecordPlace

RECORD_KEY = "mcp-code-bridge/result"
"""Of a result's `_meta`."""


def tool_result(
    content: Sequence[types.ContentBlock],
    record: dict[str, Any],
    place: RecordPlace,
    *,
    is_error: bool = False,
) -> types.CallToolResult:
    """Return a result with its record in `place`, and only there."""
    result = types.CallToolResult(content=list(content), is_error=is_error)
    if place == "content":
        result.structured_content = record
    else:
        result.meta = {RECORD_KEY: record}
    return result


def output_schema(schema: dict[str, Any], place: RecordPlace) -> dict[str, Any] | None:
    """Return the schema that a tool announces; None where its results have no structured content.

    A client that knows a schema refuses results without structured content.
    """
    return schema if place == "content" else None
