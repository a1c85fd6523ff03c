"""All of a user's servers, each started when it is first needed.

Owns the set of servers, their configuration's changes and the task group that all their
connections' owner tasks run in. What happens with one server is `session.py`'s.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from bridge.errors import UnknownServerError
from bridge.model import MEBIBYTE, Era, Json, ServerSpec, Tool
from bridge.upstream.http import HttpEndpoint
from bridge.upstream.link import Link
from bridge.upstream.listing import MAX_COMPARED_CHARS, Kind
from bridge.upstream.oauth import Logins
from bridge.upstream.process import STOP_SECONDS, reap_orphans
from bridge.upstream.serverlog import ServerLog, log_path
from bridge.upstream.session import ServerState, Session
from bridge.upstream.stdio import StdioEndpoint
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)


class Admission(Protocol):
    """Every start passes it twice: who needs the server may be asked, and then it is recorded."""

    async def permit(self, spec: ServerSpec) -> None:
        """Have a start allowed, in the task that needs it; ask whoever it works for if need be.

        Raises:
            BridgeError: It is not allowed.
        """

    async def start(self, spec: ServerSpec) -> None:
        """Decide on a start that happens next, and record it.

        Raises:
            BridgeError: It must not happen.
        """


class Open:
    """Allows every start and records none: a pool that no engine has."""

    async def permit(self, spec: ServerSpec) -> None:
        """Allow it."""

    async def start(self, spec: ServerSpec) -> None:
        """Allow it."""


CALL_SECONDS = 60.0
"""A call's time where neither the caller nor the configuration says otherwise; as most clients."""

START_SECONDS = 30.0
"""A start's time, likewise: `npx` and `uvx` may have to fetch a package first."""

MAX_MESSAGE_BYTES = 64 * MEBIBYTE
"""One message in either direction. As much as the channel into a sandbox takes."""

CLOSE_SECONDS = STOP_SECONDS + 2.0
"""For closing all servers, which happens at once: one process's whole ladder, and some air."""


