"""What was collected of a run for its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model import Artifact, Loss, ShownContent


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was collected; each part of the collector has some.

    Attributes:
        dropped: Stream to the number of bytes that are not.
    """

    stdout: str = ""
    stderr: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[ShownContent, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()

    def together(self, other: Collected) -> Collected:
        return Collected(
            stdout=self.stdout + other.stdout,
            stderr=self.stderr + other.stderr,
            dropped={**self.dropped, **other.dropped},
            shown=self.shown + other.shown,
            artifacts=self.artifacts + other.artifacts,
            missing=self.missing + other.missing,
        )
