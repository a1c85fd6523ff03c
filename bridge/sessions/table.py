"""All sessions of a bridge, found by owner and by name or id.

A known caller may use a session's name. Any other caller needs the id, which cannot be guessed.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from bridge.callers.client import RunCaller
from bridge.errors import BridgeError, InvalidRequestError, UnknownError
from bridge.event_loop import background_tasks
from bridge.model import MEBIBYTE, Limits, RunRequest, RunResult
from bridge.sessions.admission import SessionAdmission
from bridge.sessions.checkpoints import (
    MAX_STATE_BYTES,
    Checkpoints,
    Claims,
    Saved,
    SessionKey,
    session_key,
    takeover,
)
from bridge.sessions.record import ID_BYTES, Record
from bridge.sessions.session import (
    SAVE_SECONDS,
    Reserve,
    ResolvePackages,
    SaveState,
    Session,
    SessionServices,
)
from bridge.sessions.turns import QueuedRun
from bridge.settings import Settings
from bridge.store import Store

MAX_REMEMBERED = 500
"""Remembered sessions without a sandbox: a client can use any number of names."""

_ID = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A session in its owner's list."""

    record: Record
    state: Literal["open", "put away"]
    idle_seconds: float  # Since its last use.
    memory_bytes: int = 0  # The memory limit of its sandbox; 0 without one.


