"""What a program may ask the host, method by method.

Owns the methods' parameters and answers. Parameters come from the guest and are checked before
anything acts on them; a mistake in them is answered so that the program's author can mend it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bridge.catalog.docs import Detail
from bridge.engine.guide import Guide
from bridge.engine.servers import Servers
from bridge.errors import BridgeError
from bridge.gate.calls import Gate
from bridge.model import Json
from bridge.rpc.dispatcher import CallFailedError, as_failed_call
from bridge.rpc.values import tool_error, wire_value

logger = logging.getLogger(__name__)

MAX_SEARCH_RESULTS = 50
"""More hits than this help nobody find anything."""


class Questions:
    """Answers one run's calls."""

    def __init__(self, servers: Servers, guide: Guide, gate: Gate) -> None:
        self._servers = servers
        self._guide = guide
        self._gate = gate
        self._methods: Mapping[str, Callable[[Mapping[str, Json]], Awaitable[Json]]] = {
            "call_tool": self._call_tool,
            "list_servers": self._list_servers,
            "list_tools": self._list_tools,
            "query_tool_docs": self._query_tool_docs,
            "search_tool_docs": self._search_tool_docs,
        }

    async def handle(self, method: str, params: Mapping[str, Json]) -> Json:
        """Answer one call.

        Raises:
            CallFailedError: The answer is an error.
        """
        answer = self._methods.get(method)
        if answer is None:
            message = f"The bridge has no method {method!r:.80}."
            raise CallFailedError(message, kind="usage")
        return await answer(params)

    async def _call_tool(self, params: Mapping[str, Json]) -> Json:
        name, tool = _text(params, "server"), _text(params, "tool")
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            message = f"arguments must be a dict, not {type(arguments).__name__}."
            raise CallFailedError(message, kind="usage", server=name, tool=tool)
        try:
            server = self._servers.resolve(name)
            result = await self._gate.call(server, tool, arguments)
        except BridgeError as error:
            raise as_failed_call(error, server=name, tool=tool) from error
        if params.get("raw") is True:
            return result
        error_text = tool_error(result)
        if error_text is not None:
            data = result.get("structuredContent")
            raise CallFailedError(error_text, kind="tool", server=server, tool=tool, data=data)
        return wire_value(result)

    async def _list_servers(self, params: Mapping[str, Json]) -> Json:
        return list(self._servers.names())

    async def _list_tools(self, params: Mapping[str, Json]) -> Json:
        server = await self._loaded(_text(params, "server"))
        return self._guide.server_docs(server, "full")

    async def _query_tool_docs(self, params: Mapping[str, Json]) -> Json:
        server = await self._loaded(_text(params, "server"))
        detail = _detail(params)
        if params.get("tool") is None:
            return self._guide.server_docs(server, detail)
        return self._guide.tool_docs(server, _text(params, "tool"), detail)

    async def _search_tool_docs(self, params: Mapping[str, Json]) -> Json:
        limit = params.get("limit", 5)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            message = "limit must be a whole number of at least 1."
            raise CallFailedError(message, kind="usage")
        self._gate.admit()
        names = tuple(name for name in self._servers.names() if self._gate.may_use(name))
        _, errors = await self._servers.load(names, tolerant=True)
        for name, error in errors.items():
            logger.warning("server %s is left out of a search: %s", name, error)
        found: list[dict[str, Any]] = self._guide.search(
            _text(params, "query"), min(limit, MAX_SEARCH_RESULTS), _detail(params)
        )
        return found

    async def _loaded(self, name: str) -> str:
        server = self._servers.resolve(name)
        self._gate.admit(server)
        await self._servers.load([server])
        return server


def _text(params: Mapping[str, Json], key: str) -> str:
    value = params.get(key)
    if not isinstance(value, str) or not value:
        message = f"{key} must be a string that is not empty, not {type(value).__name__}."
        raise CallFailedError(message, kind="usage")
    return value


def _detail(params: Mapping[str, Json]) -> Detail:
    detail = params.get("detail", "summary")
    if detail == "summary":
        return "summary"
    if detail == "full":
        return "full"
    message = 'detail must be "summary" or "full".'
    raise CallFailedError(message, kind="usage")
