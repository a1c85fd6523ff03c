"""Asking servers for their tools, and keeping what they said true in the background.

Owns the questions under way, what became of those that failed, and the listings that were learnt;
one server that hangs or fails costs little. Owns also when a server is asked anew although nobody
waits for it: when what is known of it is old, and when it says that its tools have changed. Servers
that were started for that alone are stopped again, so that a search over fifty servers does not
leave fifty processes.
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

from bridge.errors import BridgeError, ServerStartError, UnknownServerError, UpstreamError
from bridge.model import ServerSpec, Tool
from bridge.servers.inventory import ToolInventory
from bridge.servers.tool_cache import Listing, ToolCache
from bridge.upstream.asking import forget_caller
from bridge.upstream.pool import Pool

logger = logging.getLogger(__name__)


STRAGGLER_SECONDS = 5.0
"""How long those who can do without a server wait for it. Most are up in two; those that fetch a
package first go on starting, and are there the next time."""

FAILURE_SECONDS = 60.0
"""How long a server that failed is left alone by those who can do without it. Short enough for a
user who has mended it, long enough that a row of searches does not wait for it each time."""

RENEW_SECONDS = 3600.0
"""How old a listing on disk may be before it is written again although nothing is new."""

Outcome = tuple[Tool, ...] | BridgeError


@dataclass(kw_only=True)
class Request:
    """One question for a server's tools, which goes on when nobody waits for it any more.

    Attributes:
        deadline: Until when it is waited for.
        outcome: None until `done`, and when it was cut short.
    """

    spec: ServerSpec
    deadline: float
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a server was not there, and until when that is taken to be still so."""

    spec: ServerSpec
    error: BridgeError
    until: float


