"""A run's result as blocks of MCP content.

Owns which blocks there are and in which order: the text, then what was shown, then links to what is
kept. What the text says is decided in `bridge.render`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import mcp_types as types

from bridge.engine import Engine
from bridge.engine.clearing import clear_value
from bridge.gate.redaction import Redactor
from bridge.model import Artifact, RunResult, Shown
from bridge.render.structured import structured
from bridge.render.text import compact
from bridge.server.record import RECORD_KEY, tool_result
from bridge.text import counted

MAX_LINKS = 50
"""In one result: each is something that a model reads. All are in the record."""

_DESCRIPTIONS = {
    "file": "A file that the program left.",
    "stdout": "All that the program wrote to stdout.",
    "stderr": "All that the program wrote to stderr.",
    "shown": "The original of something that the program showed.",
}


LINKS_SINCE = "2025-06-18"
"""Version of the protocol; to clients of an earlier one a link is no content, and the whole result
none. The text names what is kept, too."""


def to_result(
    result: RunResult, engine: Engine, *, protocol_version: str = LINKS_SINCE
) -> types.CallToolResult:
    """Return what the client gets for a run.

    Args:
        protocol_version: Which the client speaks.
    """
    text = types.TextContent(text=compact(result, engine.settings.output_mode))
    links = _links(result.artifacts) if protocol_version >= LINKS_SINCE else ()
    return tool_result(
        [text, *_shown(result.shown), *links],
        structured(result),
        engine.settings.structured,
        is_error=result.status != "success",
    )


def cleared_content(result: types.CallToolResult, redactor: Redactor) -> None:
    """Take the secrets of this machine out of a result, whichever tool it is of."""
    for block in result.content:
        if isinstance(block, types.TextContent):
            block.text = redactor.text(block.text)
        elif isinstance(block, types.ResourceLink):
            block.name = redactor.text(block.name)
    result.structured_content = clear_value(result.structured_content, redactor)
    if result.meta and RECORD_KEY in result.meta:
        result.meta[RECORD_KEY] = clear_value(result.meta[RECORD_KEY], redactor)


def resource_fields(artifact: Artifact) -> dict[str, object]:
    """Return what a list says of something that is kept."""
    return {
        **link_fields(artifact),
        "description": _DESCRIPTIONS[artifact.kind],
    }


def link_fields(artifact: Artifact) -> dict[str, object]:
    """Return what a link says of it, which stands in a result beside the text that tells of it."""
    return {
        "uri": artifact.uri,
        "name": artifact.name or artifact.kind,
        "mime_type": artifact.mime_type,
        "size": artifact.size,
    }


def _shown(items: Sequence[Shown]) -> Iterable[types.ContentBlock]:
    for item in items:
        if item.data:
            data = base64.b64encode(item.data).decode()
            yield types.ImageContent(data=data, mime_type=item.mime_type)
        elif item.text:
            yield types.TextContent(text=item.text)


def _links(artifacts: Sequence[Artifact]) -> Iterable[types.ContentBlock]:
    # Of the rest of the output the text says how it is read.
    linked = [artifact for artifact in artifacts if artifact.kind not in ("stdout", "stderr")]
    for artifact in linked[:MAX_LINKS]:
        yield types.ResourceLink.model_validate(link_fields(artifact))
    more = len(linked) - MAX_LINKS
    if more > 0:
        text = f"And {counted(more, 'thing')} more that the program left, all among the resources."
        yield types.TextContent(text=text)
