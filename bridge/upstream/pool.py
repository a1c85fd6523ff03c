"""The pool of a user's servers, each started when it is first needed.

Owns changes of their configuration, and the task group of the connections' owner tasks.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from bridge.errors import UnknownError
from bridge.model import MEBIBYTE, Json, ServerSettings, ServerSpec
from bridge.upstream.client_features import Roots
from bridge.upstream.connection import Connection, ListName
from bridge.upstream.http import HttpEndpoint
from bridge.upstream.launch import Containers
from bridge.upstream.oauth import Logins
from bridge.upstream.process import STOP_SECONDS, reap_orphans
from bridge.upstream.server import ServerState, UpstreamServer
from bridge.upstream.server_log import ServerLog, log_path
from bridge.upstream.stdio import StdioEndpoint
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)


class StartAdmission(Protocol):
    """Decides on each start, in two steps that may raise a BridgeError."""

    async def permit(self, spec: ServerSpec) -> None:
        """Check that a server may start, in the task that needs it; may ask the user."""
        return

    async def start(self, spec: ServerSpec) -> None:
        """Check and record a start that happens next, in the connection's owner task."""
        return


class OpenAdmission(StartAdmission):
    """Allows every start and records none; for a pool without a gate."""


MAX_MESSAGE_BYTES = 64 * MEBIBYTE
"""Of a server's or a program's message: the limit of the channel into a sandbox."""


