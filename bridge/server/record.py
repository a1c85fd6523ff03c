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


_PARSES_TEXT = ("gemini-cli-mcp-client",)
"""Clients, by how the names begin that they introduce themselves with. Gemini CLI 0.61.0 takes a
first text that is JSON for structured content where there is none, and refuses the whole result if
that is no object: `print(1+1)` is an error to its model. It shows the text in any case."""

_SHOWS_FAILURES = ("gemini-cli-mcp-client", "qwen-cli-mcp-client")
"""Gemini CLI 0.61.0 and Qwen Code 0.24.4 give their models failed results as JSON, with `_meta`. A
traceback of 74 tokens costs 500 with the record in it."""


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


def fit_to(client: str, result: types.CallToolResult) -> None:
    """Change a result so that the model of a client gets its text, and little else.

    Args:
        client: The name that it introduced itself with.
    """
    if result.is_error and client.startswith(_SHOWS_FAILURES):
        result.meta = None
    if not result.is_error and client.startswith(_PARSES_TEXT):
        result.structured_content = result.structured_content or {}


def output_schema(schema: dict[str, Any], place: RecordPlace) -> dict[str, Any] | None:
    """Return the schema that a tool announces; None where its results have no structured content.

    A client that knows a schema refuses results without structured content.
    """
    return schema if place == "content" else None
