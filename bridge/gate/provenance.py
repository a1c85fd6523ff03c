"""What flow rules make of things that outlive a run: artifacts, memories, skills.

Owns what such a thing is kept with, and that whoever brings it into another run has read what its
own run had read. Where it is written down is each store's affair.
"""

from __future__ import annotations

from bridge.gate.context import GateContext
from bridge.model import Provenance
from bridge.text import valid_text, visible

MAX_WHAT = 60
"""Characters of what a found thing is called in a decision: a URI of a run's output has 54."""


class ProvenanceTracker:
    """One run's part in things that last: what it leaves, and what it finds."""

    def __init__(self, oversight: GateContext) -> None:
        self._seen = oversight

    def provenance(self) -> Provenance | None:
        """Return what something is kept with that the run leaves at this moment.

        None where nothing was read that a flow rule could speak of: then nothing is written, as
        there is nothing to write without a policy.
        """
        seen = self._seen
        found = seen.flow_state.provenance(seen.journal.run_id)
        if found is None or seen.policy.spec.present or found.labels or found.anything:
            return found
        # Servers alone, which no rule speaks of. A run may have found labels of an earlier policy.
        return None

    async def find(self, what: str, provenance: Provenance | None) -> None:
        """Have something that was kept count as read. To be called before the program gets it.

        Args:
            what: It, in words: "memory 'notes'".

        Raises:
            AuditError: That it came cannot be recorded; the program must not get it.
        """
        if provenance is None:
            return
        by = f"run {provenance.run_id}" if provenance.run_id else "an unknown run"
        shown = visible(valid_text(what[: MAX_WHAT + 1]), keep="")
        if len(shown) > MAX_WHAT:
            shown = f"{shown[: MAX_WHAT - 1]}…"
        await self._note(f"{shown} (saved by {by})", shown, provenance)

    async def learn(self, what: str, provenance: Provenance | None) -> None:
        """Have what stands in a whole store count as read, unless this run has read all that.

        Raises:
            AuditError: It cannot be recorded; the program must not learn anything of it.
        """
        if provenance is not None and not self._seen.flow_state.knows(provenance):
            await self.find(what, provenance)

    async def have(self, what: str, labels: frozenset[str]) -> None:
        """Have something count as read that is there for the program, and whose labels are known.

        Raises:
            AuditError: It cannot be recorded; the program must not get it.
        """
        if labels:
            await self._note(what, what, Provenance(labels=labels))

    async def _note(self, name: str, what: str, provenance: Provenance) -> None:
        seen = self._seen
        # Of many that say the same one is recorded, so that a program can fill no log with them.
        # And first, so that a program which tries again does not get what could not be.
        if not seen.flow_state.knows(provenance):
            await seen.audit.found(what, provenance)
        seen.flow_state.find(name, provenance)