@dataclass(eq=False, repr=False)
class Pool:
    """The servers that are configured, as an async context manager.

    Entering starts none. Leaving closes all at once, even when cancelled, and leaves no process.
    Methods that take a server's name raise UnknownError if there is none of that name. Requests
    raise UpstreamError if it cannot be started, refuses, or does not answer in time.

    Attributes:
        on_tools_changed: Called with a server's name when its list of tools changed, or when its
            change notifications were lost; only if the list was requested before.
        admission: Decides on each start and connection, and records it.
        containers: Labels and removes the containers that servers run in.

    Args:
        start_timeout: Longest start, and longest wait for one.
        start_patience: Longest start of a package runner, which may have to install the server.
        patient: Whether callers wait as long as that, too.
        idle_seconds: After which an unused connection is closed; None for half an hour over HTTP,
            when many servers end an unused session, and never over stdio.
        server_settings: What is set of single servers, by name.
    """

    specs: InitVar[Iterable[ServerSpec]]
    _: KW_ONLY
    log_dir: Path
    environ: Mapping[str, str]
    call_timeout: float = 60.0
    start_timeout: float = 30.0
    start_patience: float = 0.0
    patient: bool = False
    idle_seconds: float | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    logins: Logins | None = None
    roots: Sequence[Path] = ()
    server_settings: Mapping[str, ServerSettings] = field(default_factory=dict)

    def __post_init__(self, specs: Iterable[ServerSpec]) -> None:
        self.environ = dict(self.environ)
        self.containers = Containers()
        self.on_tools_changed: Callable[[str], None] | None = None
        self.admission: StartAdmission = OpenAdmission()
        self._tasks: TaskGroup | None = None
        self._connections: set[Connection] = set()
        self._servers: dict[str, UpstreamServer] = {}
        self.update(specs)

    def __repr__(self) -> str:
        return f"<Pool servers={len(self._servers)} connections={len(self._connections)}>"

    async def __aenter__(self) -> Pool:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._reap_orphans)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            # Without the body's exception, which the group would wrap.
            await tasks.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Close all servers, at once; calls under way fail."""
        for upstream_server in self._servers.values():
            upstream_server.close(drain=False)
        for connection in self._connections:
            connection.stop()
        # The longest stop of one process, and a margin.
        with anyio.move_on_after(STOP_SECONDS + 2.0, shield=True) as scope:
            for connection in tuple(self._connections):
                await connection.ended.wait()
        if scope.cancelled_caught:
            logger.warning("gave up waiting for %d connections to close", len(self._connections))

    def update(self, specs: Iterable[ServerSpec]) -> None:
        """Apply a new configuration.

        Removed and changed servers take no new calls and close in the background when their
        pending calls have ended. Unchanged ones keep their connections. Of several with one name
        the first counts.
        """
        wanted: dict[str, ServerSpec] = {}
        for spec in specs:
            if wanted.setdefault(spec.name, spec) is not spec:
                logger.warning(
                    "server %r is defined twice; %s counts", spec.name, wanted[spec.name].source
                )
        servers: dict[str, UpstreamServer] = {}
        for name, spec in wanted.items():
            old = self._servers.get(name)
            servers[name] = old if old and old.spec == spec else UpstreamServer(spec, self)
        for name, old in self._servers.items():
            if servers.get(name) is not old:
                old.close(drain=True)
        self._servers = servers

    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    def spec(self, server: str) -> ServerSpec:
        return self.server(server).spec

    def state(self, server: str) -> ServerState:
        return self.server(server).state()

    def states(self) -> Mapping[str, ServerState]:
        return MappingProxyType({name: s.state() for name, s in self._servers.items()})

    async def call_tool(
        self, server: str, tool: str, arguments: Mapping[str, Json], *, timeout: float | None = None
    ) -> dict[str, Json]:
        """Call a tool, starting its server if needed, and return the CallToolResult as JSON.

        Args:
            timeout: Seconds for the call, from when the server is ready.
        """
        return await self.server(server).call_tool(tool, arguments, timeout=timeout)

    def server(self, server: str) -> UpstreamServer:
        """Return one server, for the requests that the pool itself does not have."""
        upstream_server = self._servers.get(server)
        if upstream_server is not None:
            return upstream_server
        names = ", ".join(map(repr, self._servers)) or "none"
        msg = f"There is no server named {server!r}."
        raise UnknownError(msg, remedy=f"Available: {names}.", code="unknown_server")

    def roots_of(self, spec: ServerSpec) -> Roots:
        """Return the configured roots, else the client's if no argument names a directory."""
        # As "--root=/a" or "/a:/b"; an argument may be no path, or longer than one can be.
        parts = (part for word in spec.args for part in re.split("[=:,]", word) if part)
        has = any(os.path.isdir(Path(spec.cwd or "", part)) for part in parts)  # noqa: PTH112
        return self.roots or (() if has or spec.transport != "stdio" else None)

    def roots_changed(self) -> None:
        """Tell the servers that use the client's roots, when they are used next."""
        for connection in self._connections:
            connection.roots_shared = False

    def connect(self, upstream_server: UpstreamServer, after: anyio.Event | None) -> Connection:
        if self._tasks is None:
            raise RuntimeError("the pool has to be entered before its servers can be used")
        connection = Connection(upstream_server, self)
        self._connections.add(connection)

        async def own() -> None:
            try:
                await connection.run(after)
            finally:
                self._connections.discard(connection)

        self._tasks.start_soon(own)
        return connection

    def lists_changed(self, upstream_server: UpstreamServer, *lists: ListName) -> None:
        """Drop the cached lists of a server, and tell of changed tools."""
        upstream_server.forget(*lists)
        # A change of a list that was never requested concerns no caller.
        if "tools" in lists and upstream_server.listed and self.on_tools_changed is not None:
            self.on_tools_changed(upstream_server.spec.name)

    def endpoint(self, spec: ServerSpec) -> Endpoint:
        """Return a server's address, for one connection."""
        if spec.transport != "stdio":
            return HttpEndpoint(spec, max_message_bytes=self.max_message_bytes, logins=self.logins)
        return StdioEndpoint(
            spec,
            environ=self.environ,
            log=ServerLog(log_path(self.log_dir, spec.name)),
            max_message_bytes=self.max_message_bytes,
            containers=self.containers,
        )

    async def _reap_orphans(self) -> None:
        try:
            count = await reap_orphans()
        except OSError as error:
            logger.warning("could not look for processes of earlier bridges: %s", error)
            return
        if count:
            logger.warning("ended %d processes that an earlier bridge had left behind", count)
