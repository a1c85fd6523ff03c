"""Where a run's program runs, and when: a sandbox of its own, or its session's.

Owns the order of the queue, packages and the sandbox, and the second try of a program whose first
sandbox was dead before it began.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bridge.errors import NotStartedError
from bridge.model import RunRequest, RunResult
from bridge.packages.packages import Packages
from bridge.runs.guest_session import GuestSession
from bridge.runs.prepared_run import PreparedRun
from bridge.runs.sandboxes import Sandboxes
from bridge.sandbox.pool import Acquire
from bridge.sandbox.run_queue import RunQueue
from bridge.sessions import SessionRun, Sessions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A sandbox that a run has.

    Attributes:
        guest: Returns it once its guest waits for a program.
        waited: Whether it may have waited, and died, before the run got it.
        session: The run's part in its session, if it is in one.
    """

    guest: Callable[[], Awaitable[GuestSession]]
    waited: bool
    session: SessionRun | None = None


Work = Callable[[PreparedRun, Place], Awaitable[RunResult]]  # What is done with a place.


class Places:
    """Gives runs their places."""

    def __init__(
        self, queue: RunQueue, packages: Packages, sandboxes: Sandboxes, sessions: Sessions
    ) -> None:
        self._queue = queue
        self._packages = packages
        self._sandboxes = sandboxes
        self._sessions = sessions

    async def run(self, run: PreparedRun, work: Work) -> RunResult:
        if run.request.session:
            return await self._in_session(run, work)
        async with self._queue.slot(run.request.owner, run.caller.queued) as place:
            if run.request.may_need_packages:
                packages = await self._packages.resolve(run.request, run.caller)
                run = replace(run, packages=packages)
                if run.request.ends_bridge:
                    # There is no time after the run.
                    self._packages.compile_later(packages)
            try:
                return await self._in_own_sandbox(run, work, place.keep)
            except NotStartedError as error:
                logger.warning("the program is started again in a new sandbox: %s", error)
            return await self._in_own_sandbox(run, work, place.keep, fresh=True)

    async def end_session(self, request: RunRequest) -> RunResult:
        return await self._sessions.end(request)

    async def _in_own_sandbox(
        self, run: PreparedRun, work: Work, keep: Acquire, *, fresh: bool = False
    ) -> RunResult:
        reserve = self._sandboxes.reserve
        async with reserve(
            run.limits, fresh=fresh, binds=run.packages.binds, keep=keep
        ) as reserved:
            result = await work(run, Place(guest=reserved.get, waited=not fresh))
        self._packages.compile_later(run.packages)
        return result

    async def _in_session(self, run: PreparedRun, work: Work) -> RunResult:
        async def in_turn(guest: GuestSession, session: SessionRun) -> RunResult:
            session.check(run.request)
            placed = replace(
                run,
                # What earlier runs read counts for this one.
                gate=run.gate.in_session(session.flow),
                packages=session.packages,
            )

            async def ready() -> GuestSession:
                return guest

            # A run that waits here has its session; one with a place never waits for a session.
            async with self._queue.slot(run.request.owner, run.caller.queued):
                result = await work(
                    placed, Place(guest=ready, waited=session.waited, session=session)
                )
            self._packages.compile_later(session.packages)
            return result

        return await self._sessions.run(run.request, run.limits, run.caller, in_turn)
