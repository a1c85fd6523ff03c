"""One connection to one server, from its start to its end.

Owns the task that enters and leaves the connection: anyio's cancel scopes may not cross tasks, so
whoever wants something of a server asks through the connection and never opens or closes it. A
connection is used once; what comes after it is `session.py`'s decision. Waiting for a resource to
change, which each era of the protocol has its own way for, ends with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import anyio
from mcp import ClientSession
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.shared.exceptions import MCPError
from mcp.types import (
    EmptyResult,
    Implementation,
    ListRootsResult,
    LoggingMessageNotification,
    ProgressNotification,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    ToolListChangedNotification,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bridge import __version__
from bridge.errors import BridgeError, ServerStartError, UpstreamError
from bridge.model import Era, ServerSpec
from bridge.upstream.asking import Callers, forget_caller, roots_of
from bridge.upstream.direct import Direct
from bridge.upstream.failure import reason, start_error, start_timeout
from bridge.upstream.handshake import MAX_UNANSWERED, RecordingDispatcher, agree
from bridge.upstream.task_calls import EXTENSION
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)


UNSUBSCRIBE_SECONDS = 2.0
"""For telling a server that nobody waits any more."""


class ResourceUpdates:
    """Who waits for resources to change over one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[anyio.Event]] = {}

    def updated(self, uri: str) -> None:
        """Wake those who wait for a resource, or for one that this is a part of."""
        for watched in [each for each in self._waiting if uri.startswith(each)]:
            self._wake(watched)

    def end(self) -> None:
        """Wake all: the connection has ended, and the resources may have changed."""
        for watched in self._waiting:
            self._wake(watched)

    def _wake(self, watched: str) -> None:
        for event in self._waiting[watched]:
            event.set()

    async def wait(self, client: ClientSession, uri: str) -> None:
        """Return once a resource has changed, or it can no longer be told whether it has.

        Raises:
            MCPError: The server does not take the subscription.
        """
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            with suppress(SubscriptionLost):
                async with listen(client, resource_subscriptions=[uri]) as changes:
                    async for change in changes:
                        if isinstance(change, ResourceUpdated):
                            return
            return
        event = anyio.Event()
        events = self._waiting.setdefault(uri, set())
        events.add(event)
        try:
            wanted = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
            await client.send_request(wanted, EmptyResult)
            await event.wait()
        finally:
            events.discard(event)
            if not events:
                self._waiting.pop(uri, None)
                over = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
                with anyio.move_on_after(UNSUBSCRIBE_SECONDS, shield=True), suppress(Exception):
                    await client.send_request(over, EmptyResult)


SUBSCRIBE_ATTEMPTS = 3
"""How often notice of tool changes is asked for again after its stream was lost. Beyond that the
list is no longer cached, so that it cannot be stale."""

SUBSCRIBE_PAUSE_SECONDS = 1.0
"""Between those attempts: a server that is restarting needs a moment."""

PROBE_SECONDS = 10.0
"""For any answer, after a request had none. A server that does one thing at a time may still be at
that request; one that is silent for this long, although the request is cancelled, is replaced."""

Listed = Literal["tools", "resources", "prompts"]
"""What servers have lists of, and may say that it has changed."""

_EVENTS: dict[type, Listed] = {
    ToolsListChanged: "tools",
    ResourcesListChanged: "resources",
    PromptsListChanged: "prompts",
}

CLIENT_INFO = Implementation(name="mcp-code-bridge", version=__version__)