class Lister:
    """Asks servers for their tools and keeps what they said.

    Attributes:
        tasks: Where questions go on that nobody waits for; set by who owns it, before any.
        listings: What is known of each server, by name.
        redefined_at: When a server's definition was last seen to change, in the epoch's seconds.

    Args:
        straggler_seconds: How long a brief question waits for a server.
        failure_seconds: How long brief questions do not try a server again that failed in one.
    """

    def __init__(
        self,
        pool: Pool,
        cache: ToolCache,
        known: ToolInventory,
        *,
        straggler_seconds: float = STRAGGLER_SECONDS,
        failure_seconds: float = FAILURE_SECONDS,
    ) -> None:
        self.tasks: TaskGroup | None = None
        self.listings: dict[str, Listing] = {}
        self.redefined_at: dict[str, float] = {}
        self._pool = pool
        self._cache = cache
        self._known = known
        self._straggler_seconds = straggler_seconds
        self._failure_seconds = failure_seconds
        self._specs: Mapping[str, ServerSpec] = {}
        self._saved: dict[str, float] = {}
        self._requests: dict[str, Request] = {}
        self._failures: dict[str, _Failure] = {}
        self._asked_at: dict[str, tuple[int, int] | None] = {}

    def is_current(self, name: str) -> bool:
        """Tell whether what is known of a server is what it says now, as far as it has told.

        Raises:
            UnknownServerError: There is none of that name.
        """
        now = self._pool.moment(name)
        return now is not None and self._asked_at.get(name) == now

    def read(self, specs: Iterable[ServerSpec]) -> dict[str, Listing]:
        """Return what earlier bridges, or this one, have kept of these servers. Reads files."""
        kept = self._cache.load_all(tuple(specs))
        return {name: listing for name, listing in kept.items() if listing is not None}

    def take(self, specs: Iterable[ServerSpec], listings: Mapping[str, Listing]) -> None:
        """Take another configuration, and what is known of its servers."""
        before, self._specs = self._specs, {spec.name: spec for spec in specs}
        self.listings = dict(listings)
        for name, spec in self._specs.items():
            # Values of variables are no part of what a listing is kept under, and may matter.
            if before.get(name, spec) != spec:
                self.redefined_at[name] = time.time()
        self._saved = {name: listing.listed_at for name, listing in self.listings.items()}
        self._failures = {
            name: failure
            for name, failure in self._failures.items()
            if self._specs.get(name) == failure.spec
        }

    async def ask(self, name: str, *, again: bool = False) -> Outcome:
        """Return a server's tools, or why there are none, however long that takes.

        Args:
            again: Ask it even if what it said counts still, unless that was a moment ago.
        """
        try:
            spec = self._pool.spec(name)
            running = self._pool.state(name).state == "ready"
            started = time.monotonic()
            before = self._pool.moment(name)
            tools = await self._pool.tools(name, again=again)
            after = self._pool.moment(name)
        except BridgeError as error:
            return error
        seconds = None if running else time.monotonic() - started
        self._failures.pop(name, None)
        await self._learn(spec, tools, seconds)
        # A change that was announced while it was asked may be missing in the answer.
        self._asked_at[name] = after if before in (None, after) else None
        return tools

    async def ask_briefly(self, name: str, turn: anyio.CapacityLimiter | None = None) -> Outcome:
        """Return what there is to be had soon; what takes longer goes on meanwhile.

        Args:
            turn: Has to be got before the server is started.
        """
        failure = self._failures.get(name)
        if failure is not None and anyio.current_time() < failure.until:
            return failure.error
        try:
            request = self.request(name, turn)
        except UnknownServerError as error:
            return error
        # Those who come later wait only for what is left: one straggler costs one wait in all.
        with anyio.move_on_after(max(0.0, request.deadline - anyio.current_time())):
            await request.done.wait()
        if request.outcome is not None:
            return request.outcome
        known = self._known.tools(name)
        if known is not None:
            return known
        return ServerStartError(
            f"Server {name!r} did not answer within {self._straggler_seconds:g} s; "
            "it goes on starting.",
            server=name,
            remedy="Try again later, or name it in the program, which then waits for it.",
        )

    def under_way(self, name: str) -> Request | None:
        """Return the question under way to a server, if there is one."""
        return self._requests.get(name)

    def request(self, name: str, turn: anyio.CapacityLimiter | None = None) -> Request:
        """Return the question under way to a server, or begin one.

        Raises:
            UnknownServerError: There is none of that name.
        """
        if self.tasks is None:
            raise RuntimeError("the servers have to be entered before they can be asked")
        spec = self._pool.spec(name)
        request = self._requests.get(name)
        if request is None or request.spec != spec:
            deadline = anyio.current_time() + self._straggler_seconds
            request = self._requests[name] = Request(spec=spec, deadline=deadline)
            self.tasks.start_soon(self._carry_out, request, turn)
        return request

    async def learn_from_disk(self, spec: ServerSpec) -> Listing | None:
        """Return what is kept of a server by now, and learn it: another bridge may have asked."""
        listing = await anyio.to_thread.run_sync(self._cache.load, spec)
        if listing is None or self._specs.get(spec.name) != spec:
            return None
        before = self.listings.get(spec.name)
        if before is None or listing.listed_at > before.listed_at:
            self.listings[spec.name] = listing
            self._known.learn(spec.name, listing.tools)
        return listing

    async def _carry_out(self, request: Request, turn: anyio.CapacityLimiter | None) -> None:
        # It may have been begun for one run, and serves, and outlives, others: what the server
        # asks meanwhile is not for that run's client.
        forget_caller()
        name = request.spec.name
        waiting: AbstractAsyncContextManager[None] = nullcontext() if turn is None else turn
        try:
            async with waiting:
                request.outcome = await self.ask(name)
        except Exception:
            # Nobody may be waiting any more, and one server's fault must not end the others.
            logger.exception("asking server %s for its tools failed", name)
        finally:
            request.done.set()
            if self._requests.get(name) is request:
                del self._requests[name]
        error = request.outcome
        if isinstance(error, UpstreamError) and self._specs.get(name) == request.spec:
            until = anyio.current_time() + self._failure_seconds
            self._failures[name] = _Failure(spec=request.spec, error=error, until=until)

    async def _learn(
        self, spec: ServerSpec, tools: tuple[Tool, ...], seconds: float | None
    ) -> None:
        before = self.listings.get(spec.name)
        if before is not None and before.tools is tools:
            # From the session's memory: nobody has asked the server anew.
            return
        if self._specs.get(spec.name) != spec:
            # It was redefined since it was asked.
            return
        news, now = self._known.learn(spec.name, tools), time.time()
        info = dict(self._pool.state(spec.name).server_info)
        self._known.introduce(spec.name, info.get("about", ""))
        listing = self.listings[spec.name] = Listing(
            server=spec.name,
            tools=tools,
            # Of a server that has closed meanwhile, what was known before.
            info=info or (before.info if before else {}),
            listed_at=now,
            start_seconds=seconds if seconds is not None or not before else before.start_seconds,
        )
        known_on_disk = before is not None and not news and before.info == listing.info
        if known_on_disk and 0 <= now - self._saved.get(spec.name, 0.0) < RENEW_SECONDS:
            return
        self._saved[spec.name] = now
        await anyio.to_thread.run_sync(partial(self._cache.save, spec, listing))


