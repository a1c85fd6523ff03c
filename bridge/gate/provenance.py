"""The provenance of what outlives a run: artifacts, memories, skills.

Owns which labels and servers such a thing is kept with, and that a run which reads it has then read
them too. Each store writes them down itself.
"""

from __future__ import annotations

from bridge.gate.context import GateContext
from bridge.model import Provenance
from bridge.text import valid_text, visible


class ProvenanceTracker:
    """The provenance of what one run keeps, and of what it reads that was kept.

    Counting raises `AuditError` if it cannot be recorded; the program must not get the thing then.
    """

    def __init__(self, context: GateContext) -> None:
        self._context = context

    def provenance(self) -> Provenance | None:
        """Return the provenance of what the run keeps now.

        None if nothing was read that a flow rule could apply to.
        """
        context = self._context
        found = context.flow_state.provenance(context.journal.run_id)
        if found is None or context.policy.spec.present or found.labels or found.anything:
            return found
        # Only servers, and no policy. A run may have found labels of an earlier policy.
        return None

    async def add(self, what: str, provenance: Provenance | None) -> None:
        """Count something that was kept as read. To be called before the program gets it.

        Args:
            what: Its name in decisions and records: "memory 'notes'".
        """
        if provenance is None:
            return
        by = f"run {provenance.run_id}" if provenance.run_id else "an unknown run"
        # A program names what it keeps; the URI of a run's output has 54 characters.
        shown = visible(valid_text(what[:61]), keep="")
        if len(shown) > 60:
            shown = f"{shown[:59]}…"
        await self._note(f"{shown} (saved by {by})", shown, provenance)

    async def add_store(self, what: str, provenance: Provenance | None) -> None:
        """Count what a store holds as read, unless this run has read all of it."""
        if provenance is not None and not self._context.flow_state.knows(provenance):
            await self.add(what, provenance)

    async def add_labels(self, what: str, labels: frozenset[str]) -> None:
        if labels:
            await self._note(what, what, Provenance(labels=labels))

    async def _note(self, name: str, what: str, provenance: Provenance) -> None:
        context = self._context
        # Recorded once for equal provenance, so that a program cannot fill a log. Recorded first,
        # so that a program that tries again does not get what could not be recorded.
        if not context.flow_state.knows(provenance):
            await context.audit.found(what, provenance)
        context.flow_state.add_provenance(name, provenance)
