"""What a client's user has open: the client's roots, for the guide.

Owns the asking, and its bounds. They are names to talk about: nothing is mounted for them, and what
programs see of the host is for the settings alone to say.
"""

from __future__ import annotations

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from bridge.server.clients import Context

MAX_ROOTS = 40

ANSWER_SECONDS = 2.0
"""Clients have them at hand; the guide does not wait for one that does not answer."""


async def client_roots(context: Context) -> tuple[tuple[str, str], ...]:
    """Return name and address of each root that a client has; none where it cannot be asked.

    In the newer era a question is an answer that makes the client ask again, which a guide is not
    worth.
    """
    capabilities = context.session.client_capabilities
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if modern or capabilities is None or capabilities.roots is None:
        return ()
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    with anyio.move_on_after(ANSWER_SECONDS):
        try:
            request = types.ListRootsRequest()
            result = await context.session.send_request(
                request, types.ListRootsResult, metadata=metadata
            )
        except (MCPError, ValidationError):
            return ()
        return tuple((root.name or "", str(root.uri)) for root in result.roots[:MAX_ROOTS])
    return ()