class Link:
    """A connection and its owner task.

    Attributes:
        ready: Set once it can be used or has failed.
        ended: Set once nothing of it is left.
        client: What to send requests through, from `ready` on.
        failure: Why it never became usable.
        account: What is known about its end, once it has ended or is to end.
        idle: It was closed because nobody used it.
        uses, listings: How often it was taken into use, and how often of that to list its tools.
        cacheable: The server tells us when its tools change.
        tasked: Tools that have to be called as tasks; None while they were not listed.
        updates: Who waits for its resources to change.
        roots: The user's directories that the server may know.
    """

    def __init__(
        self,
        spec: ServerSpec,
        endpoint: Endpoint,
        *,
        admit: Callable[[], Awaitable[None]],
        start_timeout: float,
        idle_seconds: float | None,
        remedy: str,
        on_tools_changed: Callable[[], None],
        on_offers_changed: Callable[[Literal["resources", "prompts"]], None] = lambda kind: None,
        roots: Sequence[Path] = (),
        era: Era = "auto",
    ) -> None:
        self.spec = spec
        self._era = era
        self.endpoint = endpoint
        self.ready = anyio.Event()
        self.ended = anyio.Event()
        self.listing = anyio.Lock()
        self.client: ClientSession | None = None
        self.failure: BridgeError | None = None
        self.account = ""
        self.idle = False
        self.uses = 0
        self.listings = 0
        self.cacheable = True
        self.tasked: frozenset[str] | None = None
        self.updates = ResourceUpdates()
        self._admit = admit
        self._start_timeout = start_timeout
        self._idle_seconds = idle_seconds
        self._remedy = remedy
        self._on_tools_changed = on_tools_changed
        self._on_offers_changed = on_offers_changed
        self.roots = roots
        self._callers = Callers(spec.name)
        self._stop = anyio.Event()
        self._over = anyio.Event()
        self._doubt = anyio.Event()
        self._retiring = False
        self._broken = False
        self._gone = False
        self._users = 0
        self._last_used = 0.0

    def __repr__(self) -> str:
        return (
            f"<Link {self.spec.name!r} ready={self.ready.is_set()} usable={self.usable} "
            f"users={self._users} ended={self.ended.is_set()}>"
        )

    @property
    def usable(self) -> bool:
        """Whether new requests may be given to it; true while it starts."""
        return not (self._broken or self._retiring or self._stop.is_set())

    @property
    def modern(self) -> bool:
        """Whether the newer protocol was agreed on."""
        return self.client is not None and self.client.discover_result is not None

    @property
    def direct(self) -> Direct | None:
        """The short way for requests, once the connection is ready and if it has one."""
        return None if self.client is None else self.endpoint.direct

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep it from being closed as idle or as retired; what it asks meanwhile is the user's."""
        self._users += 1
        self.uses += 1
        try:
            with self._callers.use():
                yield
        finally:
            self._users -= 1
            self._last_used = anyio.current_time()
            if self._retiring and not self._users:
                self.stop()

    def stop(self) -> None:
        """Have it closed now; requests under way fail."""
        self._stop.set()
        self._over.set()

    def rest(self) -> bool:
        """Have it closed as idle if it was never used for more than its list of tools."""
        if self._users or not (self.ready.is_set() and self.usable) or self.uses > self.listings:
            return False
        self.idle = True
        self.stop()
        return True

    def abandon(self) -> None:
        """Take no new requests, since the server's end of it is gone."""
        self._broken = True
        self._over.set()

    def doubt(self) -> None:
        """Have it found out whether the server still answers: a request had no answer."""
        self._doubt.set()

    def retire(self, account: str = "") -> None:
        """Take no new requests, and close once those under way have ended.

        No bound of its own: each of them has a timeout.

        Args:
            account: Why, if it is the server's fault.
        """
        self._retiring = True
        self.account = self.account or account
        if not self._users:
            self.stop()

    async def run(self, after: anyio.Event | None) -> None:
        """Own the connection. Raises nothing of the connection's own faults.

        Args:
            after: Waited for first, so that a server is never run twice at a time.
        """
        try:
            if after is not None:
                await after.wait()
            await self._admit()
            # Started by the task of whoever called first, for whom it does not act alone.
            forget_caller()
            await self._connect_either_way()
        except Exception as error:
            # The boundary of one connection: whatever broke it must not break the others.
            self._record(error)
        finally:
            self._broken = True
            self.account = f"{self.account} {self.endpoint.account()}".strip()
            if self.client is None and self.failure is None:
                self.failure = ServerStartError(
                    f"Server {self.spec.name!r} did not start: it was closed first.",
                    server=self.spec.name,
                    remedy="Call again.",
                )
            self.ready.set()
            self.ended.set()

    async def _connect_either_way(self) -> None:
        first = self.endpoint
        try:
            await self._connect()
        except Exception:
            second = first.alternative()
            if self.client is not None or second is None:
                raise
            self.endpoint = second
            try:
                await self._connect()
            except Exception as error:
                logger.debug("server %r: nor is it an event stream: %r", self.spec.name, error)
            if self.client is None:
                self.endpoint = first
                raise

    async def _connect(self) -> None:
        self._gone = False
        deadline = anyio.current_time() + self._start_timeout
        with anyio.CancelScope(deadline=deadline) as scope:
            async with self.endpoint.open() as (read, write):
                dispatcher = RecordingDispatcher(
                    read,
                    write,
                    on_end=self._notice_end,
                    on_notice=self._notice,
                    on_flood=self._notice_flood,
                )
                async with ClientSession(
                    dispatcher=dispatcher,
                    message_handler=self._receive,
                    client_info=CLIENT_INFO,
                    # Offered to every server, though not every client can be asked: connections
                    # outlive clients, and which tools a server has must not depend on who came
                    # first. A question that its client cannot take is refused when it comes.
                    elicitation_callback=self._callers.elicit,
                    sampling_callback=self._callers.sample,
                    # With this offer some servers replace their own directories.
                    list_roots_callback=self._list_roots if self.roots else None,
                    extensions={EXTENSION: {}},
                ) as client:
                    if not await self._start(client, dispatcher):
                        return
                    # The scope has to stay open around the connection; only its deadline ends here.
                    scope.deadline = math.inf
                    await self._serve(client)
        if scope.cancelled_caught and self.client is None:
            self.failure = start_timeout(
                self.spec,
                self._start_timeout,
                account=self.endpoint.account(),
                remedy=self._remedy,
            )

    async def _start(self, client: ClientSession, dispatcher: RecordingDispatcher) -> bool:
        """Agree with the server, unless the connection is stopped first."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._cancel_on_stop, tg.cancel_scope)
            await agree(client, self.endpoint, self._era)
            if self.endpoint.direct is not None:
                self.endpoint.direct.envelope = dispatcher.envelope_of(client.protocol_version)
            self.client = client
            if self._gone:
                self.abandon()
            self._last_used = anyio.current_time()
            self.ready.set()
            tg.cancel_scope.cancel()
        return self.client is not None

    async def _cancel_on_stop(self, scope: anyio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    async def _serve(self, client: ClientSession) -> None:
        announced = _announced(client)
        async with anyio.create_task_group() as tg:
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS and announced:
                tg.start_soon(self._subscribe, client, announced)
            tg.start_soon(self._probe, client)
            await self._wait_stop()
            tg.cancel_scope.cancel()

    async def _wait_stop(self) -> None:
        """Wait until it is to be closed: told so, broken, or idle for long enough."""
        while not self._over.is_set():
            left = math.inf
            if self._idle_seconds is not None:
                since = anyio.current_time() if self._users else self._last_used
                left = since + self._idle_seconds - anyio.current_time()
                if left <= 0:
                    self.idle = True
                    self.stop()
            with anyio.move_on_after(max(left, 0.0)):
                await self._over.wait()

    async def _probe(self, client: ClientSession) -> None:
        """Whenever there is doubt, ask what every server answers; without an answer, retire.

        Not a ping, which the newer protocol has no more and simple servers ignore.
        """
        while not self._retiring:
            await self._doubt.wait()
            self._doubt = anyio.Event()
            with anyio.move_on_after(PROBE_SECONDS) as scope:
                try:
                    if self.direct is not None:
                        await self.direct.request("tools/list", b"{}")
                    else:
                        await client.list_tools()
                except Exception as error:
                    # An answer all the same; the end of a connection is noticed elsewhere.
                    logger.debug("server %r: asked for a sign of life: %r", self.spec.name, error)
            if scope.cancelled_caught:
                logger.warning("server %r answers nothing any more", self.spec.name)
                self.retire("It stopped answering.")

    async def _subscribe(self, client: ClientSession, announced: frozenset[Listed]) -> None:
        """Ask a server of the newer era to say when its lists change."""
        for _ in range(SUBSCRIBE_ATTEMPTS):
            try:
                async with listen(
                    client,
                    tools_list_changed="tools" in announced,
                    resources_list_changed="resources" in announced,
                    prompts_list_changed="prompts" in announced,
                ) as changes:
                    # What changed before this moment went unseen.
                    self._changed(*announced)
                    async for event in changes:
                        if type(event) in _EVENTS:
                            self._changed(_EVENTS[type(event)])
            except (MCPError, SubscriptionLost, ListenNotSupportedError) as error:
                logger.debug("server %r: no notice of changed tools: %s", self.spec.name, error)
            await anyio.sleep(SUBSCRIBE_PAUSE_SECONDS)
        self.cacheable = False
        self._changed(*announced)

    def _changed(self, *lists: Listed) -> None:
        for listed in lists:
            if listed == "tools":
                self._on_tools_changed()
            else:
                self._on_offers_changed(listed)

    async def _receive(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed("tools")
        elif isinstance(message, ResourceListChangedNotification):
            self._changed("resources")
        elif isinstance(message, PromptListChangedNotification):
            self._changed("prompts")
        elif isinstance(message, ResourceUpdatedNotification):
            self.updates.updated(message.params.uri)
        elif isinstance(message, ProgressNotification):
            # Of requests that the SDK's session sent, it tells their senders itself.
            if self.endpoint.direct is not None:
                await self.endpoint.direct.report(self.spec.name, message.params)
        elif isinstance(message, LoggingMessageNotification):
            await self._callers.log(message.params)

    async def _list_roots(self, context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult.model_validate(roots_of(self.roots))

    def _notice(self) -> None:
        if self.endpoint.direct is not None:
            self.endpoint.direct.notice()

    def _notice_flood(self) -> None:
        self.account = f"It made {MAX_UNANSWERED:,} requests without waiting for the answers."
        logger.warning("server %r is disconnected: %s", self.spec.name, self.account)
        self.stop()

    def _notice_end(self) -> None:
        # Until it is ready, a connection that ends fails its start, which may try another way.
        self._gone = True
        self.updates.end()
        if self.endpoint.direct is not None:
            self.endpoint.direct.close()
        if self.client is not None:
            self.abandon()

    def _record(self, error: Exception) -> None:
        if isinstance(error, BridgeError) and not isinstance(error, UpstreamError):
            # It was not allowed.
            self.failure = error
            return
        if self.client is None:
            self.failure = start_error(
                self.spec,
                error,
                account=self.endpoint.account(),
                refusal=self.endpoint.refusal,
                remedy=self._remedy,
            )
            return
        self.account = f"{reason(error)}.".capitalize()
        logger.warning("the connection to server %r broke: %s", self.spec.name, self.account)


def _announced(client: ClientSession) -> frozenset[Listed]:
    """Return of which lists the server says that it tells when they change."""
    capabilities = client.server_capabilities
    found = {name: getattr(capabilities, name, None) for name in get_args(Listed)}
    return frozenset(name for name, one in found.items() if one is not None and one.list_changed)
