"""Asks servers for their tools, and renews their listings in the background.

A server that hangs or fails costs little. A server that was started only for its list is stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.errors import BridgeError, ServerStartError, UnknownError, UpstreamError
from bridge.inventory.inventory import ToolInventory
from bridge.inventory.tool_cache import Listing, ToolCache
from bridge.model import ServerSpec, Tool
from bridge.upstream.client_features import clear_caller
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


class Lister:
    """Asks servers for their tools, also in the background, and stores the lists."""

    def __init__(
        self,
        pool: Pool,
        cache: ToolCache,
        inventory: ToolInventory,
        straggler_seconds: float,
        failure_seconds: float,
    ) -> None:
        self.tasks: TaskGroup | None = None  # Runs the requests; set before the first one.
        self.listings: dict[str, Listing] = {}  # The last listings.
        self._redefined_at: dict[str, float] = {}
        self._pool = pool
        self.cache = cache
        self._inventory = inventory
        self._straggler_seconds = straggler_seconds
        self._failure_seconds = failure_seconds
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
        known = self._inventory.tools(name)
        if known is not None:
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
        await anyio.to_thread.run_sync(partial(self.cache.save, spec, listing))

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
                listing = await anyio.to_thread.run_sync(self.cache.load, spec)
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
        request = self.requests.get(name)
        if request is not None:
            await request.done.wait()
        if name not in self._used and name in self._pool.names():
            self._pool.server(name).stop_if_unused()
