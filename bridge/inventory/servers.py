"""Keeps the configured servers, their tools and their sessions current.

A changed configuration file takes effect with the next run. Sessions with unchanged definitions
stay open. A server that hangs or fails costs little, and one that was started only for its list of
tools is stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.discovery.finder import Discovery
from bridge.discovery.report import ProposedServer
from bridge.errors import (
    BridgeError,
    LoginRequiredError,
    RefusedError,
    ServerStartError,
    UnknownError,
    UpstreamError,
)
from bridge.guest.schema.names import nearest
from bridge.inventory.configuration import (
    Finder,
    ProjectConsents,
    approval_needed,
    reference_names,
    with_own_aliases,
    with_unread,
)
from bridge.inventory.inventory import Listing, ToolCache, ToolInventory
from bridge.inventory.learned_shapes import LearnedShapes, Loaded
from bridge.inventory.secrets import Secrets
from bridge.model import ServerSpec, Tool
from bridge.text import list_names
from bridge.upstream.client_features import clear_caller
from bridge.upstream.connection import FAILURE_SECONDS
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)

STRAGGLER_SECONDS = 5.0
"""Time to wait for a server that is not required. Most start in two seconds."""

REFRESH_SECONDS = 24 * 3600.0
"""Age at which a listing is old. Servers change with releases, and each run asks again."""

FIRST_STARTS = 8  # Servers that a search starts at once because their tools are unknown.

Outcome = tuple[Tool, ...] | BridgeError


@dataclass(kw_only=True)
class Request:
    """One request for a server's tools, which continues when its callers stop waiting."""

    spec: ServerSpec
    deadline: float  # Time until which callers wait.
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None  # None until `done`, and if the request was cancelled.


