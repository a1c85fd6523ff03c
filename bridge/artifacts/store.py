"""The store of what runs left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time
from types import TracebackType

from bridge.model import Artifact, ArtifactKind


class ArtifactStore:
    """Files by their content, listed for whoever's run left them.

    Several bridges may use one directory at once.

    Args:
        root: Where; made when it is first written to.
        total_bytes: Of all that is kept; the oldest go first.
        run_bytes: Of what one run may leave.
        days: For how long.
        now: Seconds since the epoch.
    """

    def __init__(
        self,
        root: Path,
        *,
        total_bytes: int,
        run_bytes: int,
        days: int,
        now: Callable[[], float] = time,
    ) -> None:
        self._root = root
        self._total_bytes = total_bytes
        self._run_bytes = run_bytes
        self._days = days
        self._now = now

    def of_run(self, owner: str, run_id: str) -> RunArtifacts:
        """Return where one run's go. No I/O.

        Args:
            owner: Who alone may have them; see `RunRequest.owner`.
        """
        return RunArtifacts()

    def listed(self, owner: str | None, run_id: str = "") -> tuple[Artifact, ...]:
        """Return what is kept for an owner, the newest first; for None, of all owners."""
        raise NotImplementedError

    def find(self, owner: str | None, uri: str) -> Artifact:
        """Return what a URI (or the beginning of a digest) stands for.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
        """
        raise NotImplementedError

    def read(self, owner: str | None, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Return content, or a part of it.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
        """
        raise NotImplementedError

    def remove(self, owner: str | None, uri: str) -> Artifact:
        """Forget it; its content goes with the last that has it.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner.
        """
        raise NotImplementedError

    def tidy(self) -> int:
        """Remove what has expired, is too much, or was left unfinished; return how many."""
        raise NotImplementedError


class RunArtifacts:
    """What one run leaves, within its quota. Made by `ArtifactStore.of_run`."""

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin to keep something; nobody sees it before it is finished.

        Args:
            mime_type: Told from the name and the first bytes if empty.

        Raises:
            ArtifactStoreError: The directory cannot be written to.
        """
        raise NotImplementedError

    def add(
        self, name: str, data: bytes, mime_type: str = "", kind: ArtifactKind = "file"
    ) -> Artifact:
        """Keep something that is in memory; see `writer`."""
        with self.writer(name, mime_type, kind) as writer:
            writer.write(data)
            return writer.finish()


class ArtifactWriter:
    """Something that is being written. Leaving without `finish` discards it."""

    def write(self, data: bytes) -> None:
        """Add to it. Fast enough for the event loop with pieces of up to a megabyte.

        Raises:
            ArtifactQuotaError: The run has left as much as it may.
            ArtifactStoreError: The disk is full, or the directory is gone.
        """
        raise NotImplementedError

    def finish(self) -> Artifact:
        """Keep it: from here on it is listed, and survives this bridge.

        Raises:
            ArtifactStoreError: It cannot be kept.
        """
        raise NotImplementedError

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError
