"""The pool of a user's servers, each started when it is first needed.

Owns changes of their configuration, and the task group of the connections' owner tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass
from types import MappingProxyType

import anyio
from anyio.abc import TaskGroup

from bridge.errors import UnknownError
from bridge.model import Json, ServerSpec
from bridge.upstream.connection import Connection, PoolSettings
from bridge.upstream.process import STOP_SECONDS, reap_orphans
from bridge.upstream.server import ServerState, UpstreamServer

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Pool(PoolSettings):
    """The servers that are configured, as an async context manager.

    Entering starts none. Leaving closes all at once, even when cancelled, and leaves no process.
    Methods that take a server's name raise UnknownError if there is none of that name. Requests
    raise UpstreamError if it cannot be started, refuses, or does not answer in time.
    """

    specs: InitVar[Iterable[ServerSpec]]

    def __post_init__(self, specs: Iterable[ServerSpec]) -> None:
        self.environ = dict(self.environ)
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
        """Close all servers at once; pending calls fail."""
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
            if old is None or old.spec != spec:
                servers[name] = UpstreamServer(spec, self, self._start_task)
            else:
                servers[name] = old
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
        """Return the CallToolResult as JSON; `timeout` counts from when the server is ready."""
        return await self.server(server).call_tool(tool, arguments, timeout=timeout)

    def server(self, server: str) -> UpstreamServer:
        if (upstream_server := self._servers.get(server)) is not None:
            return upstream_server
        names = ", ".join(map(repr, self._servers)) or "none"
        msg = f"There is no server named {server!r}."
        raise UnknownError(msg, remedy=f"Available: {names}.", code="unknown_server")

    def roots_changed(self) -> None:
        """Tell the servers that use the client's roots, when they are used next."""
        for connection in self._connections:
            connection.roots_shared = False

    def _start_task(self, connection: Connection) -> None:
        if self._tasks is None:
            raise RuntimeError("the pool has to be entered before its servers can be used")
        self._connections.add(connection)

        async def own() -> None:
            try:
                await connection.serve()
            finally:
                self._connections.discard(connection)

        self._tasks.start_soon(own)

    async def _reap_orphans(self) -> None:
        try:
            count = await reap_orphans()
        except OSError as error:
            logger.warning("could not look for processes of earlier bridges: %s", error)
            return
        if count:
            logger.warning("ended %d processes that an earlier bridge had left behind", count)
