"""How a connection agrees on a protocol, and a view of answers as the server sent them.

Owns the choice of eras. A stdio server is greeted with `initialize` and nothing before it, because
some exit on any other first message; only one that answers that with an error is asked the newer
way. An HTTP server is asked the newer way first, which costs it one refused request at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp.types import PROTOCOL_VERSION_META_KEY, RequestId
from mcp_types.jsonrpc import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from bridge.model import Era, Json
from bridge.offload import offload
from bridge.upstream.listing import brief_page
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)

raw_answers: ContextVar[list[dict[str, Json]] | None] = ContextVar("raw_answers", default=None)
"""Where the answers to a task's requests are put as they came, before the SDK checks their shape.

The SDK raises, and so loses the result, when an answer does not fit the negotiated protocol
version; and it drops the fields that it does not know.
"""


MAX_UNANSWERED = 1_000
"""Requests that a server has made and that are not answered yet, over one connection. For each
there is a task and an answer in memory; of one that makes more the connection ends."""


class RecordingDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher, which also says when it ends and shows answers unparsed.

    It says when it begins with a notification, too, and when a server makes requests without end.
    Its public parts tell when a request has been acted on, not when its answer is on its way. So
    requests are counted where the SDK begins and ends their tasks.
    """

    def __init__(
        self,
        read: Any,
        write: Any,
        *,
        on_end: Callable[[], None],
        on_notice: Callable[[], None],
        on_flood: Callable[[], None],
    ) -> None:
        super().__init__(read, write)
        self._on_end = on_end
        self._on_notice = on_notice
        self._on_flood = on_flood
        self._flooded = False
        self._unanswered = 0
        self._discovered: Mapping[str, Json] = {}

    def envelope_of(self, version: str | None) -> dict[str, Json]:
        """Return the `_meta` that each request has in a protocol version; none in the older ones.

        The SDK keeps it to itself, and shows it in its first request.
        """
        if version not in MODERN_PROTOCOL_VERSIONS:
            return {}
        return {**self._discovered, PROTOCOL_VERSION_META_KEY: version}

    async def _dispatch_request(self, *args: Any) -> None:
        if self._unanswered >= MAX_UNANSWERED and not self._flooded:
            self._flooded = True
            self._on_flood()
        if self._flooded:
            return
        self._unanswered += 1
        await super()._dispatch_request(*args)

    async def _handle_request(self, *args: Any) -> None:
        try:
            await super()._handle_request(*args)
        finally:
            self._unanswered -= 1

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: RequestId | None = None,
    ) -> dict[str, Any]:
        """Send a request, keeping its answer for whoever asked for it through `raw_answers`."""
        if method == "server/discover" and params is not None:
            self._discovered = params.get("_meta", {})
        answer = await super().send_raw_request(
            method, params, opts, _related_request_id=_related_request_id
        )
        slot = raw_answers.get()
        if slot is not None:
            slot.append(dict(answer))
        if method == "tools/list":
            return await offload(answer, partial(brief_page, answer))
        return answer if slot is None else _emptied(answer)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        **options: Any,
    ) -> None:
        """Receive until the connection ends."""

        async def noticed(*notification: Any) -> None:
            self._on_notice()
            await on_notify(*notification)

        def intercepted(method: str, params: Mapping[str, Any] | None) -> bool:
            taken = on_notify_intercept is not None and on_notify_intercept(method, params)
            if taken:
                # It goes no further, and nothing may wait for it.
                self._on_notice()
            return taken

        try:
            await super().run(on_request, noticed, intercepted, **options)
        finally:
            self._on_end()


def _emptied(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer for the SDK, which makes models of all of it, on the event loop.

    Whoever asked reads the answer as it came.
    """
    empty: dict[str, Any] = {name: [] for name, value in answer.items() if isinstance(value, list)}
    return {
        **answer,
        **empty,
        **({"structuredContent": {}} if "structuredContent" in answer else {}),
    }


async def agree(client: ClientSession, endpoint: Endpoint, era: Era = "auto") -> None:
    """Settle the protocol version.

    Args:
        era: "legacy" sends `initialize` only, "modern" `server/discover` only.

    Raises:
        MCPError: The server refuses, or speaks nothing that we do.
    """
    if era == "modern":
        await client.discover()
        return
    modern_first = endpoint.transport == "http" and era == "auto"
    if modern_first:
        try:
            await client.discover()
        except MCPError as error:
            refusal = endpoint.refusal
            if _is_foreign(error) or (refusal is not None and refusal.wants_login):
                raise
        except (ValidationError, RuntimeError):
            logger.debug("the answer to server/discover is no proof of a newer server")
        else:
            return
    try:
        await client.initialize()
    except MCPError as error:
        unsupported = error.code == UNSUPPORTED_PROTOCOL_VERSION
        if era == "legacy" or (endpoint.transport != "stdio" and not unsupported):
            raise
        try:
            await client.discover()
        except (MCPError, ValidationError, RuntimeError):
            # What it said to the handshake tells more than what it said to the second question.
            raise error from None


def _is_foreign(error: MCPError) -> bool:
    """Say whether the server named its versions, and a handshake is not among them."""
    if error.code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(error.data, Mapping):
        return False
    supported = error.data.get("supported")
    return isinstance(supported, list) and not set(map(str, supported)) & set(
        HANDSHAKE_PROTOCOL_VERSIONS
    )
