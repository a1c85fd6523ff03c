"""One connection to one server, which is one MCP session: negotiation, notifications, end.

Differs from the SDK: one owner task enters and leaves the client, because anyio's cancel scopes
may not cross tasks; other tasks only send requests. A connection is used once.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, get_args

import anyio
from mcp import ClientSession, types
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
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bridge import __version__
from bridge.errors import BridgeError, ServerStartError, UpstreamError
from bridge.event_loop import current_time
from bridge.model import MEBIBYTE, ServerSettings, ServerSpec, Share
from bridge.upstream.client_features import Callers, Roots, clear_caller, roots_result
from bridge.upstream.direct_dispatcher import DirectDispatcher
from bridge.upstream.failure import login_at, reason, start_error, start_timeout, still_starting
from bridge.upstream.handshake import RecordingDispatcher, negotiate_version
from bridge.upstream.http import HttpEndpoint
from bridge.upstream.launch import Containers
from bridge.upstream.oauth import Logins
from bridge.upstream.process import installs_packages
from bridge.upstream.stdio import ServerLog, StdioEndpoint, log_path
from bridge.upstream.transport import Endpoint, Refusal

logger = logging.getLogger(__name__)


TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

FAILURE_SECONDS = 60.0
"""Time in which callers do not wait for a server again after a start that took too long. Callers
that can do without the server do not wait after any failure."""

_OF_PROXIES = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
"""Codes with which a stdio proxy reports that its own server is gone."""

PROBE_SECONDS = 10.0  # Least time for the response to a probe, after a timeout or a cancellation.

ListName = Literal["tools", "resources", "prompts"]  # Lists with a `list_changed` notification.

ListsChanged = Callable[..., None]  # Called with the names of the lists.

_CHANGES: dict[type, ListName] = {
    **dict.fromkeys((ToolsListChanged, types.ToolListChangedNotification), "tools"),
    **dict.fromkeys((ResourcesListChanged, types.ResourceListChangedNotification), "resources"),
    **dict.fromkeys((PromptsListChanged, types.PromptListChangedNotification), "prompts"),
}


STATEFUL = re.compile(
    r"playwright|puppeteer|chrome-devtools|browser|selenium|sequential-?thinking", re.IGNORECASE
)
"""Matches command lines of servers that keep a state for their client: pages, thoughts."""


class StartAdmission(Protocol):
    """Decides on each start, in two steps that may raise a BridgeError."""

    async def permit(self, spec: ServerSpec) -> None:
        """Check that a server may start, in the task that needs it; may ask the user."""

    async def start(self, spec: ServerSpec) -> None:
        """Check and record a start that happens next, in the connection's owner task."""


class OpenAdmission(StartAdmission):
    """Allows every start and records none; for a pool without a gate."""


MAX_MESSAGE_BYTES = 64 * MEBIBYTE
"""Limit of a server's or a program's message, equal to that of the channel into a sandbox."""


@dataclass(eq=False, repr=False)
class PoolSettings:
    """The settings that all servers of a pool share. Timeouts are in seconds."""

    _: KW_ONLY
    log_dir: Path
    environ: Mapping[str, str]
    cwd: str = "."
    call_timeout: float = 60.0
    start_timeout: float = 30.0  # Longest start, and longest wait for one.
    start_patience: float = 0.0  # Longest start of a package runner, which may have to install.
    patient: bool = False  # Whether callers wait for `start_patience` too.
    # Time until an unused connection is closed. None means half an hour over HTTP, where many
    # servers end an unused session, and never over stdio.
    idle_seconds: float | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    logins: Logins | None = None
    roots: Sequence[Path] = ()
    server_settings: Mapping[str, ServerSettings] = field(default_factory=dict)
    admission: StartAdmission = field(default_factory=OpenAdmission, init=False)
    containers: Containers = field(default_factory=Containers, init=False)
    # Called with a server's name when its list of tools changed, or when its change notifications
    # were lost; only if the list was requested before.
    on_tools_changed: Callable[[str], None] | None = field(default=None, init=False)

    def roots_of(self, spec: ServerSpec) -> Roots:
        """Return the configured roots, else the client's if no argument names a directory."""
        # As "--root=/a" or "/a:/b"; an argument may be no path, or longer than one can be.
        parts = (part for word in spec.args for part in re.split("[=:,]", word) if part)
        here = Path(self.cwd, spec.cwd or "")
        has = any(os.path.isdir(here / part) for part in parts)  # noqa: PTH112
        return self.roots or (() if has or spec.transport != "stdio" else None)

    def settings_of(self, spec: ServerSpec) -> ServerSettings:
        return self.server_settings.get(spec.name, ServerSettings())

    def share_of(self, spec: ServerSpec) -> Share:
        """Return which clients share a server's process; never "auto"."""
        share = self.settings_of(spec).share
        if share == "auto":
            words = " ".join((spec.command, *spec.args))
            return "client" if STATEFUL.search(words) else "definition"
        return share

    def endpoint(self, spec: ServerSpec) -> Endpoint:
        if spec.transport != "stdio":
            return HttpEndpoint(spec, max_message_bytes=self.max_message_bytes, logins=self.logins)
        return StdioEndpoint(
            spec,
            environ=self.environ,
            cwd=self.cwd,
            log=ServerLog(log_path(self.log_dir, spec.name)),
            max_message_bytes=self.max_message_bytes,
            containers=self.containers,
        )