REFRESH_SECONDS = 24 * 3600.0
"""How old a listing may become. Servers change with their releases, and a run asks them anyway."""

FIRST_STARTS = 8
"""Servers that a search starts at once because it knows nothing of them: somebody waits."""

REFRESH_STARTS = 4
"""Servers started at once in the background, where nobody waits, beside the user's own work."""

SETTLE_SECONDS = 0.5
"""After word of a change. Servers that register their tools one by one say so once for each."""

RELIST_SECONDS = 10.0
"""Between two listings of a server that goes on saying so; a list may have thousands of tools."""


class Refresher:
    """Asks servers again in the background."""

    def __init__(self, pool: Pool, lister: Lister) -> None:
        self._pool = pool
        self._lister = lister
        self._first_turn = anyio.CapacityLimiter(FIRST_STARTS)
        self._refresh_turn = anyio.CapacityLimiter(REFRESH_STARTS)
        self._attempts: dict[str, tuple[ServerSpec, float]] = {}
        self._changed: set[str] = set()
        self._relisting: set[str] = set()
        self._used: set[str] = set()

    def use(self, names: Iterable[str]) -> None:
        """Take note that these servers are wanted for more than their list of tools."""
        self._used.update(names)

    async def first(self, names: Iterable[str], *, patient: bool) -> dict[str, BridgeError]:
        """Have servers asked of which nothing is known; return why some have no answer yet.

        Args:
            patient: Wait for the slow, and try what just failed.
        """
        errors: dict[str, BridgeError] = {}

        async def ask(name: str) -> None:
            idle = self._is_idle(name)
            if patient:
                async with self._first_turn:
                    outcome = await self._lister.ask(name)
            else:
                outcome = await self._lister.ask_briefly(name, self._first_turn)
            if isinstance(outcome, BridgeError):
                errors[name] = outcome
            if idle:
                self._rest_later(name)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return errors

    def refresh_later(self, names: Iterable[str]) -> None:
        """Have the servers asked again of which what is known is old; return at once."""
        tasks = self._lister.tasks
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
        """Whether a server's listing is older than it should become, or from the future."""
        listing = self._lister.listings.get(name)
        if listing is None or listing.listed_at < self._lister.redefined_at.get(name, 0.0):
            return True
        return not 0 <= time.time() - listing.listed_at < REFRESH_SECONDS

    def tools_changed(self, name: str) -> None:
        """Have a server's tools listed again soon: it says that they have changed."""
        self._changed.add(name)
        if name not in self._relisting and self._lister.tasks is not None:
            self._relisting.add(name)
            self._lister.tasks.start_soon(self._relist, name)

    async def _refresh(self, name: str) -> None:
        async with self._refresh_turn:
            try:
                idle = self._is_idle(name)
                await self._lister.learn_from_disk(self._pool.spec(name))
                if not self.is_old(name):
                    return
                await self._lister.request(name).done.wait()
                if idle:
                    self._rest(name)
            except BridgeError as error:
                # It is no longer configured.
                logger.debug("server %s is not asked again: %s", name, error)

    async def _relist(self, name: str) -> None:
        try:
            await anyio.sleep(SETTLE_SECONDS)
            while name in self._changed:
                self._changed.discard(name)
                # One that has gone is not started for this; it is asked when it is next needed.
                if self._pool.state(name).state != "ready":
                    return
                await self._lister.ask(name)
                await anyio.sleep(RELIST_SECONDS)
        except BridgeError as error:
            logger.debug("server %s is not asked again: %s", name, error)
        finally:
            self._relisting.discard(name)

    def _is_idle(self, name: str) -> bool:
        return name not in self._used and self._pool.state(name).state in ("idle", "failed")

    def _rest_later(self, name: str) -> None:
        """Stop a server once its answer is there, which may still be to come."""
        if self._lister.tasks is not None:
            self._lister.tasks.start_soon(self._rest_after, name)

    async def _rest_after(self, name: str) -> None:
        under_way = self._lister.under_way(name)
        if under_way is not None:
            await under_way.done.wait()
        self._rest(name)

    def _rest(self, name: str) -> None:
        if name in self._used:
            return
        try:
            self._pool.rest(name)
        except BridgeError as error:
            logger.debug("server %s is gone already: %s", name, error)
