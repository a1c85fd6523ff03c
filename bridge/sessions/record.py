"""The record of one session: its runs, the variables it holds, and what was lost.

It outlives the session's sandboxes, and writes the report in each run's result. A guest can only
lie about its own session, and its texts are bounded. No I/O.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace

from bridge.errors import PackageRefusedError
from bridge.gate.policy import FlowState
from bridge.model import Json, Loss, SessionReport, SessionState, Variable
from bridge.sandbox.failure import Ending, Verdict
from bridge.sessions.checkpoints import MAX_NAME_CHARS, MAX_NAMES, Saved, losses, shown_line

logger = logging.getLogger(__name__)

ID_BYTES = 16
"""Random bytes of a session's id, which opens the session over HTTP."""

KEPT_AFTER_TIMEOUT = (
    "The session's state is kept: what the program had done until then is there for the next run."
)


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """The variables of a session, as its guest reports them."""

    holds: tuple[Variable, ...] = ()
    more: int = 0

    def beside(self, before: Holdings) -> tuple[str, ...]:
        """Return the names that are new or have another type."""
        had = {(variable.name, variable.kind) for variable in before.holds}
        return tuple(v.name for v in self.holds if (v.name, v.kind) not in had)


def holdings(holds: object, more: object) -> Holdings:
    """Return the variables that a guest reports or that were saved."""
    said = holds if isinstance(holds, list) else []
    found = []
    for entry in said[:MAX_NAMES]:
        match entry:
            case [str(name), str(kind), size]:
                known = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 2**60
                name, kind = shown_line(name, MAX_NAME_CHARS), shown_line(kind, MAX_NAME_CHARS)
                found.append(Variable(name=name, kind=kind, size=size if known else None))
            case _:
                pass
    untold = max(0, len(said) - MAX_NAMES)
    counted = more if isinstance(more, int) and 0 <= more <= 10**9 else 0
    return Holdings(holds=tuple(found), more=counted + untold)


