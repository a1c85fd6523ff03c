"""Version negotiation, and a dispatcher that keeps results as the server sent them.

Differs from the SDK: over stdio `initialize` comes first, because some servers exit on any other
first message. Results are not validated, so callers get unknown fields too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
from mcp import ClientSession, MCPError, types
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from bridge.event_loop import offload
from bridge.model import Json, ProtocolMode
from bridge.upstream.listing import reduce_page
from bridge.upstream.transport import Endpoint, refusal_in

logger = logging.getLogger(__name__)

raw_results: ContextVar[list[dict[str, Json]] | None] = ContextVar("raw_results", default=None)
"""Collects the unvalidated results of a task's requests.

The SDK drops unknown fields, and loses a result that does not fit the negotiated revision.
"""


DISCOVER_TIMEOUT = 3.0  # Seconds, if `initialize` can follow; at most a third of the start's.

MAX_OPEN_REQUESTS = 1_000
"""Unanswered requests of a server over one connection. Each holds a task and a response in memory,
so the connection of a server that makes more is closed."""


class RecordingDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher, which also records raw results and limits the server's requests.

    It counts requests in private methods, because public ones do not see the sent response.
    """

    def __init__(
        self,
        read: Any,
        write: Any,
        endpoint: Endpoint,
        *,
        on_flood: Callable[[int], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        super().__init__(read, write)
        self._endpoint, self._on_flood, self._on_disconnect = endpoint, on_flood, on_disconnect
        self._flooded = False
        self._open_requests = 0
        self._discovered: Mapping[str, Json] = {}

    def request_meta(self, version: str | None) -> dict[str, Json]:
        """Return the `_meta` of each request, from `server/discover`; {} before 2026-07-28."""
        if version not in MODERN_PROTOCOL_VERSIONS:
            return {}
        return {**self._discovered, types.PROTOCOL_VERSION_META_KEY: version}

    async def _dispatch_request(self, *args: Any) -> None:
        if self._open_requests >= MAX_OPEN_REQUESTS and not self._flooded:
            self._flooded = True
            self._on_flood(MAX_OPEN_REQUESTS)
        if self._flooded:
            return
        self._open_requests += 1
        await super()._dispatch_request(*args)

    async def _handle_request(self, *args: Any) -> None:
        try:
            await super()._handle_request(*args)
        finally:
            self._open_requests -= 1

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """Send a request and add its result to `raw_results`, if that is set."""
        if method == "server/discover" and params is not None:
            self._discovered = params.get("_meta", {})
        answer = await super().send_raw_request(
            method, params, opts, _related_request_id=_related_request_id
        )
        slot = raw_results.get()
        if slot is not None:
            slot.append(dict(answer))
        if method == "tools/list":
            return await offload(answer, partial(reduce_page, answer))
        if slot is None:
            return answer
        # The SDK builds its models on the event loop, and the caller reads `raw_results`.
        empty: dict[str, Any] = {name: [] for name in answer if isinstance(answer[name], list)}
        if "structuredContent" in answer:
            empty["structuredContent"] = {}
        return {**answer, **empty}

    def _start_notification(self) -> None:
        if self._endpoint.direct is not None:
            self._endpoint.direct.start_notification()

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        **options: Any,
    ) -> None:

        async def notice(*notification: Any) -> None:
            self._start_notification()
            await on_notify(*notification)

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            taken = on_notify_intercept is not None and on_notify_intercept(method, params)
            if taken:
                # It is handled completely, so no response may wait for it.
                self._start_notification()
            return taken

        try:
            await super().run(on_request, notice, intercept, **options)
        finally:
            self._on_disconnect()


async def negotiate_version(
    client: ClientSession, endpoint: Endpoint, mode: ProtocolMode, start_timeout: float
) -> None:
    if mode == "modern":
        await client.discover()
        return
    modern_first = endpoint.transport == "http" and mode == "auto"
    # Some servers never answer a method that they do not know.
    patience = min(DISCOVER_TIMEOUT, start_timeout / 3)
    if modern_first:
        try:
            with anyio.move_on_after(patience):
                await client.discover()
                return
        except MCPError as error:
            # None of the revisions that the server lists may have `initialize`.
            data = error.data if error.code == types.UNSUPPORTED_PROTOCOL_VERSION else None
            supported = data.get("supported") if isinstance(data, Mapping) else None
            listed = set(map(str, supported)) if isinstance(supported, list) else None
            foreign = listed is not None and listed.isdisjoint(HANDSHAKE_PROTOCOL_VERSIONS)
            refusal, _ = refusal_in(error)
            if foreign or (refusal is not None and refusal.wants_login):
                raise
        except (ValidationError, RuntimeError):
            logger.debug("the result of server/discover is invalid; initialize follows")
    try:
        await client.initialize()
    except MCPError as error:
        unsupported = error.code == types.UNSUPPORTED_PROTOCOL_VERSION
        if mode == "legacy" or (endpoint.transport != "stdio" and not unsupported):
            raise
        # The error of `initialize` explains more than that of `server/discover`.
        with suppress(MCPError, ValidationError, RuntimeError), anyio.move_on_after(patience):
            await client.discover()
            return
        raise error from None
