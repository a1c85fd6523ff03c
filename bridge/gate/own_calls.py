"""Requests of a program that the bridge answers itself and that last: memories, skills.

Owns that they are in a run's journal as calls to servers are, so that a retry does none of them
twice. They go to nobody, so that there is nothing to decide on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bridge.errors import OutcomeUnknownError
from bridge.gate.calls import Gate
from bridge.gate.decision import CallFacts
from bridge.gate.journal_entries import OWN
from bridge.gate.oversight import Oversight
from bridge.model import Effect, Json


class OwnCalls:
    """One run's requests of that kind."""

    def __init__(self, oversight: Oversight, gate: Gate) -> None:
        self._seen = oversight
        self._tally = gate.tally

    async def make(
        self,
        method: str,
        params: Mapping[str, Json],
        effect: Effect,
        answer: Callable[[Mapping[str, Json]], Awaitable[Json]],
    ) -> Json:
        """Return the answer, from the run that this one retries if it was made there.

        Raises:
            OutcomeUnknownError: It was made there, and nobody knows what became of it.
        """
        journal, call = self._seen.journal, CallFacts(server=OWN, tool=method)
        known = None
        if self._seen.replay is not None:
            try:
                known = self._seen.replay.answer(OWN, method, params, effect)
            except OutcomeUnknownError:
                self._tally.lose(call, "not repeated")
                raise
        entry = journal.sent(OWN, method, params, effect)
        if known is not None:
            journal.settle(entry, "ok", known)
            self._tally.replay(call)
            return known["answer"]
        try:
            found = await answer(params)
        except Exception:
            # What fails here has changed nothing; of what is cut off nobody knows.
            journal.settle(entry, "not-sent", None)
            raise
        journal.settle(entry, "ok", {"answer": found})
        return found
