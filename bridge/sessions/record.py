"""The record of one session: its runs, the variables it holds, and what was lost.

Owns what is remembered from run to run and through a sandbox's end, and what a run's result is told
of it: the sentences, and the bounds on what a guest says of itself, which can only lie about its
own session. No I/O.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace
from typing import Any

from bridge.errors import PackageRefusedError
from bridge.gate.flow import FlowState
from bridge.model import Json, Loss, RunResult, SessionReport, SessionState, Variable
from bridge.sandbox.failure import Ending
from bridge.sessions.checkpoints import Saved
from bridge.sessions.state import MAX_NAME_CHARS, MAX_NAMES, losses, shown_line

logger = logging.getLogger(__name__)

ID_BYTES = 16
"""Of a session's id, from the system's source of randomness: over HTTP the id opens the session."""

KEPT_AFTER_TIMEOUT = (
    "The session's state is kept: what the program had done until then is there for the next run."
)


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What a session has, as its guest says."""

    holds: tuple[Variable, ...] = ()
    more: int = 0

    def beside(self, before: Holdings) -> tuple[str, ...]:
        """Return the names that were not there before, or had another type."""
        had = {(variable.name, variable.kind) for variable in before.holds}
        return tuple(v.name for v in self.holds if (v.name, v.kind) not in had)

    def document(self) -> dict[str, Json]:
        return {"holds": [[v.name, v.kind, v.size] for v in self.holds], "more": self.more}


def holdings(holds: object, more: object) -> Holdings:
    """Return what a guest, or what was saved, says that a session has."""
    said = holds if isinstance(holds, list) else []
    found = [variable for entry in said[:MAX_NAMES] if (variable := _variable(entry)) is not None]
    untold = max(0, len(said) - MAX_NAMES)
    counted = more if isinstance(more, int) and 0 <= more <= 10**9 else 0
    return Holdings(holds=tuple(found), more=counted + untold)


def _variable(entry: Any) -> Variable | None:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        return None
    name, kind, size = entry
    if not isinstance(name, str) or not isinstance(kind, str):
        return None
    known = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 2**60
    return Variable(
        name=shown_line(name, MAX_NAME_CHARS),
        kind=shown_line(kind, MAX_NAME_CHARS),
        size=size if known else None,
    )


