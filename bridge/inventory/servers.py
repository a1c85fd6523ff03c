"""Keeps the configured servers, their tools and their sessions current.

A changed configuration file takes effect with the next run. Sessions with unchanged definitions
stay open.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

import anyio
import anyio.to_thread

from bridge.discovery.finder import Discovery
from bridge.discovery.report import ProposedServer
from bridge.errors import BridgeError, LoginRequiredError, RefusedError, UnknownError, UpstreamError
from bridge.guest.schema.names import nearest
from bridge.inventory.configuration import (
    Finder,
    ProjectConsents,
    approval_needed,
    reference_names,
    with_own_aliases,
    with_unread,
)
from bridge.inventory.inventory import ToolInventory
from bridge.inventory.learned_shapes import LearnedShapes, Loaded
from bridge.inventory.refresher import STRAGGLER_SECONDS, Lister
from bridge.inventory.secrets import Secrets
from bridge.inventory.tool_cache import Listing, ToolCache
from bridge.model import ServerSpec, Tool
from bridge.upstream.connection import FAILURE_SECONDS
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)


class Servers:
    """The discovered servers, their tools and their sessions. Enter before use.

    Entering reads the configuration if `eager`; if not, call `refresh` first. A tolerant load waits
    `straggler_seconds` for a server, and does not retry a failed one within `failure_seconds`.
    `offer_login` asks the current run's user to log in to a server, and returns whether they did.
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
        observed: LearnedShapes | None = None,
        secrets: Secrets | None = None,
        consents: ProjectConsents | None = None,
        offer_login: Callable[[ServerSpec], Awaitable[bool]] | None = None,
    ) -> None:
        self.consents = consents
        self.straggler_seconds = straggler_seconds
        self._offer_login = offer_login
        self._finder = finder
        self.pool = pool
        self._stamp: object = None
        self._refreshing = anyio.Lock()
        self.discovery = Discovery(servers=(), skipped=(), warnings=(), stamp=())
        self._shapes = observed
        self.secrets = secrets or Secrets()
        self.inventory = ToolInventory(observed, self.secrets.redactor)
        self.secrets.changed = self.inventory.redact_again
        self._eager = eager
        self._lister = Lister(pool, cache, self.inventory, straggler_seconds, failure_seconds)
        pool.on_tools_changed = self._lister.tools_changed
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Servers:
        async with AsyncExitStack() as stack:
            if self._shapes is not None:
                stack.push_async_callback(self._shapes.close)
            await stack.enter_async_context(self.pool)
            if self._eager:
                await self.refresh()
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            self._lister.tasks = tasks
            if self._shapes is not None:
                tasks.start_soon(self._shapes.save_regularly)
            if not self._eager:
                tasks.start_soon(self.refresh)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without the body's exception, which the task group would wrap in an exception group.
        await self._stack.aclose()

    @property
    def aliases(self) -> Mapping[str, str]:
        return self.inventory.aliases

    async def refresh(self) -> bool:
        """Read the configuration again if one of its files changed; return whether one did."""
        async with self._refreshing:
            stamp = await anyio.to_thread.run_sync(self._finder.stamp)
            if stamp == self._stamp:
                return False
            await self._reconfigure(stamp)
        return True

    async def _reconfigure(self, stamp: object) -> None:
        self.discovery, listings, shapes = await anyio.to_thread.run_sync(self._read)
        self._stamp = stamp
        self.secrets.configure(self.discovery.servers)
        if self._shapes is not None:
            self._shapes.configure(self.discovery.servers, shapes)
        self.inventory.configure(self.discovery.servers, listings)
        self.pool.update(self.discovery.servers)
        self._lister.configure(self.discovery.servers, listings)
        for entry in self.discovery.skipped:
            logger.info("%s is configured but skipped: %s", entry.name, entry.reason)
        for warning in self.discovery.warnings:
            # Clients' files often have mistakes, which `servers` and `doctor` list. Only those in
            # files that the bridge's own settings name are warnings here.
            logger.log(logging.WARNING if warning.own else logging.INFO, "%s", warning)

    def _read(self) -> tuple[Discovery, dict[str, Listing], Loaded]:
        discovery = with_own_aliases(with_unread(self._finder.find(), self.discovery))
        shapes = {} if self._shapes is None else self._shapes.load(discovery.servers)
        return discovery, self._lister.cache.load_all(discovery.servers), shapes

    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.discovery.servers)

    def definition(self, name: str) -> str:
        return self.pool.spec(name).definition if name in self.aliases else ""

    def is_own(self, name: str) -> bool:
        """Return whether the user's own file, not a project's, defines a server."""
        return name in self.aliases and not self.pool.spec(name).written

    def last_listing(self, name: str) -> Listing | None:
        return self._lister.listings.get(name)

    def resolve(self, name: str) -> str:
        if (configured := self._find(name)) is not None:
            return configured
        for proposal in self.proposals(name):
            raise approval_needed(proposal)
        for entry in self.discovery.skipped:
            if entry.name == name:
                message = f"The server {name!r} is configured, but skipped."
                raise UnknownError(
                    message,
                    host_detail=f"In {entry.source}: {entry.reason}.",
                    code="unknown_server",
                )
        message = f"There is no server {name!r:.200}."
        near = nearest(name, [*self.aliases, *self.aliases.values()])
        if near:
            message = f"{message} Did you mean {near!r}?"
        raise UnknownError(self.unknown_server_text(message), code="unknown_server")

    def _find(self, name: str) -> str | None:
        """Return the server with this name, alias or variable; None if there is none."""
        if name in self.aliases:
            return name
        known = self.aliases.items()
        return next((own for own, alias in known if name in (alias, f"mcp_{alias}")), None)

    def proposals(self, name: str) -> tuple[ProposedServer, ...]:
        if self._find(name) is not None:
            return ()
        return tuple(each for each in self.discovery.proposed if name in reference_names(each.name))

    def unknown_server_text(self, problem: str) -> str:
        names = sorted(self.aliases)
        shown = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if names[30:] else "")
        return f"{problem} Servers: {shown or 'none; add one to your client configuration'}."

    def skip_reasons(self, missed: Sequence[str]) -> str:
        """Return why configured servers with these names are skipped; empty for none."""
        skipped = self.discovery.skipped
        meant = [entry for entry in skipped if not reference_names(entry.name).isdisjoint(missed)]
        reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in meant[:5])
        return f"Configured but skipped: {reasons}." if reasons else ""

    def is_current(self, name: str) -> bool:
        return self._lister.is_current(name)

    async def ensure_current(self, name: str) -> None:
        """Ensure that the inventory has the server's present list of tools."""
        if self._lister.is_current(name):
            return
        # Starting drops the last connection's list, so that `load` asks again.
        await self.pool.server(name).start()
        await self.load([name])

    async def define(self, server: str, tool: str) -> Tool | None:
        """Return a tool's definition, after asking a server that was never asked."""
        if self.inventory.tools(server) is None:
            # If it cannot be asked, the call itself reports the reason.
            with suppress(UpstreamError):
                await self.load([server])
        return self.inventory.tool(server, tool)

    async def define_now(self, asked: set[str], server: str, tool: str) -> Tool | None:
        """Return a tool's present definition, for a policy that decides by it.

        `asked` has the servers that this run has already asked again.
        """
        try:
            await self.ensure_current(server)
        except UpstreamError:
            if self.pool.server(server).connection_epoch is None:
                raise
            # It may take calls without a list, but its earlier list is not trusted.
            return None
        found = self.inventory.tool(server, tool)
        if found is None and server not in asked:
            # Calls of unlisted tools are denied, and some servers do not announce new tools.
            asked.add(server)
            await self.ask_again([server])
            found = self.inventory.tool(server, tool)
        return found

    async def ask_again(self, names: Iterable[str]) -> None:
        """Ask these servers again, if connected, because a tool was missing."""
        with anyio.move_on_after(STRAGGLER_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in names:
                    if self.pool.server(name).connection_epoch is not None:
                        tasks.start_soon(partial(self._lister.ask, name, again=True))

    async def load_unknown(
        self, names: Sequence[str], *, fresh: bool = False, patient: bool = False
    ) -> dict[str, BridgeError]:
        """Load the tools of `names` for searching and listing; return the errors of the others.

        It starts only servers whose tools are unknown, and stops them again; `fresh` asks all
        servers. If `patient`, it waits for slow servers and retries failed ones.
        """
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if fresh or self.inventory.tools(name) is None]
        errors = await self._lister.first(missing, patient=patient or fresh)
        if not patient:
            self._lister.refresh_later(name for name in wanted if name not in missing)
        return errors

    def load_unknown_later(self) -> None:
        self._lister.refresh_later(
            name for name in self.names() if self.inventory.tools(name) is None
        )

    def starting_servers(self, names: Iterable[str]) -> list[str]:
        unknown = (name for name in names if self.inventory.tools(name) is None)
        return [name for name in unknown if name in self._lister.requests]

    async def wait_for_starts(self, names: Iterable[str]) -> None:
        for request in [self._lister.requests[name] for name in self.starting_servers(names)]:
            await request.done.wait()

    async def load(
        self, names: Sequence[str], *, tolerant: bool = False, patient: bool = False
    ) -> tuple[dict[str, tuple[Tool, ...]], dict[str, BridgeError]]:
        """Ask `names` concurrently; return their tools, and the errors of the others.

        A refused server is among the errors, unless all are refused. Other errors are raised,
        unless `tolerant`: then of a slow server the last known tools are used. `patient` waits
        for slow servers and retries failed ones.
        """
        if not names:
            return {}, {}
        self._lister.use(names)
        outcomes: dict[str, tuple[Tool, ...] | BridgeError] = {}
        how = self._lister.ask_briefly if tolerant and not patient else self._lister.ask

        async def ask(name: str) -> None:
            outcomes[name] = await how(name)
            if tolerant or not isinstance(outcomes[name], LoginRequiredError):
                return
            if self._offer_login is not None and await self._offer_login(self.pool.spec(name)):
                outcomes[name] = await how(name)

        async with anyio.create_task_group() as tasks:
            for name in dict.fromkeys(names):
                tasks.start_soon(ask, name)
        tools = {n: each for n in names if not isinstance(each := outcomes[n], BridgeError)}
        errors = {n: each for n in names if isinstance(each := outcomes[n], BridgeError)}
        for error in () if tolerant else errors.values():
            if not (tools and isinstance(error, RefusedError)):
                raise error
        return tools, errors
