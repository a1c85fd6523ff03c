"""The user's servers as a run sees them: discovered, aliased, kept fresh.

Owns the link between discovery and the session pool: when a configuration file changes, the next
run sees it, and sessions whose definition did not change stay open.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.catalog.entries import ServerEntry
from bridge.discovery.find import Discovery, DiscoveryContext, discover
from bridge.discovery.watch import Watch
from bridge.engine.known import Known
from bridge.engine.look import Look
from bridge.engine.tool_cache import ToolCache
from bridge.errors import BridgeError, ServerStartError, UnknownServerError, UpstreamError
from bridge.model import ServerSpec, Tool
from bridge.settings import Settings, home
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)

MAX_SHOWN_NAMES = 30
"""Of servers, in an error."""

MAX_LEFT_OUT = 5
"""Entries and files, in an error on a server that does not exist."""

STRAGGLER_SECONDS = 5.0
"""How long those who can do without a server wait for it. Most are up in two; those that fetch a
package first go on starting, and are there the next time."""

FAILURE_SECONDS = 60.0
"""How long a server that failed is left alone by those who can do without it. Short enough for a
user who has mended it, long enough that a row of searches does not wait for it each time."""


class Finder(Protocol):
    """Finds servers; a seam for tests and for callers that bring their own list."""

    def stamp(self) -> object:
        """Return something that changes when `find` would return something else."""
        ...

    def find(self) -> Discovery:
        """Return the servers there are."""
        ...


class ConfigFinder:
    """Finds servers in the configuration files of the user's clients."""

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        self._watch = Watch(context)

    def stamp(self) -> object:
        """Return the state of every file that could define a server."""
        return self._watch.stamp()

    def find(self) -> Discovery:
        """Read the files."""
        return discover(self._context)


