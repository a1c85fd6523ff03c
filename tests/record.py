"""The record for programs in a result of the bridge."""

from __future__ import annotations

import re
from typing import Any

from mcp.types import CallToolResult, TextContent

from bridge.server.content import RECORD_KEY


def record_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is None
    assert result.meta is not None, result.content
    record = result.meta[RECORD_KEY]
    assert isinstance(record, dict), record
    return record


def text_of(result: Any) -> str:
    return "".join(texts_of(result))


def texts_of(result: Any) -> list[str]:
    """Return a result's texts, the first without the line with the run's ID."""
    found = [block.text for block in result.content if isinstance(block, TextContent)]
    return [re.sub(r"\n\[run [0-9a-f]{8}\]\Z", "", found[0]), *found[1:]] if found else []
