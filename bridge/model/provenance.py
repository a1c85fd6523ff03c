"""What a run had read when it left something that a later run may find.

Owns the value, and how it is written beside what is kept: artifacts, memories and skills have each
their own place for it. What it means for a call is `bridge.gate.flow`'s.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from bridge.model.names import Json

MAX_DOCUMENT = 4 * 1024
"""Characters as JSON: a run may use servers without end. With more it counts as having read all."""

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a run had read when it left something.

    Attributes:
        run_id: Of that run; empty if unknown.
        labels: Of the tools that it had called, or the runs whose files it found.
        servers: Those that it, or these runs, had called.
        anything: It may have read more than these, whatever there is.
    """

    run_id: str = ""
    labels: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    anything: bool = False

    def document(self) -> dict[str, Json]:
        told = {"run": self.run_id, "labels": sorted(self.labels), "servers": sorted(self.servers)}
        if self.anything or len(json.dumps(told)) > MAX_DOCUMENT:
            return {"run": self.run_id, "anything": True}
        return {**told, "anything": False}

    @classmethod
    def of(cls, document: Json) -> Provenance | None:
        """Return what `document` said, and None for None: nothing was written.

        Of what says nothing, anything may have been read.
        """
        if document is None:
            return None
        if not isinstance(document, dict):
            return cls(anything=True)
        run_id = document.get("run")
        if not isinstance(run_id, str) or not _RUN.fullmatch(run_id):
            run_id = ""
        labels, servers = _texts(document.get("labels")), _texts(document.get("servers"))
        return cls(
            run_id=run_id,
            labels=labels or frozenset(),
            servers=servers or frozenset(),
            anything=document.get("anything") is not False or labels is None or servers is None,
        )

    def together(self, other: Provenance | None) -> Provenance:
        """Return that of something that comes from both; the run is this one's."""
        if other is None:
            return self
        return Provenance(
            run_id=self.run_id,
            labels=self.labels | other.labels,
            servers=self.servers | other.servers,
            anything=self.anything or other.anything,
        )


def _texts(value: Json) -> frozenset[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return frozenset(value)