@dataclass(kw_only=True)
class _Request:
    """One question for a server's tools, which goes on when nobody waits for it any more.

    Attributes:
        deadline: Until when it is waited for.
        outcome: None until `done`, and when it was cut short.
    """

    spec: ServerSpec
    deadline: float
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: tuple[Tool, ...] | BridgeError | None = None


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a server was not there, and until when that is taken to be still so."""

    spec: ServerSpec
    error: BridgeError
    until: float


class Servers:
    """Discovered servers and the sessions to them. Enter before use.

    Args:
        eager: Whether entering waits until the configuration is read. Who does not wait asks for
            `refresh` before anything else.
        straggler_seconds: How long a tolerant load waits for a server.
        failure_seconds: How long tolerant loads do not try a server again that failed in one.
    """

    def __init__(
        self,
        finder: Finder,
        pool: Pool,
        cache: ToolCache,
        *,
        eager: bool = True,
        straggler_seconds: float = STRAGGLER_SECONDS,
        failure_seconds: float = FAILURE_SECONDS,
    ) -> None:
        self._finder = finder
        self._look = Look(finder.stamp)
        self._pool = pool
        self._cache = cache
        self._stamp: object = None
        self._refreshing = anyio.Lock()
        self.discovery = Discovery(servers=(), skipped=(), warnings=(), stamp=())
        self.known = Known()
        self._eager = eager
        self._straggler_seconds = straggler_seconds
        self._failure_seconds = failure_seconds
        self._requests: dict[str, _Request] = {}
        self._failures: dict[str, _Failure] = {}
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Servers:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._pool)
            if self._eager:
                await self.refresh()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._tasks.cancel_scope.cancel)
            if not self._eager:
                self._tasks.start_soon(self.refresh)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not told of the body's exception, which would come out of it wrapped in a group.
        await self._stack.aclose()

    @property
    def pool(self) -> Pool:
        """The sessions."""
        return self._pool

    @property
    def aliases(self) -> Mapping[str, str]:
        """Every server's name and alias."""
        return self.known.aliases

    async def refresh(self) -> bool:
        """Read the configuration if a file of it changed since; return whether one did."""
        if await self._look.take() == self._stamp:
            return False
        async with self._refreshing:
            stamp = await self._look.take()
            if stamp == self._stamp:
                # Somebody else has read it meanwhile.
                return False
            await self._take(stamp)
        return True

    async def _take(self, stamp: object) -> None:
        self.discovery, known = await anyio.to_thread.run_sync(self._read)
        self._stamp = stamp
        self.known.reset({spec.name: spec.description for spec in self.discovery.servers}, known)
        self._pool.update(self.discovery.servers)
        self._failures = {
            name: failure
            for name, failure in self._failures.items()
            if failure.spec in self.discovery.servers
        }
        for warning in self.discovery.warnings:
            logger.warning("%s", warning)

    def _read(self) -> tuple[Discovery, dict[str, tuple[Tool, ...]]]:
        discovery = with_unread(self._finder.find(), self.discovery)
        cached = {spec.name: self._cache.load(spec) for spec in discovery.servers}
        return discovery, {name: tools for name, tools in cached.items() if tools is not None}

    def names(self) -> tuple[str, ...]:
        """Return every discovered server's own name."""
        return tuple(spec.name for spec in self.discovery.servers)

    def entries(self, *, loaded: Sequence[str] = ()) -> tuple[ServerEntry, ...]:
        """Return what is known of every server: tools of those that were ever asked for them."""
        return self.known.entries(loaded=loaded)

    def resolve(self, name: str) -> str:
        """Return the server's own name for a name or an alias.

        Raises:
            UnknownServerError: There is none; the text names the nearest.
        """
        if name in self.aliases:
            return name
        for own, alias in self.aliases.items():
            if name in (alias, f"mcp_{alias}"):
                return own
        for entry in self.discovery.skipped:
            if entry.name == name:
                message = f"The server {name!r} is configured, but skipped."
                detail = f"In {entry.source}: {entry.reason}."
                raise UnknownServerError(message, host_detail=detail)
        message = f"There is no server {name!r:.200}."
        near = difflib.get_close_matches(name, [*self.aliases, *self.aliases.values()], n=1)
        if near:
            message = f"{message} Did you mean {near[0]!r}?"
        raise UnknownServerError(self.unknown(message))

    def unknown(self, problem: str) -> str:
        """Return the text on a server that does not exist: the problem, and what there is."""
        names = sorted(self.aliases)
        shown = ", ".join(names[:MAX_SHOWN_NAMES])
        if len(names) > MAX_SHOWN_NAMES:
            shown = f"{shown} and {len(names) - MAX_SHOWN_NAMES} more"
        return f"{problem} Servers: {shown or 'none; add one to your client configuration'}."

    def left_out(self) -> str:
        """Return what configuration could not be used, and why; it may be what is missed."""
        told = [f"{entry.name}: {entry.reason}" for entry in self.discovery.skipped]
        told += [str(warning) for warning in self.discovery.warnings if not warning.key]
        if not told:
            return ""
        shown = "; ".join(told[:MAX_LEFT_OUT])
        more = f" (and {len(told) - MAX_LEFT_OUT} more)" if len(told) > MAX_LEFT_OUT else ""
        return f"Configured but left out: {shown}{more}."

    async def load(
        self, names: Sequence[str], *, tolerant: bool = False, patient: bool = False
    ) -> tuple[dict[str, tuple[Tool, ...]], dict[str, BridgeError]]:
        """Return the tools of `names`, all asked at the same time, and the errors of the rest.

        Args:
            tolerant: Do without servers that fail or take long. Of one that takes long, the tools
                that it had last time count; a call will wait for it.
            patient: With `tolerant`, wait for the slow all the same, and try what just failed.

        Raises:
            BridgeError: One failed and `tolerant` is false.
        """
        if not names:
            return {}, {}
        outcomes: dict[str, tuple[Tool, ...] | BridgeError] = {}
        how = self._ask_briefly if tolerant and not patient else self._ask

        async def ask(name: str) -> None:
            outcomes[name] = await how(name)

        async with anyio.create_task_group() as tasks:
            for name in dict.fromkeys(names):
                tasks.start_soon(ask, name)
        tools: dict[str, tuple[Tool, ...]] = {}
        errors: dict[str, BridgeError] = {}
        for name in names:
            outcome = outcomes[name]
            if isinstance(outcome, BridgeError):
                errors[name] = outcome
            else:
                tools[name] = outcome
        if errors and not tolerant:
            raise next(iter(errors.values()))
        return tools, errors

    async def _ask(self, name: str) -> tuple[Tool, ...] | BridgeError:
        """Return a server's tools, or why there are none, however long that takes."""
        try:
            spec = self._pool.spec(name)
            tools = await self._pool.tools(name)
        except BridgeError as error:
            return error
        self._failures.pop(name, None)
        await self._learn(spec, tools)
        return tools

    async def _ask_briefly(self, name: str) -> tuple[Tool, ...] | BridgeError:
        """Return what there is to be had soon; what takes longer goes on meanwhile."""
        failure = self._failures.get(name)
        if failure is not None and anyio.current_time() < failure.until:
            return failure.error
        try:
            request = self._request(name)
        except UnknownServerError as error:
            return error
        # Those who come later wait only for what is left: one straggler costs one wait in all.
        with anyio.move_on_after(max(0.0, request.deadline - anyio.current_time())):
            await request.done.wait()
        if request.outcome is not None:
            return request.outcome
        known = self.known.tools(name)
        if known is not None:
            return known
        return ServerStartError(
            f"Server {name!r} did not answer within {self._straggler_seconds:g} s; "
            "it goes on starting.",
            server=name,
            remedy="Try again later, or name it in the program, which then waits for it.",
        )

    def _request(self, name: str) -> _Request:
        """Return the question under way to a server, or begin one."""
        if self._tasks is None:
            msg = "the servers have to be entered before they can be asked"
            raise RuntimeError(msg)
        spec = self._pool.spec(name)
        request = self._requests.get(name)
        if request is None or request.spec != spec:
            deadline = anyio.current_time() + self._straggler_seconds
            request = self._requests[name] = _Request(spec=spec, deadline=deadline)
            self._tasks.start_soon(self._carry_out, request)
        return request

    async def _carry_out(self, request: _Request) -> None:
        name = request.spec.name
        try:
            request.outcome = await self._ask(name)
        except Exception:
            # Nobody may be waiting any more, and one server's fault must not end the others.
            logger.exception("asking server %s for its tools failed", name)
        finally:
            request.done.set()
            if self._requests.get(name) is request:
                del self._requests[name]
        error = request.outcome
        if isinstance(error, UpstreamError) and request.spec in self.discovery.servers:
            until = anyio.current_time() + self._failure_seconds
            self._failures[name] = _Failure(spec=request.spec, error=error, until=until)

    async def _learn(self, spec: ServerSpec, tools: tuple[Tool, ...]) -> None:
        # It may have been redefined since it was asked.
        if self.known.tools(spec.name) is tools or spec not in self.discovery.servers:
            return
        if not self.known.learn(spec.name, tools):
            return
        await anyio.to_thread.run_sync(partial(self._cache.save, spec, tools))


def with_unread(now: Discovery, before: Discovery) -> Discovery:
    """Return `now` with the servers of files that cannot be read now, as they were `before`.

    Clients write their files in place, and some many times an hour: what is half-written at the
    moment of reading must not take servers away from under the programs that use them. The
    warning stays, and so says why a change does not show. A file that is gone has no servers.
    """
    unread = {warning.path for warning in now.warnings if warning.unread}
    taken = {spec.name for spec in now.servers}
    taken.update(entry.name for entry in now.skipped if entry.holds_name)
    kept = [
        spec for spec in before.servers if spec.source.path in unread and spec.name not in taken
    ]
    return replace(now, servers=(*now.servers, *kept)) if kept else now


def context_for(settings: Settings, cwd: str, platform: str) -> DiscoveryContext:
    """Return where to look for servers under these settings."""
    return DiscoveryContext(
        home=home(settings.environ),
        cwd=Path(cwd),
        platform="darwin" if platform == "darwin" else "win32" if platform == "win32" else "linux",
        environ=settings.environ,
        extra_config=settings.servers_config,
        allow_self=settings.allow_self_server,
        project_servers=settings.project_servers,
    )