@dataclass(eq=False, repr=False)
class Lister:
    """Asks servers for their tools, also in the background, and stores the lists."""

    _pool: Pool
    cache: ToolCache
    _inventory: ToolInventory
    _straggler_seconds: float
    _failure_seconds: float

    def __post_init__(self) -> None:
        self.tasks: TaskGroup | None = None  # Runs the requests; set before the first one.
        self.listings: dict[str, Listing] = {}  # The last listings.
        self._redefined_at: dict[str, float] = {}
        self._specs: Mapping[str, ServerSpec] = {}
        self._saved: dict[str, float] = {}
        self.requests: dict[str, Request] = {}  # Those that are not done.
        # Errors of failed requests, and the time until which the servers are not asked again.
        self._failures: dict[str, tuple[ServerSpec, BridgeError, float]] = {}
        self._asked_at: dict[str, tuple[int, int] | None] = {}
        self._first_starts = anyio.CapacityLimiter(FIRST_STARTS)
        # Starts in the background must not disturb the user's own work.
        self._refresh_starts = anyio.CapacityLimiter(2)
        self._attempts: dict[str, tuple[ServerSpec, float]] = {}
        # Servers that are asked again after changes; whether they have reported another change.
        self._changed: dict[str, bool] = {}
        self._used: set[str] = set()

    def is_current(self, name: str) -> bool:
        """Return whether a server was asked since its last connection and reported change."""
        now = self._pool.server(name).connection_epoch
        return now is not None and self._asked_at.get(name) == now

    def configure(self, specs: Iterable[ServerSpec], listings: Mapping[str, Listing]) -> None:
        before, self._specs = self._specs, {spec.name: spec for spec in specs}
        self.listings = dict(listings)
        for name, spec in self._specs.items():
            # Variables' values are not part of a listing's key, but may change the tools.
            if before.get(name, spec) != spec:
                self._redefined_at[name] = time.time()
        self._saved = {name: listing.listed_at for name, listing in self.listings.items()}
        self._failures = {
            name: failure
            for name, failure in self._failures.items()
            if self._specs.get(name) == failure[0]
        }

    async def ask(self, name: str, *, again: bool = False, patient: bool = False) -> Outcome:
        """Return a server's tools or the error.

        `again` asks even if the session has a current list, unless the list is very recent.
        """
        try:
            spec = self._pool.spec(name)
            running = self._pool.state(name).state == "ready"
            started = time.monotonic()
            before = self._pool.server(name).connection_epoch
            tools = await self._pool.server(name).tools(refresh=again, patient=patient)
            after = self._pool.server(name).connection_epoch
        except BridgeError as error:
            return error
        seconds = None if running else time.monotonic() - started
        self._failures.pop(name, None)
        await self._record(spec, tools, seconds)
        # The answer may lack a change that was reported during the request.
        self._asked_at[name] = after if before in (None, after) else None
        return tools

    async def ask_briefly(self, name: str, limiter: anyio.CapacityLimiter | None = None) -> Outcome:
        """Return a server's tools or an error within `straggler_seconds`; the request continues.

        Of a slow server it returns the known tools, if there are any.
        """
        _, failure, until = self._failures.get(name, (None, None, 0.0))
        if failure is not None and anyio.current_time() < until:
            return failure
        try:
            request = self.request(name, limiter)
        except UnknownError as error:
            return error
        # All callers have one deadline, so a slow server costs one wait.
        with anyio.move_on_after(max(0.0, request.deadline - anyio.current_time())):
            await request.done.wait()
        if request.outcome is not None:
            return request.outcome
        if (known := self._inventory.tools(name)) is not None:
            return known
        return ServerStartError(
            f"Server {name!r} did not answer within {self._straggler_seconds:g} s; "
            "it continues to start.",
            server=name,
            remedy="Try again later, or name it in the program, which then waits for it.",
        )

    def request(self, name: str, limiter: anyio.CapacityLimiter | None = None) -> Request:
        if self.tasks is None:
            raise RuntimeError("the servers have to be entered before they can be asked")
        spec = self._pool.spec(name)
        request = self.requests.get(name)
        if request is None or request.spec != spec:
            deadline = anyio.current_time() + self._straggler_seconds
            request = self.requests[name] = Request(spec=spec, deadline=deadline)
            self.tasks.start_soon(self._run_request, request, limiter)
        return request

    async def _run_request(self, request: Request, limiter: anyio.CapacityLimiter | None) -> None:
        # The request may outlive its run and serve others, so the server's questions must not go
        # to that run's client.
        clear_caller()
        name = request.spec.name
        slot: AbstractAsyncContextManager[None] = nullcontext() if limiter is None else limiter
        try:
            async with slot:
                outcome = await self.ask(name)
            starting = name in self._pool.names() and self._pool.state(name).state == "starting"
            if isinstance(outcome, BridgeError) and starting:
                # An installation does not need one of the slots for starts.
                outcome = await self.ask(name, patient=True)
            request.outcome = outcome
        except Exception:
            # One server's failure must not end the others' requests.
            logger.exception("asking server %s for its tools failed", name)
        finally:
            request.done.set()
            if self.requests.get(name) is request:
                del self.requests[name]
        error = request.outcome
        if isinstance(error, UpstreamError) and self._specs.get(name) == request.spec:
            until = anyio.current_time() + self._failure_seconds
            self._failures[name] = request.spec, error, until

    async def _record(
        self, spec: ServerSpec, tools: tuple[Tool, ...], seconds: float | None
    ) -> None:
        before = self.listings.get(spec.name)
        if before is not None and before.tools is tools:
            # It is the session's cached list, so the server was not asked again.
            return
        if self._specs.get(spec.name) != spec:
            # It was redefined since it was asked.
            return
        changed, now = self._inventory.update(spec.name, tools), time.time()
        info = dict(self._pool.state(spec.name).server_info)
        self._inventory.describe(spec.name, info)
        listing = self.listings[spec.name] = Listing(
            server=spec.name,
            tools=tools,
            # A server that has closed meanwhile has no information, so the old one stays.
            info=info or (before.info if before else {}),
            listed_at=now,
            start_seconds=seconds if seconds is not None or not before else before.start_seconds,
        )
        is_stored = before is not None and not changed and before.info == listing.info
        if is_stored and 0 <= now - self._saved.get(spec.name, 0.0) < 3600.0:
            return
        self._saved[spec.name] = now
        await self.cache.run(self.cache.save, spec, listing)

    def use(self, names: Iterable[str]) -> None:
        """Mark servers as used by runs, so that they are not stopped after listing."""
        self._used.update(names)

    async def first(self, names: Iterable[str], *, patient: bool) -> dict[str, BridgeError]:
        """Ask servers whose tools are unknown; return the errors of those without an answer."""
        errors: dict[str, BridgeError] = {}

        async def ask(name: str) -> None:
            idle = self._is_idle(name)
            if patient:
                async with self._first_starts:
                    outcome = await self.ask(name, patient=True)
            else:
                outcome = await self.ask_briefly(name, self._first_starts)
            if isinstance(outcome, BridgeError):
                errors[name] = outcome
            if idle and self.tasks is not None:
                self.tasks.start_soon(self._stop_unused, name)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return errors

    def refresh_later(self, names: Iterable[str]) -> None:
        tasks = self.tasks
        if tasks is None:
            return
        now = anyio.current_time()
        for name in names:
            if not self.is_old(name):
                continue
            spec = self._pool.spec(name)
            tried, when = self._attempts.get(name, (None, 0.0))
            if tried != spec or now - when >= REFRESH_SECONDS:
                self._attempts[name] = spec, now
                tasks.start_soon(self._refresh, name)

    def is_old(self, name: str) -> bool:
        listing = self.listings.get(name)
        if listing is None or listing.listed_at < self._redefined_at.get(name, 0.0):
            return True
        return not 0 <= time.time() - listing.listed_at < REFRESH_SECONDS

    def tools_changed(self, name: str) -> None:
        """Start asking a server that reports changed tools; do not wait."""
        if self.tasks is not None:
            if name not in self._changed:
                self.tasks.start_soon(self._relist, name)
            self._changed[name] = True

    async def _refresh(self, name: str) -> None:
        async with self._refresh_starts:
            try:
                idle = self._is_idle(name)
                spec = self._pool.spec(name)
                # Another bridge may have asked, and this one may ask meanwhile.
                listing = await self.cache.run(self.cache.load, spec)
                before = self.listings.get(name)
                newer = listing and (before is None or listing.listed_at > before.listed_at)
                if listing and newer and self._specs.get(name) == spec:
                    self.listings[name] = listing
                    self._inventory.update(name, listing.tools)
                if not self.is_old(name):
                    return
                request = self.request(name)
                with anyio.move_on_after(STRAGGLER_SECONDS):
                    await request.done.wait()
            except UnknownError:
                return
        if idle:
            await self._stop_unused(name)

    async def _relist(self, name: str) -> None:
        try:
            await anyio.sleep(0.5)  # Servers that register tools one by one report each.
            while self._changed[name]:
                self._changed[name] = False
                # A stopped server is asked at its next start.
                if self._pool.state(name).state != "ready":
                    return
                await self.ask(name)
                await anyio.sleep(10.0)  # A server may keep reporting changes.
        except UnknownError:
            return
        finally:
            del self._changed[name]

    def _is_idle(self, name: str) -> bool:
        return name not in self._used and self._pool.state(name).state in ("idle", "failed")

    async def _stop_unused(self, name: str) -> None:
        if (request := self.requests.get(name)) is not None:
            await request.done.wait()
        if name not in self._used and name in self._pool.names():
            self._pool.server(name).stop_if_unused()


class Servers:
    """The discovered servers, their tools and their sessions. Enter before use.

    Entering reads the configuration. A tolerant load waits `straggler_seconds` for a server, and
    does not retry a failed one within `failure_seconds`. `offer_login` asks the current run's user
    to log in to a server, and returns whether they did.
    """

    def __init__(
        self,
        finder: Finder,
        pool: Pool,
        cache: ToolCache,
        *,
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
        self._lister = Lister(pool, cache, self.inventory, straggler_seconds, failure_seconds)
        pool.on_tools_changed = self._lister.tools_changed
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Servers:
        async with AsyncExitStack() as stack:
            if self._shapes is not None:
                stack.push_async_callback(self._shapes.close)
            await stack.enter_async_context(self.pool)
            await self.refresh()
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            self._lister.tasks = tasks
            if self._shapes is not None:
                tasks.start_soon(self._shapes.save_regularly)
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
        self.discovery, listings, shapes = await self._lister.cache.run(self._read)
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
        if near := nearest(name, [*self.aliases, *self.aliases.values()]):
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
        names = list_names(sorted(self.aliases), 30)
        return f"{problem} Servers: {names or 'none; add one to your client configuration'}."

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
