"""What a program showed: pictures and texts, within a budget."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.artifacts import RunArtifacts
from bridge.guest.wire import Shown
from bridge.model import Artifact, Limits, Loss
from bridge.model import Shown as ShownItem
from bridge.rpc.replies import Clear


@dataclass(frozen=True, kw_only=True)
class LeftShownItems:
    """What there is of it."""

    shown: tuple[ShownItem, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()


class ShownItems:
    """Takes those of one run."""

    def __init__(
        self,
        limits: Limits,
        *,
        artifacts: RunArtifacts | None = None,
        clear: Clear | None = None,
    ) -> None:
        self._artifacts = artifacts
        self._clear = clear

    async def take(self, frame: Shown) -> None:
        """Take one frame."""

    async def finish(self) -> LeftShownItems:
        """Return what there is."""
        return LeftShownItems()

    def discard(self) -> None:
        """Keep nothing of what was begun."""