class Pool:
    """The servers that are configured, as an async context manager.

    Entering starts none. Leaving closes all at once, even when cancelled, and leaves no process.

    Attributes:
        on_tools_changed: Called with the name of a server that says that its tools have changed,
            or that cannot say so any more, if they were listed.
        admission: Decides on each start and connection, and records it.

    Args:
        eras: By name, the servers that are to be spoken to in one protocol.
        direct: Whether calls of stdio servers go past the SDK's session; see `direct.py`.
    """

    def __init__(
        self,
        specs: Iterable[ServerSpec],
        *,
        log_dir: Path,
        environ: Mapping[str, str],
        call_timeout: float = CALL_SECONDS,
        start_timeout: float = START_SECONDS,
        idle_seconds: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        logins: Logins | None = None,
        roots: Sequence[Path] = (),
        eras: Mapping[str, Era] | None = None,
        direct: bool = True,
    ) -> None:
        self._log_dir = log_dir
        self._environ = dict(environ)
        self._call_timeout = call_timeout
        self._start_timeout = start_timeout
        self._idle_seconds = idle_seconds
        self._max_bytes = max_message_bytes
        self._logins = logins
        self._roots = tuple(roots)
        self._eras = eras or {}
        self._direct = direct
        self._tasks: TaskGroup | None = None
        self.on_tools_changed: Callable[[str], None] | None = None
        self.admission: Admission = Open()
        self._links: set[Link] = set()
        self._sessions: dict[str, Session] = {}
        self.update(specs)

    def __repr__(self) -> str:
        return f"<Pool servers={len(self._sessions)} connections={len(self._links)}>"

    async def __aenter__(self) -> Pool:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._reap)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        await self.aclose()
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return None
        tasks.cancel_scope.cancel()
        # Not told of the body's exception, which would come out of it wrapped in a group.
        await tasks.__aexit__(None, None, None)
        return None

    async def aclose(self) -> None:
        """Close all servers, at once and within `CLOSE_SECONDS`; calls under way fail."""
        for session in self._sessions.values():
            session.close(drain=False)
        for link in self._links:
            link.stop()
        with anyio.move_on_after(CLOSE_SECONDS, shield=True) as scope:
            for link in tuple(self._links):
                await link.ended.wait()
        if scope.cancelled_caught:
            logger.warning("gave up waiting for %d connections to close", len(self._links))

    def update(self, specs: Iterable[ServerSpec]) -> None:
        """Take a new configuration.

        Servers that are gone or changed take no new calls; they close in the background, once the
        calls under way have ended. Unchanged ones stay as they are. Of several with one name the
        first counts.
        """
        wanted: dict[str, ServerSpec] = {}
        for spec in specs:
            if wanted.setdefault(spec.name, spec) is not spec:
                logger.warning(
                    "server %r is defined twice; %s counts", spec.name, wanted[spec.name].source
                )
        sessions: dict[str, Session] = {}
        for name, spec in wanted.items():
            old = self._sessions.get(name)
            sessions[name] = old if old and old.spec == spec else self._new_session(spec)
        for name, old in self._sessions.items():
            if sessions.get(name) is not old:
                old.close(drain=True)
        self._sessions = sessions

    def names(self) -> tuple[str, ...]:
        """Return the names of all servers, in the configuration's order."""
        return tuple(self._sessions)

    def spec(self, server: str) -> ServerSpec:
        """Return a server's definition.

        Raises:
            UnknownServerError: There is none of that name.
        """
        return self._session(server).spec

    def state(self, server: str) -> ServerState:
        """Return what is known of one server now.

        Raises:
            UnknownServerError: There is none of that name.
        """
        return self._session(server).state()

    def rest(self, server: str) -> None:
        """Stop a server if it runs for nothing but having listed its tools; it starts anew at need.

        Raises:
            UnknownServerError: There is none of that name.
        """
        self._session(server).rest()

    def states(self) -> Mapping[str, ServerState]:
        """Return what is known of every server now."""
        return MappingProxyType({name: s.state() for name, s in self._sessions.items()})

    def moment(self, server: str) -> tuple[int, int] | None:
        """Return what changes when a server may have other tools; None while it is not connected.

        Raises:
            UnknownServerError: There is none of that name.
        """
        return self._session(server).moment

    async def start(self, server: str) -> None:
        """Have a server ready for calls.

        Raises:
            UnknownServerError: There is none of that name.
            ServerStartError: It cannot be started or reached.
        """
        await self._session(server).start()

    async def tools(self, server: str, *, again: bool = False) -> tuple[Tool, ...]:
        """Return a server's tools, starting it if needed.

        Args:
            again: Ask it even if what it said counts still, unless that was a moment ago.

        Raises:
            UnknownServerError: There is none of that name.
            UpstreamError: It cannot be started, or did not answer.
        """
        return await self._session(server).tools(again=again)

    async def call_tool(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        timeout: float | None = None,
    ) -> dict[str, Json]:
        """Call a tool, starting its server if needed.

        The result is the server's own, a CallToolResult in its JSON form; one that reports an error
        is returned like any other. A cancelled or timed-out call is cancelled at the server too.

        Args:
            timeout: Seconds for the call, from when the server is ready.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: No result came.
        """
        return await self._session(server).call_tool(tool, arguments, timeout=timeout)

    async def offers(self, server: str, kind: Kind) -> tuple[dict[str, Json], ...]:
        """Return a server's resources, resource templates or prompts; none if it has no such.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: It cannot be started, or did not answer.
        """
        return await self._session(server).offers(kind)

    async def read_resource(self, server: str, uri: str) -> dict[str, Json]:
        """Read a resource; the result is the server's own, a ReadResourceResult in JSON.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: It could not be read.
        """
        return await self._session(server).read_resource(uri)

    async def watch_resource(
        self, server: str, uri: str, *, timeout: float | None = None
    ) -> dict[str, Json]:
        """Wait until a resource changes, and read it as `read_resource` does.

        Args:
            timeout: Seconds; the timeout of calls if left out.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: The server does not tell, it did not change in time, or it could not be
                read.
        """
        return await self._session(server).watch_resource(uri, timeout=timeout)

    async def complete(self, server: str, params: Mapping[str, Json]) -> dict[str, Json]:
        """Return what a server proposes for an argument of a prompt or a resource template.

        Args:
            params: MCP's `completion/complete`.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: It proposes nothing.
        """
        return await self._session(server).complete(params)

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> dict[str, Json]:
        """Get a prompt; the result is the server's own, a GetPromptResult in JSON.

        Raises:
            UnknownServerError: There is no server of that name.
            UpstreamError: There is none.
        """
        return await self._session(server).get_prompt(name, arguments)

    def _session(self, server: str) -> Session:
        session = self._sessions.get(server)
        if session is not None:
            return session
        names = ", ".join(repr(name) for name in self._sessions) or "none"
        near = difflib.get_close_matches(server[:MAX_COMPARED_CHARS], self._sessions, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        msg = f"There is no server named {server!r}.{hint}"
        raise UnknownServerError(msg, remedy=f"Available: {names}.")

    def _new_session(self, spec: ServerSpec) -> Session:
        return Session(
            spec,
            connect=self._connect,
            permit=lambda spec: self.admission.permit(spec),
            call_timeout=self._call_timeout,
            max_message_bytes=self._max_bytes,
            roots=self._roots,
        )

    def _connect(self, session: Session, after: anyio.Event | None) -> Link:
        if self._tasks is None:
            raise RuntimeError("the pool has to be entered before its servers can be used")
        spec = session.spec
        link = Link(
            spec,
            self._endpoint(spec),
            admit=lambda: self.admission.start(spec),
            start_timeout=spec.start_timeout or self._start_timeout,
            idle_seconds=self._idle_seconds,
            remedy=_start_remedy(spec),
            on_tools_changed=partial(self._tools_changed, session),
            on_offers_changed=session.forget_offers,
            roots=self._roots,
            era=self._eras.get(spec.name, "auto"),
        )
        self._links.add(link)
        self._tasks.start_soon(self._own, link, after)
        return link

    def _tools_changed(self, session: Session) -> None:
        session.forget_tools()
        # Nobody is told of a change in what nobody has seen.
        if session.listed and self.on_tools_changed is not None:
            self.on_tools_changed(session.spec.name)

    async def _own(self, link: Link, after: anyio.Event | None) -> None:
        try:
            await link.run(after)
        finally:
            self._links.discard(link)

    def _endpoint(self, spec: ServerSpec) -> Endpoint:
        if spec.transport != "stdio":
            return HttpEndpoint(spec, max_message_bytes=self._max_bytes, logins=self._logins)
        return StdioEndpoint(
            spec,
            environ=self._environ,
            log=ServerLog(log_path(self._log_dir, spec.name)),
            max_message_bytes=self._max_bytes,
            direct=self._direct,
        )

    async def _reap(self) -> None:
        try:
            count = await reap_orphans()
        except OSError as error:
            logger.warning("could not look for what earlier bridges left behind: %s", error)
            return
        if count:
            logger.warning("ended %d processes that an earlier bridge had left behind", count)


def _start_remedy(spec: ServerSpec) -> str:
    if spec.transport == "stdio":
        return f"Run its command by hand to see more, and check its entry in {spec.source.path}."
    return f"Check that it is running, and its `url` in {spec.source.path}."