class Record:
    """What is known of one session.

    Attributes:
        session_id: Random, so that it cannot be guessed.
        saved: After which of them its state was saved last; 0 for never.
        holdings: What it held after its last run.
        flow: What its programs have read, for the policy.
        named: Whether its last caller may use its name.
        unkept: What it held that was not in what was saved last.
        intact: Whether the state is still in that sandbox.
    """

    def __init__(
        self, owner: str, name: str, saved: Saved | None = None, damaged: str = ""
    ) -> None:
        """Make one, new or from what was saved; `damaged` may have been its state."""
        self.owner = owner
        self.name = name if saved is None else saved.name
        self.session_id = secrets.token_hex(ID_BYTES) if saved is None else saved.session_id
        self.runs = self.saved = 0
        self.holdings = Holdings()
        self.flow = FlowState()
        self.named = True
        self.begun = False
        self.intact = True
        self.packages: tuple[str, ...] = ()
        self.pins: tuple[str, ...] = ()
        self.unkept: tuple[Loss, ...] = ()
        self._gone = ""
        self._damaged = damaged
        if saved is not None:
            self._take_over(saved)

    def _take_over(self, saved: Saved) -> None:
        facts = saved.facts
        self.runs = self.saved = saved.run
        self.holdings = holdings(facts.get("holds"), facts.get("more"))
        self.flow = FlowState.of(facts.get("flow"))
        self.packages, self.pins = _texts(facts.get("packages")), _texts(facts.get("pins"))
        self.unkept = saved.lost

    def check_move(self) -> None:
        """Check that another sandbox would have all that the session holds."""
        missing = [f"{loss.name} ({loss.why})" for loss in self.unkept]
        if not self.recoverable:
            missing = [v.name for v in self.holdings.holds] and [self._gone or "its last run"]
        if missing:
            message = (
                "The session needs a new sandbox for more packages, and what it holds would not be "
                f"restored there: {'; '.join(missing[:MAX_NAMES])}."
            )
            remedy = (
                'Write it to a file first, or ask again with "lose_state": true to go on without.'
            )
            raise PackageRefusedError(message, remedy=remedy)

    @property
    def recoverable(self) -> bool:
        return self.saved == self.runs and not self._gone

    def to_save(self, data: bytes, lost: tuple[Loss, ...]) -> Saved:
        """Return what is saved of it, with its state."""
        facts = {
            **self.holdings.document(),
            "flow": self.flow.document(),
            "packages": list(self.packages),
            "pins": list(self.pins),
        }
        return Saved(
            session_id=self.session_id,
            name=self.name,
            run=self.runs,
            data=data,
            lost=lost,
            facts=facts,
        )

    def is_large(self, limit: int) -> bool:
        """Return whether the values may take more than `limit` bytes."""
        return sum(held.size or 0 for held in self.holdings.holds) > limit // 2

    def opened(self) -> None:
        """Record that it gets a fresh sandbox."""
        self.begun, self.intact = False, True

    def ended(
        self,
        result: RunResult,
        ending: Ending,
        *,
        saved: Saved | None,
        sound: bool,
        cancelled: bool,
        ends: bool,
    ) -> RunResult:
        """Record how a run ended; return its result with the session's report.

        Args:
            saved: What the run's sandbox began with.
            sound: Whether another program could be sent there.
        """
        kept = ending.exited is not None and ending.exited.kept and sound
        kept = kept and not (ending.protocol_error or ending.lost)
        state, note, lost = self._start(ending, saved)
        self.runs += 1
        self.begun = True
        if cancelled:
            summary = "Cancelled by its client."
            result = replace(result, status="error", reason="cancelled", summary=summary)
        fresh: tuple[str, ...] | None = None
        if kept and ending.done is not None:
            before, self.holdings = self.holdings, holdings(ending.done.holds, ending.done.more)
            fresh = self.holdings.beside(before) if state == "kept" else None
        elif not kept:
            self.holdings = Holdings()
            why = "it did not take in what was sent to it"
            if sound:
                why = _why_lost(result, answered=ending.done is not None)
            self.lose(f"in run {self.runs}, {why}")
            state, note = "lost", _lost_note(why, self.saved)
        if ends:
            state, note = "ended", note if kept else ""
        report = replace(self.report(state, lost, note), fresh=fresh)
        told = note if state == "lost" else ""
        if result.status == "timeout" and state not in ("lost", "ended"):
            told = KEPT_AFTER_TIMEOUT
        if told:
            # In the error too, where that counts.
            result = replace(result, error=f"{result.error.rstrip()}\n{told}".strip())
        return replace(result, session=report)

    def _start(
        self, ending: Ending, saved: Saved | None
    ) -> tuple[SessionState, str, tuple[Loss, ...]]:
        """Return what a run began with, as its result says it."""
        if self.begun:
            return "kept", "", ()
        note, self._gone = self._start_note(0 if saved is None else saved.run), ""
        told = None if ending.done is None else ending.done.lost
        lost = losses(None if saved is None else saved.lost, told)
        return "new" if saved is None else "restored", note, lost

    def _start_note(self, saved: int) -> str:
        """Return a note on what it begins with, if that is not what its last run left; else "".

        Args:
            saved: After which run the state was saved that is restored; 0 for none.
        """
        if not self.runs:
            return self._damaged and f"It began again, with nothing: {self._damaged}."
        why = f": {self._gone}" if self._gone else ""
        if not saved:
            return f"What the session held is lost{why}. It began again, with nothing."
        start = f"Restored from what was saved after run {saved}"
        if saved == self.runs:
            return f"{start}{why}."
        first, last = saved + 1, self.runs
        which = f"run {last} did is" if first == last else f"runs {first} to {last} did is"
        return f"{start}; what {which} lost{why}."

    def began_from(self, saved: Saved | None, why: str) -> None:
        """Record what it is restored from, or why it is not."""
        self.saved = 0 if saved is None else saved.run
        self._gone = why or self._gone
        if saved is not None and saved.facts.get("flow") != self.flow.document():
            # Another bridge may have saved it since this record was made.
            self.flow.absorb(FlowState.of(saved.facts.get("flow")))

    def given_up(self) -> None:
        """Record that a run was killed, so that it is unknown how far it got."""
        self.runs += 1
        self.lose("its last run was given up, and had to be killed")

    def lose(self, why: str) -> None:
        """Record that the state is gone, except for what was saved."""
        logger.info("session %s lost its state: %s", self.name, why)
        self.intact = False
        self._gone = why

    def set_unsaved(self, why: str) -> None:
        """Record that the state is only in its sandbox."""
        logger.info("session %s could not be saved: %s", self.name, why)
        self._gone = f"it could not be saved: {why}"

    def kept(self, lost: tuple[Loss, ...]) -> None:
        """Record that the state is saved, without some of it."""
        self.saved, self._gone, self.unkept = self.runs, "", lost

    def report(
        self, state: SessionState, lost: tuple[Loss, ...] = (), note: str = ""
    ) -> SessionReport:
        return SessionReport(
            session_id=self.session_id,
            name=self.name,
            run=self.runs,
            state=state,
            holds=self.holdings.holds,
            more=self.holdings.more,
            lost=lost,
            note=note,
            named=self.named,
        )


def _texts(value: Json) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else []
    return tuple(text for text in listed if isinstance(text, str))


def _lost_note(why: str, saved: int) -> str:
    """Return a note: the run has lost the state, and what the next one will begin with."""
    start = f"what was saved after run {saved}" if saved else "nothing"
    return f"The session's state is lost: {why}. The next run begins with {start}."


def _why_lost(result: RunResult, *, answered: bool) -> str:
    """Return the reason of a loss, in a clause.

    Args:
        answered: Its process had the last word. One that is interrupted and has all of its state
            stays, with that; so this one had not.
    """
    if answered and result.reason == "timeout":
        return "its time was over before all that was saved had been restored"
    return {
        "timeout": "the program did not react when its time was over, and was killed",
        "oom": "the program was killed for using too much memory",
        "crash": "the process that held it was killed",
        "exit": "the process that held it ended",
    }.get(result.reason or "", "the process that held it is gone")