class Record:
    """The record of one session."""

    def __init__(
        self, owner: str, name: str, saved: Saved | None = None, damaged: str = ""
    ) -> None:
        """Make a new record or continue a saved one; `damaged` says why there is none."""
        self.owner = owner
        self.name = name if saved is None else saved.name
        self.session_id = secrets.token_hex(ID_BYTES) if saved is None else saved.session_id
        self.runs = 0
        self.saved = 0  # The number of the run after which the state was last saved.
        self.holdings = Holdings()  # The variables after the last run.
        self.flow = FlowState()  # What its programs have read, for the flow rules.
        self.named = True  # Whether its last caller may use its name.
        self.begun = False
        self.intact = True  # Whether its sandbox still has the state.
        self.packages: tuple[str, ...] = ()
        self.pins: tuple[str, ...] = ()
        self.unkept: tuple[Loss, ...] = ()  # The variables that the last save could not include.
        self._gone = ""
        self._damaged = damaged
        if saved is not None:
            facts = saved.facts
            self.runs = self.saved = saved.run
            self.holdings = holdings(facts.get("holds"), facts.get("more"))
            self.flow = FlowState.of(facts.get("flow"))
            self.packages, self.pins = _texts(facts.get("packages")), _texts(facts.get("pins"))
            self.unkept = saved.lost

    def check_move(self) -> None:
        """Check that the saved state has all variables, so another sandbox can continue."""
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
    def is_unsaved(self) -> bool:
        return self.begun and self.intact and bool(self._gone)

    @property
    def recoverable(self) -> bool:
        return self.saved == self.runs and not self._gone

    def to_save(self, data: bytes, lost: tuple[Loss, ...]) -> Saved:
        """Return the session to save, with its state."""
        facts: dict[str, Json] = {
            "holds": [[held.name, held.kind, held.size] for held in self.holdings.holds],
            "more": self.holdings.more,
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

    def opened(self) -> None:
        """Record a new sandbox."""
        self.begun, self.intact = False, True

    def ended(
        self,
        verdict: Verdict,
        ending: Ending,
        *,
        saved: Saved | None,  # The state that the run's sandbox began with.
        sound: bool,  # Whether the sandbox can take another program.
        cancelled: bool,
        overtaken: str,  # Why the session is another bridge's now, if it is.
        ends: bool,
    ) -> tuple[Verdict, SessionReport]:
        """Record the end of a run; return the verdict on it, and the session's report."""
        kept = ending.exited is not None and ending.exited.kept and sound
        kept = kept and not (ending.protocol_error or ending.lost)
        state, note, lost = self._describe_start(ending, saved)
        self.runs += 1
        self.begun = True
        if cancelled:
            why = f"Ended in the middle: {overtaken}." if overtaken else "Cancelled by its client."
            verdict = replace(verdict, status="error", reason="cancelled", summary=why)
        if overtaken:
            note = f"What this run changed is not saved: {overtaken}. Its calls have happened."
            return verdict, self.report("unsaved", note=note)
        fresh: tuple[str, ...] | None = None
        if kept and ending.done is not None:
            before, self.holdings = self.holdings, holdings(ending.done.holds, ending.done.more)
            fresh = self.holdings.beside(before) if state == "kept" else None
        elif not kept:
            self.holdings = Holdings()
            why = "it did not take in what was sent to it"
            if sound:
                why = _why_lost(verdict, answered=ending.done is not None)
            self.lose(f"in run {self.runs}, {why}")
            start = f"what was saved after run {self.saved}" if self.saved else "nothing"
            note = f"The session's state is lost: {why}. The next run begins with {start}."
            state = "lost"
        if ends:
            state, note = "ended", note if kept else ""
        report = replace(self.report(state, lost, note), fresh=fresh)
        more = note if state == "lost" else ""
        if verdict.status == "timeout" and state not in ("lost", "ended"):
            more = KEPT_AFTER_TIMEOUT
        if more:
            # The model reads the error first.
            verdict = replace(verdict, error=f"{verdict.error.rstrip()}\n{more}".strip())
        return verdict, report

    def _describe_start(
        self, ending: Ending, saved: Saved | None
    ) -> tuple[SessionState, str, tuple[Loss, ...]]:
        """Return how a run began: the state, a note if that is not the last run's, the losses."""
        if self.begun:
            return "kept", "", ()
        why, self._gone = f": {self._gone}" if self._gone else "", ""
        told = None if ending.done is None else ending.done.lost
        if saved is None:
            note = f"What the session held is lost{why}. It began again, with nothing."
            if not self.runs:
                note = self._damaged and f"It began again, with nothing: {self._damaged}."
            return "new", note, losses(told)
        note = f"Restored from what was saved after run {saved.run}"
        if saved.run != self.runs:
            first, last = saved.run + 1, self.runs
            which = f"run {last} did is" if first == last else f"runs {first} to {last} did is"
            note += f"; what {which} lost"
        return "restored", f"{note}{why}.", losses(saved.lost, told)

    def began_from(self, saved: Saved | None, why: str) -> None:
        """Record the restored state, or why there is none."""
        self.saved = 0 if saved is None else saved.run
        self._gone = why or self._gone
        if saved is not None and saved.facts.get("flow") != self.flow.document():
            # Another bridge may have saved the session since.
            self.flow.absorb(FlowState.of(saved.facts.get("flow")))

    def lose(self, why: str) -> None:
        """Record that the unsaved state is gone."""
        logger.info("session %s lost its state: %s", self.name, why)
        self.intact = False
        self._gone = why

    def set_unsaved(self, why: str) -> None:
        """Record that only the sandbox has the state."""
        logger.info("session %s could not be saved: %s", self.name, why)
        self._gone = f"it could not be saved: {why}"

    def kept(self, lost: tuple[Loss, ...]) -> None:
        """Record that the state is saved, except for `lost`."""
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


def _why_lost(verdict: Verdict, *, answered: bool) -> str:
    """Return the reason of a loss as a clause."""
    if answered and verdict.reason == "timeout":
        # An interrupted process keeps its state unless it was still restoring it.
        return "its time was over before all that was saved had been restored"
    return {
        "timeout": "the program did not react when its time was over, and was killed",
        "oom": "the program was killed for using too much memory",
        "crash": "the process that held it was killed",
        "exit": "the process that held it ended",
    }.get(verdict.reason or "", "the process that held it is gone")
