"""Makes MCP tool results: the content for the model, and the record for programs.

Many clients show their model structured content instead of the text. So the record is in `_meta`,
which models do not see, unless the user wants structured content.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

import mcp_types as types

from bridge.errors import BridgeError
from bridge.gate.privacy import clear_value
from bridge.gate.redaction import Redactor
from bridge.model import Artifact, RunResult, ShownContent, Status
from bridge.render.structured import to_structured
from bridge.render.text import compact
from bridge.runs import Engine
from bridge.settings import RecordPlace
from bridge.text import counted

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RECORD_KEY = "mcp-code-bridge/result"  # In a result's `_meta`.


def tool_result(
    content: Sequence[types.ContentBlock],
    record: dict[str, Any],
    place: RecordPlace,
    *,
    is_error: bool = False,
) -> types.CallToolResult:
    result = types.CallToolResult(content=list(content), is_error=is_error)
    if place == "content":
        result.structured_content = record
    else:
        result.meta = {RECORD_KEY: record}
    return result


def make_tool(
    name: str, title: str, *, reads: bool = False, open_world: bool = False, **more: Any
) -> types.Tool:
    """Return a tool; `reads` marks one that changes nothing."""
    hints = types.ToolAnnotations(
        title=title,
        read_only_hint=reads,
        destructive_hint=not reads,
        idempotent_hint=reads,
        open_world_hint=open_world,
    )
    # Claude Code's highest limit. Without it, Claude Code shows its model only 2,000 characters of
    # a result above 50,000. The bridge cuts results itself.
    more["_meta"] = {"anthropic/maxResultSizeChars": 500_000, **more.get("_meta", {})}
    return types.Tool(name=name, title=title, annotations=hints, **more)


async def result_or_error(
    what: str, work: Awaitable[Result], failed: Callable[[BridgeError], Result]
) -> Result:
    """Return the result of `work`, or of `failed` if `work` raises an error."""
    try:
        return await work
    except BridgeError as error:
        logger.info("%s refused: %s", what, error)
        return failed(error)
    except Exception:
        # A request's boundary: a defect must not end other requests.
        logger.exception("a %s failed inside the bridge", what)
        return failed(BridgeError("The bridge failed; its log has the details."))


Kind = str | tuple[str, ...] | list[Any] | dict[str, Any]
"""A field's type: a JSON Schema type or "any", the allowed texts, a list of one kind, or fields."""


def record_schema(fields: dict[str, Kind]) -> dict[str, Any]:
    """Return the JSON Schema of a record with these fields and the common ones."""
    common: dict[str, Kind] = {"runId": "string", "status": get_args(Status), "summary": "string"}
    return {**_schema({**common, **fields}), "required": list(common)}


def _schema(kind: Kind) -> dict[str, Any]:
    if isinstance(kind, dict):
        fields = {name: _schema(each) for name, each in kind.items()}
        return {"type": "object", "properties": fields}
    if isinstance(kind, list):
        return {"type": "array", "items": _schema(kind[0])}
    if isinstance(kind, tuple):
        return {"type": "string", "enum": list(kind)}
    return {} if kind == "any" else {"type": kind}


LINKS_SINCE = "2025-06-18"
"""The first protocol version with links. Clients of earlier ones reject a result that has one."""


def to_result(
    result: RunResult, engine: Engine, *, protocol_version: str = LINKS_SINCE
) -> types.CallToolResult:
    text = types.TextContent(text=compact(result, engine.settings.output_mode))
    links = _links(result.artifacts) if protocol_version >= LINKS_SINCE else ()
    return tool_result(
        [text, *_shown(result.shown), *links],
        to_structured(result),
        engine.settings.structured,
        is_error=result.status not in ("success", "running"),
    )


def redact_content(result: types.CallToolResult, redactor: Redactor) -> None:
    for block in result.content:
        if isinstance(block, types.TextContent):
            block.text = redactor.text(block.text)
        elif isinstance(block, types.ResourceLink):
            block.name = redactor.text(block.name)
    result.structured_content = clear_value(result.structured_content, redactor)
    if result.meta and RECORD_KEY in result.meta:
        result.meta[RECORD_KEY] = clear_value(result.meta[RECORD_KEY], redactor)


def link_fields(artifact: Artifact) -> dict[str, object]:
    return {
        "uri": artifact.uri,
        "name": artifact.name or artifact.kind,
        "mime_type": artifact.mime_type,
        "size": artifact.size,
    }


def _shown(items: Sequence[ShownContent]) -> Iterable[types.ContentBlock]:
    for item in items:
        if item.data:
            data = base64.b64encode(item.data).decode()
            yield types.ImageContent(data=data, mime_type=item.mime_type)
        elif item.text:
            yield types.TextContent(text=item.text)


def _links(artifacts: Sequence[Artifact]) -> Iterable[types.ContentBlock]:
    # The text says how to read the rest of the output. The record has all links.
    linked = [artifact for artifact in artifacts if artifact.kind not in ("stdout", "stderr")]
    for artifact in linked[:50]:
        yield types.ResourceLink.model_validate(link_fields(artifact))
    more = len(linked) - 50
    if more > 0:
        text = f"And {counted(more, 'thing')} more that the program left, all among the resources."
        yield types.TextContent(text=text)
