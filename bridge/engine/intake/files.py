"""The files that a program left, put together from their parts and kept."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.artifacts import RunArtifacts
from bridge.guest.wire import File
from bridge.model import Artifact, Limits, Loss
from bridge.rpc.replies import Clear


@dataclass(frozen=True, kw_only=True)
class LeftFilesOut:
    """What there is of it."""

    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()


class FilesOut:
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

    async def take(self, frame: File) -> None:
        """Take one frame."""

    async def finish(self) -> LeftFilesOut:
        """Return what there is."""
        return LeftFilesOut()

    def discard(self) -> None:
        """Keep nothing of what was begun."""
