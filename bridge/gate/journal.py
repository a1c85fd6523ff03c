"""What a run called and was answered, so that a retry need not do it again.

Owns the records of runs while the bridge lives, their bounds, and the matching of calls. They are
kept in memory only: a run leaves nothing on the disk but its audit trail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.errors import UnknownRunError
from bridge.gate.outcomes import Outcome
from bridge.model import Effect, Json, RetriedReads


@dataclass(eq=False)
class Entry:
    """One call.

    Attributes:
        result: None if there is none, or it was too large to keep.
    """

    server: str
    tool: str
    key: str
    effect: Effect
    outcome: Outcome = "unknown"
    result: dict[str, Json] | None = None


class RunJournal:
    """The calls of one run."""

    def sent(self, server: str, tool: str, arguments: Mapping[str, Json], effect: Effect) -> Entry:
        """Record a call that goes out next; until it is settled its outcome is unknown."""
        return Entry(server, tool, "", effect)

    def settle(self, entry: Entry, outcome: Outcome, result: dict[str, Json] | None) -> None:
        """Record what became of it."""
        entry.outcome = outcome


class Replay:
    """The journal of an earlier run, used up call by call."""

    def __init__(self, journal: RunJournal, reads: RetriedReads = "replay") -> None:
        self._journal = journal
        self._reads = reads

    def answer(
        self, server: str, tool: str, arguments: Mapping[str, Json], effect: Effect
    ) -> dict[str, Json] | None:
        """Return the recorded result of the next call like this; None if it has to be made.

        Raises:
            OutcomeUnknownError: It was sent, and nobody knows what became of it.
        """
        return None


class Journals:
    """The journals of the last runs, by run and owner."""

    def begin(self, run_id: str, owner: str) -> RunJournal:
        """Return a new run's journal."""
        return RunJournal()

    def find(self, run_id: str, owner: str) -> RunJournal:
        """Return the journal of a run.

        Raises:
            UnknownRunError: There is none for this owner.
        """
        message = f"There is no journal of a run {run_id!r:.80}."
        raise UnknownRunError(message)
