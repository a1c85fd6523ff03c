"""What is known of one session beside its state: how it got on, what it holds, what it has lost.

Owns what is remembered from run to run and through a sandbox's end, and what a run's result is told
of it. No I/O.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bridge.engine.program import Facts
from bridge.engine.sessions.checkpoints import Saved
from bridge.engine.sessions.report import (
    Holdings,
    Past,
    holdings,
    holdings_of,
    losses,
    lost_note,
    note_on,
    why_lost,
    with_session,
)
from bridge.errors import PackageRefusedError
from bridge.gate.flow import FlowState
from bridge.model import Json, Loss, RunResult, SessionReport, SessionState

logger = logging.getLogger(__name__)

ID_BYTES = 16
"""Of a session's id, from the system's source of randomness: over HTTP it is what it is had by."""

MAX_SERVERS = 200
"""Kept loaded; a session that has used more keeps the first."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whose session it is, and what it goes by."""

    owner: str
    name: str
    session_id: str


def new_identity(owner: str, name: str) -> Identity:
    """Return a new session's, whose id nobody can guess."""
    return Identity(owner=owner, name=name, session_id=secrets.token_hex(ID_BYTES))


class Record:
    """What is known of one session.

    Attributes:
        runs: How many there were.
        saved: After which of them its state was saved last; 0 for never.
        holdings: What it held after its last run.
        flow: What its programs have read, for the policy.
        named: Whether whoever asked for it last can have it by its name.
        packages: What its first run asked for.
        begun: Whether there was a run in the sandbox that it has now.
        intact: Whether the state is still in that sandbox.
    """

    def __init__(self, identity: Identity, saved: Saved | None = None, damaged: str = "") -> None:
        """Make one, new or from what was saved of it.

        Args:
            damaged: What is of no use, and may have been that; see `Past`.
        """
        self.identity = identity
        self.runs = self.saved = 0
        self.holdings = Holdings()
        self.flow = FlowState()
        self.named = True
        self.begun = False
        self.intact = True
        self.packages: tuple[str, ...] = ()
        self._servers: dict[str, None] = {}
        self._gone = ""
        self._damaged = damaged
        if saved is not None:
            self._take_over(saved)

    def _take_over(self, saved: Saved) -> None:
        facts = saved.facts
        self.runs = self.saved = saved.run
        self.holdings = holdings_of(facts)
        self.flow = FlowState.of(facts.get("flow"))
        servers = facts.get("servers")
        if isinstance(servers, list):
            self._add_servers(name for name in servers if isinstance(name, str))

        packages = facts.get("packages")
        if isinstance(packages, list):
            self.packages = tuple(text for text in packages if isinstance(text, str))

    def settle_packages(self, wanted: tuple[str, ...]) -> None:
        """Note what packages the first run asks for; it is what all have.

        Raises:
            PackageRefusedError: A later one asks for others.
        """
        if not self.runs:
            self.packages = wanted
            return
        more = [text for text in wanted if text not in self.packages]
        if more:
            has = ", ".join(self.packages) or "none"
            message = (
                f"A session's packages are settled by its first run. This one has {has}, and "
                f"cannot get {', '.join(more)}."
            )
            remedy = "Begin another session with them, or end this one (`end_session`) first."
            raise PackageRefusedError(message, remedy=remedy)

    def _add_servers(self, names: Iterable[str]) -> None:
        for name in names:
            if len(self._servers) < MAX_SERVERS:
                self._servers[name] = None

    @property
    def servers(self) -> tuple[str, ...]:
        """Those that its programs have loaded."""
        return tuple(self._servers)

    @property
    def recoverable(self) -> bool:
        """Whether what was saved of it is all there is to know."""
        return self.saved == self.runs and not self._gone

    def facts(self) -> dict[str, Json]:
        """Return what is to be kept of it beside its state."""
        return {
            **self.holdings.document(),
            "flow": self.flow.document(),
            "servers": list(self._servers),
            "packages": list(self.packages),
        }

    def opened(self) -> None:
        """Note that it gets a fresh sandbox."""
        self.begun, self.intact = False, True

    def ended(
        self,
        result: RunResult,
        facts: Facts,
        *,
        saved: Saved | None,
        sound: bool,
        cancelled: bool,
        ends: bool,
    ) -> RunResult:
        """Take note of how a run ended; return its result with what is to be said of that.

        Args:
            saved: What the run's sandbox began with.
            sound: Whether another program could be sent there.
            cancelled: Nobody wants the run any more.
            ends: The session ends with it.
        """
        ending = facts.ending
        kept = ending.exited is not None and ending.exited.kept and sound
        kept = kept and not (ending.protocol_error or ending.lost)
        state, note, lost = self._start(facts, saved)
        self.runs += 1
        self.begun = True
        self._add_servers(result.servers)
        if cancelled:
            summary = "Cancelled by its client."
            result = replace(result, status="error", reason="cancelled", summary=summary)
        fresh: tuple[str, ...] | None = None
        if kept and ending.done is not None:
            before, self.holdings = self.holdings, holdings(ending.done)
            fresh = self.holdings.beside(before) if state == "kept" else None
        elif not kept:
            self.holdings = Holdings()
            why = "it did not take in what was sent to it"
            if sound:
                why = why_lost(result, answered=ending.done is not None)
            self.lose(f"in run {self.runs}, {why}")
            state, note = "lost", lost_note(why, self.saved)
        if ends:
            state, note = "ended", note if kept else ""
        return with_session(result, replace(self.report(state, lost, note), fresh=fresh))

    def _start(
        self, facts: Facts, saved: Saved | None
    ) -> tuple[SessionState, str, tuple[Loss, ...]]:
        """Return what a run began with, as its result says it."""
        if self.begun:
            return "kept", "", ()
        past = Past(
            runs=self.runs,
            saved=0 if saved is None else saved.run,
            gone=self._gone,
            damaged=self._damaged,
        )
        self._gone = ""
        told = [] if facts.ending.done is None else facts.ending.done.lost
        lost = losses(() if saved is None else saved.lost, told)
        return "new" if saved is None else "restored", note_on(past), lost

    def began_from(self, saved: Saved | None, why: str) -> None:
        """Note what was found of it, or why that was of no use."""
        self.saved = 0 if saved is None else saved.run
        self._gone = why or self._gone
        if saved is not None and saved.facts.get("flow") != self.flow.document():
            # Another bridge may have saved it since this record was made.
            self.flow.absorb(FlowState.of(saved.facts.get("flow")))

    def given_up(self) -> None:
        """Note that a run had to be killed, and nobody knows how far it got."""
        self.runs += 1
        self.lose("its last run was given up, and had to be killed")

    def lose(self, why: str) -> None:
        """Note that the state is gone, but for what was saved."""
        logger.info("session %s lost its state: %s", self.identity.name, why)
        self.intact = False
        self._gone = why

    def unsaved(self, why: str) -> None:
        """Note that the state is only in its sandbox."""
        logger.info("session %s could not be saved: %s", self.identity.name, why)
        self._gone = f"it could not be saved: {why}"

    def kept(self) -> None:
        """Note that the state is saved as it is."""
        self.saved, self._gone = self.runs, ""

    def over(self) -> None:
        """Note that nothing is left."""
        self.holdings = Holdings()

    def report(
        self, state: SessionState, lost: tuple[Loss, ...] = (), note: str = ""
    ) -> SessionReport:
        """Return what a result says of it."""
        return SessionReport(
            session_id=self.identity.session_id,
            name=self.identity.name,
            run=self.runs,
            state=state,
            holds=self.holdings.holds,
            more=self.holdings.more,
            lost=lost,
            note=note,
            named=self.named,
        )
