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

RESULT_SIZE = {"anthropic/maxResultSizeChars": 500_000}
"""For a tool's `_meta`: the most that Claude Code takes. Without it, it writes results of more than
50,000 characters to a file and shows its model 2,000 of them. The bridge's are cut already, and say
how to read on."""


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
