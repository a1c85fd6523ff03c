"""The MCP resources, and notifications of changed lists and resources.

Owns the URIs, the pages of the list and the parts of large contents. A client sees only its own
artifacts, and only the owner is notified of them. The guide names a client's roots, but sandboxes
do not mount them. A notified client drops its prompt cache. So clients are notified only if a
list's text differs, and once for many changes.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

import anyio
import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bridge.artifacts.content import parse_part, read_part
from bridge.artifacts.store import ARTIFACTS_URI, RUNS_URI, ArtifactStore
from bridge.errors import ArtifactStoreError, BridgeError, UnknownError
from bridge.gate.redaction import Redactor
from bridge.model import Artifact, Json
from bridge.render.structured import held_fields
from bridge.runs import Engine
from bridge.server.clients import Context, is_modern, list_roots
from bridge.server.content import link_fields
from bridge.sessions.table import Listed

logger = logging.getLogger(__name__)

CAPABILITIES_URI = "bridge://capabilities"
SERVERS_URI = "bridge://servers"
TOOLS_URI = "bridge://tools/"
STUBS_URI = "bridge://stubs/"
SESSIONS_URI = "bridge://sessions"

_JSON = "application/json"
_OWN = (
    (CAPABILITIES_URI, "What a program can do", "text/markdown"),
    (SERVERS_URI, "Discovered MCP servers", _JSON),
    (SESSIONS_URI, "Your sessions, and what they hold", _JSON),
)
"""The resources of all clients: URI, title and type."""

_PART = "{?offset,length,lines}"
_LINES = "lines is 100-200, 100- or -50."

_TEMPLATES = [
    types.ResourceTemplate(
        uri_template=TOOLS_URI + "{server}",
        name="tools",
        title="Tools of one server, with their schemas",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        uri_template=STUBS_URI + "{server}",
        name="stubs",
        title="Tools of one server, as typed Python",
        mime_type="text/x-python",
    ),
    types.ResourceTemplate(
        uri_template=ARTIFACTS_URI + "{id}" + _PART,
        name="artifacts",
        title="What a run left, or bytes or lines of it",
        description=f"offset and length are bytes; {_LINES}",
    ),
    types.ResourceTemplate(
        uri_template=RUNS_URI + "{run}/{stream}" + _PART,
        name="outputs",
        title="The whole output of a run, or bytes or lines of it",
        description=f"stream is stdout, stderr or result; {_LINES}",
        mime_type="text/plain",
    ),
]

_DESCRIPTIONS = {
    "file": "A file that the program left.",
    "stdout": "All that the program wrote to stdout.",
    "stderr": "All that the program wrote to stderr.",
    "result": "The result of a run whose client did not get it.",
    "shown": "The original of something that the program showed.",
}

PAGE = 100  # Artifacts in one answer to `resources/list`.


class Resources:
    """The request handlers; the low-level server handles no errors for them."""

    def __init__(self, engine: Engine, owner: Callable[[Context], str], notices: Notices) -> None:
        self._engine = engine
        self._owner = owner
        self._notices = notices

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the guide, the servers, each server's tools, and the newest artifacts."""
        page, after = 0, ""
        if params is not None and params.cursor is not None:
            match = re.fullmatch(r"([1-4])/([0-9a-f]{12}\.[0-9a-f]{20})", params.cursor)
            if match is None:
                raise MCPError(types.INVALID_PARAMS, "The cursor does not belong to this list.")
            page, after = int(match[1]), match[2]
        resources = [] if page else await self._own()
        await self._notices.note_listing(context)
        kept, more = await self._kept(self._owner(context), after)
        redactor = self._engine.servers.secrets.redactor
        for artifact in kept:
            fields = {**link_fields(artifact), "description": _DESCRIPTIONS[artifact.kind]}
            resource = types.Resource.model_validate(fields)
            resource.name = redactor.text(resource.name)
            resources.append(resource)
        # Five pages: clients show the list to people, and some read all of it at each start.
        following = f"{page + 1}/{more}" if more and page + 1 < 5 else None
        return types.ListResourcesResult(resources=resources, next_cursor=following)

    async def _kept(self, owner: str, after: str) -> tuple[tuple[Artifact, ...], str]:
        """Return a page of an owner's artifacts, and where the next page begins."""
        if not owner:
            # Clients without an identity list nothing. They have the URIs of their results, which
            # cannot be guessed.
            return (), ""
        try:
            page = partial(self._engine.artifacts.page, owner, PAGE, after)
            return await self._engine.artifacts.run(page)
        except ArtifactStoreError as error:
            # The other resources can still be listed.
            logger.warning("what runs left cannot be listed: %s", error)
            return (), ""

    async def _own(self) -> list[types.Resource]:
        await self._engine.servers.refresh()
        own = [
            types.Resource(uri=uri, name=uri.removeprefix("bridge://"), title=title, mime_type=kind)
            for uri, title, kind in _OWN
        ]
        own.extend(
            types.Resource(
                uri=TOOLS_URI + quote(name, safe=""), name=f"tools of {name}", mime_type=_JSON
            )
            for name in self._engine.servers.names()
        )
        return own

    async def list_resource_templates(
        self, context: Context, params: object
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=_TEMPLATES)

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        redactor = self._engine.servers.secrets.redactor
        try:
            if uri.startswith((ARTIFACTS_URI, RUNS_URI)):
                owner = self._owner(context)
                work = partial(_kept_contents, self._engine.artifacts, owner, uri, redactor)
                return types.ReadResourceResult(contents=await self._engine.artifacts.run(work))
            mime_type, text = await self._read(uri, context)
        except UnknownError:
            # The error must not show that another caller has it.
            raise _unknown(uri, context) from None
        except BridgeError as error:
            mine = isinstance(error, ArtifactStoreError)
            code = types.INTERNAL_ERROR if mine else types.INVALID_PARAMS
            raise MCPError(code, redactor.text(str(error))) from None
        return types.ReadResourceResult(contents=[_text(uri, mime_type, redactor.text(text))])

    async def _read(self, uri: str, context: Context) -> tuple[str, str]:
        if uri == SESSIONS_URI:
            owner = self._owner(context)
            # A caller without an identity sees no session: only its id opens one.
            sessions = await self._engine.sessions.listed(owner) if owner else ()
            document = {"sessions": [_session_fields(session) for session in sessions]}
            return _JSON, json.dumps(document, ensure_ascii=False)
        await self._engine.servers.refresh()
        guide = self._engine.guide
        if uri == CAPABILITIES_URI:
            # Since 2026-07-28 a question costs another request, too much for a guide.
            listed = [] if is_modern(context) else (await list_roots(context))[:40]
            roots = tuple((root.get("name") or "", root["uri"]) for root in listed)
            return "text/markdown", guide.capabilities(roots=roots)
        if uri == SERVERS_URI:
            return _JSON, guide.servers_json()
        if uri.startswith(TOOLS_URI):
            return _JSON, await guide.tools_json(unquote(uri.removeprefix(TOOLS_URI)))
        if uri.startswith(STUBS_URI):
            return "text/x-python", await guide.server_stub(unquote(uri.removeprefix(STUBS_URI)))
        raise _unknown(uri, context)


