"""The store of what runs left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bridge.artifacts.content import Content
from bridge.artifacts.entries import (
    MAX_DESCRIPTION,
    Entry,
    artifact_of,
    is_run_id,
    wanted,
)
from bridge.artifacts.folders import translated
from bridge.artifacts.shelves import Shelves
from bridge.artifacts.tidying import Held
from bridge.artifacts.writing import Origin, Quota, RunArtifacts, of_nothing
from bridge.errors import ArtifactStoreError, UnknownArtifactError
from bridge.model import Artifact
from bridge.settings import Settings
from bridge.text import counted

logger = logging.getLogger(__name__)

TIDY_SECONDS = 6 * 3600.0
"""Between looks for what has expired, in a bridge that lives long and keeps nothing."""


class ArtifactStore:
    """Files by their content, listed for whoever's run left them.

    Several bridges may use one directory at once.

    Args:
        root: Where; made when it is first written to.
        total_bytes: Of all that is kept; the oldest of the owner who has most go first.
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
        self._shelves = Shelves(root, total_bytes=total_bytes, days=days, now=now)
        # A run that may leave more than the store has room for would make its own files go.
        self._run_bytes = min(run_bytes, total_bytes)
        self._quotas: WeakValueDictionary[tuple[str, str], Quota] = WeakValueDictionary()

    def of_run(self, owner: str, run_id: str, origin: Origin = of_nothing) -> RunArtifacts:
        """Return where one run's go. No I/O.

        Args:
            owner: Who alone may have them; see `RunRequest.owner`.
            origin: Returns what the run has read by then; asked when something is finished.
        """
        if not is_run_id(run_id):
            message = f"no run is called {run_id!r:.80}"
            raise ValueError(message)
        quota = self._quotas.get((owner, run_id))
        if quota is None:
            quota = self._quotas.setdefault((owner, run_id), Quota(self._run_bytes))
        return RunArtifacts(self._shelves, quota, owner, run_id, origin)

    def listed(self, owner: str | None, run_id: str = "") -> tuple[Artifact, ...]:
        """Return what is kept for an owner, the newest first; for None, of all owners.

        Raises:
            ArtifactStoreError: The directory cannot be read.
        """
        with translated("listed", self._shelves.root):
            held = self._shelves.held(owner, like=run_id)
            if run_id:
                held = [one for one in held if one[1].run_id == run_id]
            return self._artifacts(_newest_first(held))

    def page(
        self, owner: str | None, size: int, after: str = ""
    ) -> tuple[tuple[Artifact, ...], str]:
        """Return a part of the list, the newest first, and where the next begins; "" at the end.

        Reads no more than it returns, but for names.

        Args:
            after: What the part before came with.

        Raises:
            ArtifactStoreError: The directory cannot be read.
        """
        with translated("listed", self._shelves.root):
            held = _newest_first(self._shelves.held(owner, before=after, newest=size + 1))
            more = _place(held[size - 1][1]) if len(held) > size else ""
            return self._artifacts(held[:size]), more

    def find(self, owner: str | None, uri: str) -> Artifact:
        """Return what a URI (or the beginning of an id or a digest) stands for.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: The directory cannot be read.
        """
        return self._find(owner, uri)[1]

    def read(self, owner: str | None, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Return content, or a part of it. The whole is checked against its digest.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: It cannot be read, or is not what was kept.
        """
        with self.opened(owner, uri) as content:
            if start == 0 and (size is None or size >= content.artifact.size):
                return content.whole()
            return content.read(start, content.artifact.size if size is None else size)

    @contextmanager
    def opened(self, owner: str | None, uri: str) -> Iterator[Content]:
        """Hold content open, to be read in parts while it may be removed.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: It cannot be read, or is not what was kept.
        """
        _, artifact = self._find(owner, uri)
        root = self._shelves.root
        with translated("read", root):
            try:
                descriptor = self._shelves.content(artifact.digest)
            except FileNotFoundError:
                raise _unknown(uri) from None
        with Content(artifact, descriptor, root) as content:
            yield content

    def remove(self, owner: str | None, uri: str) -> Artifact:
        """Forget it; its content goes with the last that has it.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner.
            ArtifactStoreError: The directory cannot be written to.
        """
        held, artifact = self._find(owner, uri)
        with translated("removed", self._shelves.root):
            self._shelves.remove([held])
        return artifact

    def remove_all(self, owner: str | None, run_id: str = "") -> int:
        """Forget all that is kept for an owner, or of one run; return how many.

        Raises:
            ArtifactStoreError: The directory cannot be written to.
        """
        with translated("removed", self._shelves.root):
            held = self._shelves.held(owner, like=run_id, expired=True)
            return self._shelves.remove(
                [one for one in held if not run_id or one[1].run_id == run_id]
            )

    def tidy(self) -> int:
        """Remove what has expired, is too much, or was left unfinished; return how many.

        Raises:
            ArtifactStoreError: The directory cannot be written to.
        """
        with translated("tidied", self._shelves.root):
            return self._shelves.sweep()

    async def tidying(self) -> None:
        """Tidy now and from time to time, until it is cancelled. Does not block; not for threads.

        What cannot be tidied is said in the log, and fails nobody.
        """
        while True:
            try:
                removed = await anyio.to_thread.run_sync(self.tidy)
            except ArtifactStoreError as error:
                logger.warning("what runs left cannot be tidied: %s", error)
            else:
                if removed:
                    logger.info("removed %s that runs had left", counted(removed, "thing"))
            await anyio.sleep(TIDY_SECONDS)

    def _find(self, owner: str | None, uri: str) -> tuple[Held, Artifact]:
        want = wanted(uri)
        if want is None:
            raise _unknown(uri)
        with translated("read", self._shelves.root):
            found = self._shelves.held(owner, like=want.like)
            held = _newest_first([one for one in found if want.fits(one[1])])
            if want.beginning and len({entry.digest for _, entry in held}) > 1:
                message = f"{len(held):,} things that are kept begin with {uri!r:.80}."
                raise UnknownArtifactError(message, remedy="Give more of it.")
            # Of one content that was kept several times, or a stream of that run, the newest.
            for one in held:
                artifacts = self._artifacts([one])
                if artifacts:
                    return one, artifacts[0]
        raise _unknown(uri)

    def _artifacts(self, held: Sequence[Held]) -> tuple[Artifact, ...]:
        with self._shelves.descriptions() as described:
            found = (
                artifact_of(one[1], described(one, MAX_DESCRIPTION), self._shelves.seconds)
                for one in held
            )
            return tuple(artifact for artifact in found if artifact is not None)


def store_for(settings: Settings) -> ArtifactStore:
    """Return the store that settings speak of."""
    return ArtifactStore(
        settings.state_dir / "artifacts",
        total_bytes=settings.artifact_bytes,
        run_bytes=settings.artifact_run_bytes,
        days=settings.artifact_days,
    )


def _newest_first(held: Sequence[Held]) -> list[Held]:
    return sorted(held, key=lambda one: one[1].file_name, reverse=True)


def _place(entry: Entry) -> str:
    """Return what a page of a list begins after: where in time, and which of that moment."""
    return f"{entry.created:012x}.{entry.id}"


def _unknown(uri: str) -> UnknownArtifactError:
    message = f"Nothing is kept as {uri!r:.200}, or not any more."
    return UnknownArtifactError(message)
