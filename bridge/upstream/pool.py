"""The pool of a user's servers, each started when it is first needed.

Owns changes of their configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass
from types import MappingProxyType

from bridge.errors import UnknownError
from bridge.model import Json, ServerSpec
from bridge.upstream.connection import PoolSettings
from bridge.upstream.server import ServerState, UpstreamServer
from bridge.upstream.sharing import Connections

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Pool(PoolSettings):
    """The servers that are configured, as an async context manager.

    Entering starts none. Leaving closes all at once, even when cancelled, and leaves no process.
    Methods that take a server's name raise UnknownError if there is none of that name. Requests
    raise UpstreamError if it cannot be started, refuses, or does not answer in time.
    """

    specs: InitVar[Iterable[ServerSpec]]
    connections: Connections | None = None  # Of the whole bridge; by default the pool's own.

    def __post_init__(self, specs: Iterable[ServerSpec]) -> None:
        self.environ = dict(self.environ)
        self._is_owner = self.connections is None
        self._connections = Connections() if self.connections is None else self.connections
        self._servers: dict[str, UpstreamServer] = {}
        self.update(specs)

    def __repr__(self) -> str:
        return f"<Pool servers={len(self._servers)} connections={len(self._connections)}>"

    async def __aenter__(self) -> Pool:
        if self._is_owner:
            await self._connections.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        if self._is_owner:
            # Without the body's exception, which the task group would wrap.
            await self._connections.__aexit__()

    def close(self) -> None:
        """Leave all servers; pending calls fail, and what no other client uses closes."""
        for upstream_server in self._servers.values():
            upstream_server.close(drain=False)

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
                servers[name] = UpstreamServer(spec, self, self._connections)
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
        for upstream_server in self._servers.values():
            upstream_server.roots_changed()