def _session_fields(session: Listed) -> dict[str, Json]:
    record = session.record
    fields: dict[str, Json] = {
        "id": record.session_id,
        "name": record.name,
        "state": session.state,
        "runs": record.runs,
        "idleSeconds": round(session.idle_seconds),
        "memoryLimitBytes": session.memory_bytes or None,
        "holds": held_fields(record.holdings.holds),
        "more": record.holdings.more or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


Contents = types.TextResourceContents | types.BlobResourceContents


def _text(uri: str, mime_type: str, text: str) -> types.TextResourceContents:
    return types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)


def _kept_contents(
    store: ArtifactStore, owner: str, uri: str, redactor: Redactor
) -> list[Contents]:
    """Return a part of an artifact and, if there is more, how to read on. Blocks."""
    whole, _, query = uri.partition("?")
    with store.opened(owner, whole) as content:
        part = read_part(content, parse_part(query))
        mime_type = content.artifact.mime_type
    contents: list[Contents] = []
    if part.text is None:
        data = base64.b64encode(part.data).decode("ascii")
        contents.append(types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=data))
    else:
        contents.append(_text(uri, mime_type, redactor.text(part.text)))
    if not part.whole:
        following = f"{whole}?{part.more}" if part.more else whole
        contents.append(_text(following, "text/plain", part.describe(whole)))
    return contents


def _unknown(uri: str, context: Context) -> MCPError:
    # -32002 is for clients that used `initialize`.
    code = types.INVALID_PARAMS if is_modern(context) else -32002
    return MCPError(code, f"Unknown resource {uri!r:.200}.", {"uri": uri[:2048]})


MAX_URIS = 100  # Subscriptions of a client, of 2,048 characters each.


class NotifyingServer(Server[Any]):
    """A server that announces changing lists in every handshake, over HTTP as well."""

    def __init__(self, name: str, notices: Notices, **rest: Any) -> None:
        super().__init__(name, on_subscriptions_listen=notices.handle_listen, **rest)
        self.notices = notices

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **others: Any
    ) -> InitializationOptions:
        """Return the handshake's options; the SDK's transports pass no options."""
        own = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(notification_options or own, *more, **others)


class OwnedBus(InMemorySubscriptionBus):
    """Sends each event only to the streams of its owner."""

    def __init__(self) -> None:
        super().__init__()
        # The owner of the next stream that this task opens.
        self.owner: ContextVar[str] = ContextVar("owner", default="")
        self._receiver: str | None = None

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        owner = self.owner.get()

        def forward(event: ServerEvent) -> None:
            if self._receiver in (None, owner):
                listener(event)

        return super().subscribe(forward)

    async def publish(self, event: ServerEvent, owner: str | None = None) -> None:
        # All listeners run before another task does.
        self._receiver = owner
        await super().publish(event)