class Connection:
    """A connection and its owner task."""

    client: ClientSession | None = None
    failure: BridgeError | None = None
    end_report = ""
    idle = False
    uses = 0
    listings = 0  # Uses that were `tools/list`.
    cacheable = True  # False once change notifications were lost.
    # Tools with `taskSupport: required`; None before `tools/list`.
    task_required: frozenset[str] | None = None
    # Tools that only the server's own view may call.
    view_only: frozenset[str] = frozenset()
    # Exists once the server asked for the client's roots; set after the answer.
    roots_asked: anyio.Event | None = None
    roots_shared = False
    given_roots: list[str] | None = None  # The answer; None until the server asks.
    expected_roots: list[str] | None = None  # Those of the client that started it, if known.
    inherited = False  # Whether all clients that it has had at some time have ended.

    def __init__(self, spec: ServerSpec, pool: PoolSettings, before: Connection | None) -> None:
        self.spec, self._pool = spec, pool
        # The `lists_changed` of the clients' servers that use it, in order.
        self.users: dict[ListsChanged, None] = {}
        self.endpoint = pool.endpoint(spec)
        self.roots = pool.roots_of(spec)
        self.call_timeout = spec.call_timeout or pool.call_timeout
        local, start = spec.transport == "stdio", spec.start_timeout or pool.start_timeout
        installs = local and installs_packages(spec.command, spec.args)
        self._login_timeout = max(start, pool.start_patience)
        self._start_timeout = self._login_timeout if installs else start
        self._answer_timeout = math.inf if pool.patient else start
        # A process that holds its client's state is never closed as idle.
        holds_state = local and pool.share_of(spec) == "client"
        self._idle_seconds = pool.idle_seconds or (None if holds_state else 1800.0)
        self.ready = anyio.Event()  # It can be used or has failed.
        self.ended: anyio.Event = anyio.Event()
        self.listing = anyio.Lock()
        self.sharing = anyio.Lock()  # Held while a client gives its roots.
        self.updates = ResourceUpdates()
        self._login_address = ""
        self.callers = Callers(self.spec.name)
        self._stop = anyio.Event()
        self._probe_requested = anyio.Event()
        self._probe_patience = 0.0
        self._silent_since = -math.inf
        self._retiring = False
        self._disconnected = False
        self._users = 0
        self._last_used = 0.0
        self._scope = anyio.CancelScope()
        self._previous_ended = before.ended if before else None
        # Until then callers do not wait for its start.
        self._hurried_until: float = before._hurried_until if before else -math.inf
        self._earlier = before.failure if before and self._hurried_until > -math.inf else None
        self._legacy = False
        if before and before.endpoint.transport == "http":
            # After `initialize` the next one does not try `server/discover` first.
            self._legacy = before.client is not None and not before.modern

    @property
    def usable(self) -> bool:
        """Whether it accepts new requests; true while it starts."""
        silent = self._silent_since > self.endpoint.last_heard
        return not (silent or self._retiring or self._stop.is_set())

    @property
    def modern(self) -> bool:
        """Whether the revision is 2026-07-28 or newer."""
        return self.client is not None and self.client.discover_result is not None

    def declares(self, *path: str) -> bool:
        """Whether the server declares a capability; some never respond to unknown methods."""
        value: object = self.client.server_capabilities if self.client else None
        for name in path:
            value = getattr(value, name, None)
        return value is not None and value is not False

    @property
    def direct(self) -> DirectDispatcher | None:
        """Sends requests past the SDK's session, over stdio; None before `ready` and over HTTP."""
        return None if self.client is None else self.endpoint.direct

    @property
    def others(self) -> int:
        """Count of tasks that use it in addition to the caller's."""
        return max(0, self._users - 1)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep it open, and attribute the server's requests to this task's caller."""
        self._users += 1
        self.uses += 1
        try:
            with self.callers.use():
                yield
        finally:
            self._users -= 1
            self._last_used = current_time()
            if self._retiring and not self._users:
                self.stop()

    async def wait_ready(self, *, patient: bool = False) -> None:
        """Wait until it is ready or has failed; if not `patient`, only for a start's usual time."""
        hurried = anyio.current_time() < self._hurried_until
        seconds = 0.0 if hurried else self._answer_timeout
        while True:
            with anyio.move_on_after(math.inf if patient else seconds):
                await self.ready.wait()
                return
            # Any other start has a timeout of its own.
            if hurried or self._start_timeout > self._answer_timeout:
                break
        if not hurried:
            self._hurried_until = anyio.current_time() + FAILURE_SECONDS
        if self._login_address:
            raise login_at(self.spec, self._login_address)
        raise still_starting(self.spec, self._earlier, self.endpoint)

    def stop(self) -> None:
        """Close it now; pending requests fail."""
        self._stop.set()
        if self.client is None:
            self._scope.cancel()

    def stop_if_unused(self) -> bool:
        """Close it as idle if it was used only for `tools/list`; return whether it was closed."""
        if self._users or not (self.ready.is_set() and self.usable) or self.uses > self.listings:
            return False
        self.idle = True
        self.stop()
        return True

    def request_probe(self, waited: float) -> None:
        """Have the owner task probe the server, which did not respond for `waited` seconds."""
        self._probe_patience = max(PROBE_SECONDS, self.call_timeout - waited)
        self._probe_requested.set()

    def mark_silent(self) -> None:
        logger.warning("server %r does not respond any more", self.spec.name)
        self.end_report = "It stopped answering."
        self._silent_since = current_time()

    def retire(self, end_report: str = "") -> None:
        """Accept no new requests, and close when the pending ones have ended."""
        self._retiring = True
        self.end_report = self.end_report or end_report
        if not self._users:
            self.stop()

    async def serve(self) -> None:
        """Own the connection from start to end, after the end of the previous one."""
        try:
            if self._previous_ended is not None:
                await self._previous_ended.wait()
            await self._pool.admission.start(self.spec)
            # The context was inherited from the first caller; later callers use this task too.
            clear_caller()
            await self._connect_with_fallback()
        except Exception as error:
            # The boundary of one connection: its errors must not end the others.
            self._record(error)
        finally:
            self.stop()
            self.end_report = f"{self.end_report} {self.endpoint.end_report()}".strip()
            if self.client is None and self.failure is None:
                self.failure = ServerStartError(
                    f"Server {self.spec.name!r} did not start: it was closed first.",
                    server=self.spec.name,
                    remedy="Call again.",
                )
            self.ready.set()
            self.ended.set()

    async def _connect_with_fallback(self) -> None:
        try:
            await self._connect()
        except Exception:
            if self.client is not None or not self.endpoint.fall_back():
                raise
            # The first error explains more.
            with suppress(Exception):
                await self._connect()
            if self.client is None:
                raise

    async def _connect(self) -> None:
        self._disconnected = False
        deadline = anyio.current_time() + self._start_timeout

        with anyio.CancelScope(deadline=deadline) as self._scope:
            if self._stop.is_set():
                return
            await self.endpoint.prepare()
            self.endpoint.on_login = self._wait_for_login
            async with self.endpoint.open(deadline) as (read, write):
                dispatcher = RecordingDispatcher(
                    read,
                    write,
                    self.endpoint,
                    on_flood=self._disconnect_flooding,
                    on_disconnect=self._handle_disconnect,
                )
                async with ClientSession(
                    dispatcher=dispatcher,
                    message_handler=self._handle_notification,
                    client_info=types.Implementation(name="mcp-code-bridge", version=__version__),
                    # Declared to every server, even if the client lacks the capability:
                    # connections outlive clients, and a server's tools must not depend on the
                    # first client. A request that the client cannot serve gets an error.
                    elicitation_callback=self.callers.elicit,
                    sampling_callback=self.callers.sample,
                    # Some servers replace their configured directories by the client's roots.
                    list_roots_callback=None if self.roots == () else self._list_roots,
                    extensions={TASKS_EXTENSION: {}},
                ) as client:
                    await self._start(client, dispatcher)
                    # The scope must stay open around the connection, without its deadline.
                    self._scope.deadline = math.inf
                    await self._keep_open(client)
        if self._scope.cancelled_caught and not self._stop.is_set():
            self._hurried_until = anyio.current_time() + FAILURE_SECONDS
            self.failure = start_timeout(self.spec, self._start_timeout, self.endpoint)
            if self._login_address:
                self.failure = login_at(self.spec)

    def _wait_for_login(self, address: str) -> None:
        logger.warning("server %r waits for its user to log in: %s", self.spec.name, address)
        self._login_address = address
        self._start_timeout = self._login_timeout
        self._scope.deadline = anyio.current_time() + self._login_timeout

    async def _start(self, client: ClientSession, dispatcher: RecordingDispatcher) -> None:
        try:
            protocol = self._pool.settings_of(self.spec).protocol
            mode = "legacy" if protocol == "auto" and self._legacy else protocol
            await negotiate_version(client, self.endpoint, mode, self._start_timeout)
        except Exception:
            # Not after a cancellation, because an installation may continue.
            self.endpoint.finish_start()
            raise
        self.endpoint.finish_start()
        if self.endpoint.direct is not None:
            self.endpoint.direct.request_meta = dispatcher.request_meta(client.protocol_version)
        self.client = client
        if self._disconnected:
            self.stop()
        self._last_used = anyio.current_time()
        self.ready.set()

    async def _keep_open(self, client: ClientSession) -> None:
        announced = [name for name in get_args(ListName) if self.declares(name, "list_changed")]
        async with anyio.create_task_group() as tg:
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS and announced:
                tg.start_soon(self._subscribe, client, announced)
            tg.start_soon(self._probe, client)
            while not self._stop.is_set():
                left = math.inf
                if self._idle_seconds is not None:
                    since = anyio.current_time() if self._users else self._last_used
                    left = since + self._idle_seconds - anyio.current_time()
                    if left <= 0:
                        self.idle = True
                        self.stop()
                with anyio.move_on_after(max(left, 0.0)):
                    await self._stop.wait()
            tg.cancel_scope.cancel()

    async def _probe(self, client: ClientSession) -> None:
        """After each `request_probe`, send `tools/list`, and mark a server that sends nothing."""
        # Not `ping`, which 2026-07-28 has removed and simple servers ignore.
        while not self._retiring:
            await self._probe_requested.wait()
            self._probe_requested = anyio.Event()
            begun = current_time()
            with anyio.move_on_after(self._probe_patience) as scope:
                # An error is a response too. The end of a connection is handled elsewhere.
                await self._list_tools(client)
            if scope.cancelled_caught and self.endpoint.last_heard < begun:
                self.mark_silent()

    async def has_lost_session(self, error: MCPError, refusal: Refusal | None) -> bool:
        """Retire the connection if `error` may report a lost session and it lists no tools."""
        proxy = self.endpoint.transport == "stdio" and error.code in _OF_PROXIES
        suspect = proxy or "session" in error.message.lower()
        if self.client is None or not (suspect or (refusal is not None and refusal.suspect)):
            return False
        with anyio.move_on_after(PROBE_SECONDS) as scope:
            if await self._list_tools(self.client):
                return False
        if scope.cancelled_caught:
            return False
        self.retire(f"It answered {error.message!r:.300}, and listed no tools either.")
        return True

    async def _list_tools(self, client: ClientSession) -> bool:
        try:
            if self.direct is not None:
                await self.direct.request("tools/list", b"{}")
            else:
                await client.list_tools()
        except Exception as error:
            logger.debug("server %r: error from the probe: %r", self.spec.name, error)
            return isinstance(error, MCPError) and error.code == types.METHOD_NOT_FOUND
        return True

    async def _subscribe(self, client: ClientSession, announced: list[ListName]) -> None:
        for _ in range(3):  # Then lists are not cached, because they could be stale.
            try:
                async with listen(
                    client,
                    tools_list_changed="tools" in announced,
                    resources_list_changed="resources" in announced,
                    prompts_list_changed="prompts" in announced,
                ) as changes:
                    # The server did not notify changes before the subscription.
                    self._lists_changed(*announced)
                    async for event in changes:
                        if type(event) in _CHANGES:
                            self._lists_changed(_CHANGES[type(event)])
            except (MCPError, SubscriptionLost, ListenNotSupportedError) as error:
                logger.debug("server %r: no change notifications: %s", self.spec.name, error)
            await anyio.sleep(1.0)  # The server may be restarting.
        self.cacheable = False
        self._lists_changed(*announced)

    async def _handle_notification(self, message: IncomingMessage) -> None:
        if type(message) in _CHANGES:
            self._lists_changed(_CHANGES[type(message)])
        elif isinstance(message, types.ResourceUpdatedNotification):
            self.updates.wake(message.params.uri)
        elif isinstance(message, types.ProgressNotification):
            # The SDK's session reports the progress of its own requests itself.
            if self.endpoint.direct is not None:
                await self.endpoint.direct.report_progress(message.params)
        elif isinstance(message, types.LoggingMessageNotification):
            await self.callers.log(message.params)

    async def _list_roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        if self.roots is not None:
            return types.ListRootsResult.model_validate(roots_result(self.roots))
        if self.roots_asked is None or self.roots_asked.is_set():
            self.roots_asked = anyio.Event()
        answered, given = self.roots_asked, self.given_roots if len(self.users) > 1 else None
        found = await self.callers.list_roots(given)
        self.roots_shared = found is not None
        found = found or types.ListRootsResult(roots=[])
        roots = [str(root.uri) for root in found.roots]
        if roots != self.given_roots:
            self.given_roots = roots
        answered.set()
        return found

    def _lists_changed(self, *lists: ListName) -> None:
        for lists_changed in tuple(self.users):
            lists_changed(*lists)

    def _disconnect_flooding(self, requests: int) -> None:
        self.end_report = f"It made {requests:,} requests without waiting for the answers."
        logger.warning("server %r is disconnected: %s", self.spec.name, self.end_report)
        self.stop()

    def _handle_disconnect(self) -> None:
        self._disconnected = True
        self.updates.wake()
        if self.endpoint.direct is not None:
            self.endpoint.direct.close()
        if self.client is not None:
            self.stop()

    def _record(self, error: Exception) -> None:
        if isinstance(error, BridgeError) and not isinstance(error, UpstreamError):
            # Admission refused the start.
            self.failure = error
            return
        if self.client is None:
            self._hurried_until = -math.inf
            self.failure = start_error(self.spec, error, self.endpoint)
            return
        self.end_report = f"{reason(error)}.".capitalize()
        logger.warning("the connection to server %r broke: %s", self.spec.name, self.end_report)


class ResourceUpdates:
    """The tasks that wait for resources to change, over one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[anyio.Event]] = {}

    def wake(self, changed: str | None = None) -> None:
        """Wake the tasks that wait for this resource or one that contains it; without it all."""
        for watched, events in self._waiting.items():
            if changed is None or changed.startswith(watched):
                for event in events:
                    event.set()

    async def wait(self, client: ClientSession, uri: str) -> None:
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
            wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await client.send_request(wanted, types.EmptyResult)
            await event.wait()
        finally:
            events.discard(event)
            if not events:
                self._waiting.pop(uri, None)
                over = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
                with anyio.move_on_after(2.0, shield=True), suppress(Exception):
                    await client.send_request(over, types.EmptyResult)
