"""The user's servers as a run sees them: discovered, aliased, kept fresh.

Owns the link between discovery and the session pool: when a configuration file changes, the next
run sees it, and sessions whose definition did not change stay open.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import anyio
import anyio.to_thread

from bridge.catalog.entries import ServerEntry, server_entries
from bridge.catalog.naming import server_aliases
from bridge.discovery.find import Discovery, DiscoveryContext, current_stamp, discover
from bridge.engine.tool_cache import ToolCache
from bridge.errors import BridgeError, UnknownServerError
from bridge.model import Tool
from bridge.settings import Settings, home
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)

MAX_SHOWN_NAMES = 30
"""Of servers, in an error."""

MAX_LEFT_OUT = 5
"""Entries and files, in an error on a server that does not exist."""


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

    def stamp(self) -> object:
        """Return the state of every file that could define a server."""
        return current_stamp(self._context)

    def find(self) -> Discovery:
        """Read the files."""
        return discover(self._context)


class Servers:
    """Discovered servers and the sessions to them. Enter before use."""

    def __init__(self, finder: Finder, pool: Pool, cache: ToolCache) -> None:
        self._finder = finder
        self._pool = pool
        self._cache = cache
        self._stamp: object = None
        self.discovery = Discovery(servers=(), skipped=(), warnings=(), stamp=())
        self.aliases: Mapping[str, str] = {}
        self._known: dict[str, tuple[Tool, ...]] = {}

    async def __aenter__(self) -> Servers:
        await self._pool.__aenter__()
        await self.refresh()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.__aexit__(kind, error, traceback)

    @property
    def pool(self) -> Pool:
        """The sessions."""
        return self._pool

    async def refresh(self) -> bool:
        """Read the configuration if a file of it changed since; return whether one did."""
        stamp = await anyio.to_thread.run_sync(self._finder.stamp)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.discovery, self._known = await anyio.to_thread.run_sync(self._read)
        self.aliases = server_aliases([spec.name for spec in self.discovery.servers])
        self._pool.update(self.discovery.servers)
        for warning in self.discovery.warnings:
            logger.warning("%s", warning)
        return True

    def _read(self) -> tuple[Discovery, dict[str, tuple[Tool, ...]]]:
        discovery = self._finder.find()
        cached = {spec.name: self._cache.load(spec) for spec in discovery.servers}
        return discovery, {name: tools for name, tools in cached.items() if tools is not None}

    def names(self) -> tuple[str, ...]:
        """Return every discovered server's own name."""
        return tuple(spec.name for spec in self.discovery.servers)

    def entries(self, *, loaded: Sequence[str] = ()) -> tuple[ServerEntry, ...]:
        """Return what is known of every server: tools of those that were ever asked for them."""
        descriptions = {spec.name: spec.description for spec in self.discovery.servers}
        return server_entries(descriptions, self._known, loaded=loaded)

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
        self, names: Sequence[str], *, tolerant: bool = False
    ) -> tuple[dict[str, tuple[Tool, ...]], dict[str, BridgeError]]:
        """Return the tools of `names`, all asked at the same time, and the errors of the rest.

        Raises:
            BridgeError: One failed and `tolerant` is false.
        """
        tools: dict[str, tuple[Tool, ...]] = {}
        errors: dict[str, BridgeError] = {}

        async def ask(name: str) -> None:
            try:
                tools[name] = await self._pool.tools(name)
            except BridgeError as error:
                errors[name] = error
            else:
                await self._learn(name, tools[name])

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        if errors and not tolerant:
            raise next(errors[name] for name in names if name in errors)
        return {name: tools[name] for name in names if name in tools}, errors

    async def _learn(self, name: str, tools: tuple[Tool, ...]) -> None:
        if self._known.get(name) == tools:
            return
        self._known[name] = tools
        save = partial(self._cache.save, self._pool.spec(name), tools)
        await anyio.to_thread.run_sync(save)


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