@dataclass(eq=False)
class _Subscriptions:
    """The subscriptions of a connection that used `initialize`."""

    owner: str
    lists: bool = False  # Whether it has requested a list, and is notified of changes.
    uris: set[str] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class Notices:
    """Notifies the clients of one server of changes to what `tools` and `resources` return."""

    _tools: Callable[[], Awaitable[Hashable]]
    _resources: Callable[[], Hashable]
    owner: Callable[[Context], str] = lambda _: ""
    _: KW_ONLY
    quiet_seconds: float = 0.5

    def __post_init__(self) -> None:
        self._last_tools: Hashable = None
        self._last_resources: Hashable = None
        self._connections: WeakKeyDictionary[Connection, _Subscriptions] = WeakKeyDictionary()
        self._news: set[tuple[str, str]] = set()
        self._bus = OwnedBus()
        self._changed = anyio.Event()
        self._listen = ListenHandler(self._bus, max_subscriptions=1024, max_buffered_events=64)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def handle_listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Handle `subscriptions/listen` (2026-07-28) until the client closes the stream."""
        uris = params.notifications.resource_subscriptions or ()
        if len(uris) > MAX_URIS or any(len(str(uri)) > 2048 for uri in uris):
            raise _too_many_error()
        self._bus.owner.set(self.owner(context))
        return await self._listen(context, params)

    def end_streams(self) -> None:
        self._listen.close()

    async def subscribe(
        self, context: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Handle `resources/subscribe` of a client that used `initialize`.

        The URI is not checked: a client is never notified of a resource that it may not read.
        """
        own, uri = self._subscriptions_of(context), str(params.uri)
        if own is not None:
            if uri not in own.uris and len(own.uris) >= MAX_URIS or len(uri) > 2048:
                raise _too_many_error()
            own.uris.add(uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        own = self._subscriptions_of(context)
        if own is not None:
            own.uris.discard(str(params.uri))
        return types.EmptyResult()

    def _subscriptions_of(self, context: Context) -> _Subscriptions | None:
        """Return the subscriptions of a client's connection; None since 2026-07-28."""
        # The SDK makes a session for each request and has no public access to the connection.
        connection = context.session._connection
        if connection.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return None
        own = self._connections.get(connection)
        if own is None:
            own = self._connections[connection] = _Subscriptions(self.owner(context))
        return own

    async def note_listing(self, context: Context) -> None:
        """Record that a client has requested a list and must be notified of changes."""
        own = self._subscriptions_of(context)
        if own is not None:
            own.lists = True
        # `run` notifies clients that saw an earlier list.
        if self._last_tools is None:
            self._last_tools = await self._tools()
        if self._last_resources is None:
            self._last_resources = self._resources()

    def note_update(self, uri: str, owner: str) -> None:
        """Record a change of an owner's resource; without `uri`, of the owner's list."""
        if len(self._news) < 1000:  # Clients find the rest by listing.
            self._news.add((uri, owner))
            self._changed.set()

    def note_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Compare lists and notify clients until cancelled."""
        while True:
            await self._changed.wait()
            with anyio.move_on_after(5.0):
                quiet = False
                while not quiet:
                    self._changed = anyio.Event()
                    with anyio.move_on_after(self.quiet_seconds) as wait:
                        await self._changed.wait()
                    quiet = wait.cancelled_caught
            self._changed = anyio.Event()
            try:
                await self._compare()
            except Exception:
                # A client that requests the list gets the same error.
                logger.exception("clients could not be notified of a change")

    async def _compare(self) -> None:
        news, self._news = self._news, set()
        # No client has seen a list before the first request.
        if self._last_tools is not None:
            tools, resources = await self._tools(), self._resources()
            if tools != self._last_tools:
                self._last_tools = tools
                await self._publish(ToolsListChanged())
            if resources != self._last_resources:
                self._last_resources = resources
                news = {(uri, owner) for uri, owner in news if uri}
                await self._publish(ResourcesListChanged())
        for uri, owner in news:
            await self._publish(ResourceUpdated(uri=uri) if uri else ResourcesListChanged(), owner)

    async def _publish(self, event: ServerEvent, owner: str | None = None) -> None:
        """Notify all clients of an event, or only those of one owner."""
        await self._bus.publish(event, owner)
        uri = event.uri if isinstance(event, ResourceUpdated) else None

        async def notify(connection: Connection) -> None:
            with anyio.move_on_after(5.0):  # A client that does not read must not delay others.
                if uri is not None:
                    await connection.send_resource_updated(uri)
                elif isinstance(event, ToolsListChanged):
                    await connection.send_tool_list_changed()
                else:
                    await connection.send_resource_list_changed()

        async with anyio.create_task_group() as tasks:
            for connection, own in tuple(self._connections.items()):
                wanted = own.lists if uri is None else uri in own.uris
                if wanted and owner in (None, own.owner):
                    tasks.start_soon(notify, connection)


def _too_many_error() -> MCPError:
    message = f"A client may subscribe to {MAX_URIS} resources of 2,048 characters at most."
    return MCPError(types.INVALID_PARAMS, message)