class Sessions:
    """All sessions of a bridge, by owner and by name or id. They run only inside `opened`."""

    def __init__(
        self,
        settings: Settings,
        reserve: Reserve,
        store: Store,
        resolve_packages: ResolvePackages,
        save_state: SaveState,
    ) -> None:
        self._settings = settings
        claims = Claims(store, settings.replica) if settings.replica else None
        longest = settings.max_timeout + SAVE_SECONDS + 10.0  # to release the sandbox
        self._services = SessionServices(
            reserve=reserve,
            resolve_packages=resolve_packages,
            save_state=save_state,
            admission=SessionAdmission(settings.sessions, longest),
            checkpoints=Checkpoints(store, days=settings.session_days, claims=claims),
            claims=claims,
            idle_timeout=settings.session_idle_timeout,
            # The host takes no more than `MAX_STATE_BYTES`.
            state_bytes=min(settings.session_bytes, MAX_STATE_BYTES - 4 * MEBIBYTE),
        )
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._finding = anyio.Lock()
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve sessions; leaving saves and ends every one of them."""
        async with background_tasks() as self._tasks:
            if (claims := self._services.claims) is not None:
                self._tasks.start_soon(claims.renew, self._note_loss)
            try:
                yield
            finally:
                self._tasks = None
                with anyio.CancelScope(shield=True), anyio.move_on_after(20.0):
                    async with anyio.create_task_group() as ending:
                        for session in tuple(self._sessions.values()):
                            ending.start_soon(session.stop)

    @property
    def open(self) -> int:
        return self._services.admission.open

    @property
    def unsaved(self) -> int:
        """The number of sessions whose state is in their sandboxes only."""
        return sum(session.record.is_unsaved for session in self._sessions.values())

    def check(self, request: RunRequest) -> None:
        """Check that a request can run in a session; the error says what to do instead."""
        if self._settings.sessions < 1:
            raise BridgeError(
                "Sessions are turned off here.",
                remedy="Leave `session` out: each run then begins with nothing of the last. "
                "MCP_BRIDGE_SESSIONS sets how many may be open.",
                code="session_limit",
            )
        if request.mode == "plan":
            raise InvalidRequestError(
                "A plan cannot be made in a session: what it makes up for calls that it holds back "
                "would stay in the session's variables.",
                remedy='Make the plan without `session`, or the run without mode="plan".',
            )

    @asynccontextmanager
    async def queued(
        self, request: RunRequest, limits: Limits, caller: RunCaller | None
    ) -> AsyncIterator[QueuedRun]:
        """Queue a run in its session, and wait for its turn; leaving waits for its save."""
        while True:
            ends = request.ends_session_only
            queued = QueuedRun(request=None if ends else request, limits=limits, caller=caller)
            found = await self._find(request, make=not ends)
            found.record.named = request.named_sessions
            if (session := await self._put(found, queued)) is None:
                continue
            try:
                if await queued.wait_turn() is not None or queued.outcome is not None:
                    yield queued
                    await queued.over.wait()
                    return
            finally:
                if not queued.over.is_set():
                    session.withdraw(queued)

    async def end_session(self, request: RunRequest) -> RunResult:
        """End a session, after the runs in it that were asked for before."""
        async with self.queued(request, Limits(), None) as queued:
            assert isinstance(queued.outcome, RunResult)
            return queued.outcome

    async def listed(self, owner: str) -> tuple[Listed, ...]:
        """Return an owner's sessions, those used last first."""
        found: dict[str, Listed] = {}
        now = anyio.current_time()
        kept, stored = self._services.checkpoints, tuple[Saved, ...]()
        try:
            stored = await kept.run(kept.all, owner)
        except OSError as error:
            kept.explain(error)
        for saved in stored:
            found[saved.session_id] = Listed(
                record=Record(owner, saved.name, saved),
                state="put away",
                idle_seconds=max(0.0, time.time() - saved.moment),
            )
        for session in self._sessions.values():
            if session.owner == owner and (session.is_open or session.in_use):
                found[session.record.session_id] = Listed(
                    record=session.record,
                    state="open",
                    idle_seconds=0.0 if session.in_use else max(0.0, now - session.since),
                    memory_bytes=session.memory_bytes,
                )
        return tuple(sorted(found.values(), key=lambda each: each.idle_seconds))

    async def _put(self, session: Session, queued: QueuedRun) -> Session | None:
        """Queue a run in a session; return the session, or None if it has ended."""
        async with session.claiming:
            if (claims := self._services.claims) is not None:
                session = await self._claim(session, claims)
            if session.over:
                return None
            if self._tasks is None:
                if claims is not None:
                    await claims.release(session.owner, session.record.session_id)
                raise BridgeError("The bridge is ending.", code="session_limit")
            if session.put(queued):
                self._tasks.start_soon(self._serve, session)
        return session

    async def _serve(self, session: Session) -> None:
        try:
            await session.serve()
        finally:
            self._settle(session)
            with anyio.CancelScope(shield=True):
                await session.release()

    async def _claim(self, session: Session, claims: Claims) -> Session:
        """Claim a session; return it, or what it has become in another replica."""
        record = session.record
        session.claimed = session.claimed and claims.holds(record.owner, record.session_id)
        # A replica that was paused or cut off for too long claims again what it may have lost.
        if session.over or (session.claimed and claims.are_fresh()):
            return session
        try:
            saved, lapsed = await claims.claim(record.owner, record.session_id)
        except BaseException as error:
            if not session.claimed:
                with anyio.CancelScope(shield=True):
                    await claims.release(record.owner, record.session_id)
            if isinstance(error, OSError):
                self._services.checkpoints.explain(error)
            raise
        # No `await` before `claimed` is set: a claim that no session records is never released.
        if record.saved != (0 if saved is None else saved.run):
            session.over, session.claimed = True, False
            if self._tasks is not None:
                self._tasks.start_soon(session.end_run, takeover())
            if saved is None:
                # It was ended there.
                await claims.release(record.owner, record.session_id)
                return session
            session = self._add(Record(record.owner, record.name, saved))
        session.claimed = True
        if lapsed and not session.is_open:
            session.record.lose(lapsed)
        return session

    def _note_loss(self, key: SessionKey, bridge: str) -> None:
        """End what runs in a session that another bridge has taken over."""
        for session in self._sessions.values():
            ours = session_key(session.owner, session.record.session_id) == key
            if ours and self._tasks is not None:
                self._tasks.start_soon(session.yield_to, bridge)

    async def _find(self, request: RunRequest, *, make: bool) -> Session:
        key, owner = request.session, request.owner
        is_id = _ID.fullmatch(key) is not None
        if not is_id and not request.named_sessions:
            if not make:
                message = "Here a session can be ended by its id only."
                raise UnknownError(
                    message, remedy="Its results have the id.", code="unknown_session"
                )
            # Others may use the same name, and are not to meet here.
            return self._add(Record(owner, key))
        damaged = ""
        async with self._finding:
            found = self._known(owner, key)
            if found is None:
                kept = self._services.checkpoints
                saved, damaged = await kept.run(kept.find, owner, key)
                if saved is not None:
                    found = self._add(Record(owner, saved.name, saved))
                elif make and not is_id:
                    found = self._add(Record(owner, key, None, damaged))
        if found is None:
            why = f"Session {key!r} cannot be used: {damaged}." if damaged else ""
            remedy = (
                f"Sessions expire after {self._settings.session_days} idle days, and belong to one "
                "caller. Use any new name to start one."
            )
            raise UnknownError(why or f"No session {key!r}.", remedy=remedy, code="unknown_session")
        return found

    def _known(self, owner: str, key: str) -> Session | None:
        for session in reversed(self._sessions.values()):
            if session.owner != owner or session.over:
                continue
            if key in (session.record.session_id, session.record.name):
                return session
        return None

    def _add(self, record: Record) -> Session:
        session = self._sessions[record.session_id] = Session(record, self._services)
        return session

    def _settle(self, session: Session) -> None:
        """Forget sessions that the store has, and those that ended long ago."""
        key = session.record.session_id
        if self._sessions.get(key) is not session:
            return
        if session.over or session.record.recoverable:
            del self._sessions[key]
            return
        self._sessions.move_to_end(key)
        resting = [key for key, each in self._sessions.items() if not each.is_open]
        for key in resting[: max(0, len(resting) - MAX_REMEMBERED)]:
            if not self._sessions[key].in_use:
                del self._sessions[key]
