"""Keeping what one run leaves, within its quota.

Owns the run's quota, and a file's way from its first byte to its entry.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bridge.artifacts.entries import shown_name
from bridge.artifacts.mime import HEAD, mime_type
from bridge.artifacts.parts import translated
from bridge.artifacts.tidying import MAX_RUN_ENTRIES
from bridge.errors import ArtifactQuotaError, ArtifactStoreError
from bridge.model import Artifact, ArtifactKind, Provenance
from bridge.store.blobs import Unfinished

Origin = Callable[[], Provenance | None]
"""Returns what a run has read by now; None for nothing that is worth a note. Called in threads."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is to be said of a finished file."""

    owner: str
    run_id: str
    kind: ArtifactKind
    name: str
    mime_type: str
    size: int
    digest: str
    provenance: Provenance | None = None


class Keeper(Protocol):
    """Where finished files go."""

    @property
    def root(self) -> Path:
        """The directory, for messages."""
        ...

    def begin(self) -> Unfinished:
        """Begin a file that nobody sees."""
        ...

    def discard(self, unfinished: Unfinished) -> None:
        """Let go of one that is not to be kept."""
        ...

    def keep(self, unfinished: Unfinished, label: Label) -> Artifact:
        """Give a finished one its place and its entry; its descriptor stays open."""
        ...


def of_nothing() -> None:
    """Know of nothing that was read."""
    return


class Quota:
    """What a run may still leave. Used by several threads."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._count = 0
        self._changing = threading.Lock()

    def begin(self) -> None:
        """Count one more.

        Raises:
            ArtifactQuotaError: There are as many as there may be.
        """
        with self._changing:
            if self._count >= MAX_RUN_ENTRIES:
                message = (
                    f"A run may leave {MAX_RUN_ENTRIES:,} files and outputs, and this one has."
                )
                raise ArtifactQuotaError(message, remedy="Put many small files into an archive.")
            self._count += 1

    def take(self, size: int) -> None:
        """Count bytes.

        Raises:
            ArtifactQuotaError: There would be more than there may be.
        """
        with self._changing:
            if self._used + size > self._total:
                message = f"A run may leave {self._total:,} bytes, and this one would leave more."
                remedy = (
                    "MCP_BRIDGE_ARTIFACT_RUN_BYTES sets how much, within MCP_BRIDGE_ARTIFACT_BYTES."
                )
                raise ArtifactQuotaError(message, remedy=remedy)
            self._used += size

    def give_back(self, size: int) -> None:
        """Have one that was not kept count no more."""
        with self._changing:
            self._used -= size
            self._count -= 1


class RunArtifacts:
    """What one run leaves, within its quota. Made by `ArtifactStore.of_run`."""

    def __init__(
        self,
        keeper: Keeper,
        quota: Quota,
        owner: str,
        run_id: str,
        origin: Origin = of_nothing,
    ) -> None:
        self._keeper = keeper
        self._quota = quota
        self._owner = owner
        self._run_id = run_id
        self._origin = origin

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin to keep something; nobody sees it before it is finished.

        Args:
            mime_type: What it is said to be; told from the first bytes and the name as far as
                those say otherwise.

        Raises:
            ArtifactQuotaError: The run has left as many as it may.
            ArtifactStoreError: The directory cannot be written to.
        """
        self._quota.begin()
        try:
            with translated("kept", self._keeper.root):
                unfinished = self._keeper.begin()
        except ArtifactStoreError:
            self._quota.give_back(0)
            raise
        return ArtifactWriter(
            self._keeper,
            self._quota,
            unfinished,
            owner=self._owner,
            run_id=self._run_id,
            name=name,
            claimed=mime_type,
            kind=kind,
            origin=self._origin,
        )

    def add(
        self, name: str, data: bytes, mime_type: str = "", kind: ArtifactKind = "file"
    ) -> Artifact:
        """Keep something that is in memory; see `writer`."""
        with self.writer(name, mime_type, kind) as writer:
            writer.write(data)
            return writer.finish()


class ArtifactWriter:
    """Something that is being written. Leaving without `finish` discards it."""

    def __init__(
        self,
        keeper: Keeper,
        quota: Quota,
        unfinished: Unfinished,
        *,
        owner: str,
        run_id: str,
        name: str,
        claimed: str,
        kind: ArtifactKind,
        origin: Origin = of_nothing,
    ) -> None:
        self._keeper = keeper
        self._quota = quota
        self._unfinished: Unfinished | None = unfinished
        self._owner = owner
        self._run_id = run_id
        self._name = name
        self._claimed = claimed
        self._kind = kind
        self._origin = origin
        self._size = 0
        self._head = b""
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Add to it. Fast enough for the event loop with pieces of up to a megabyte.

        Raises:
            ArtifactQuotaError: The run has left as much as it may. What was written stays.
            ArtifactStoreError: The disk is full, or the directory is gone. It cannot be finished.
        """
        unfinished = self._open()
        self._quota.take(len(data))
        self._size += len(data)
        try:
            with translated("kept", self._keeper.root):
                unfinished.write(data)
        except ArtifactStoreError:
            self.discard()
            raise
        self._digest.update(data)
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]

    def finish(self) -> Artifact:
        """Keep it: from here on it is listed, and survives this bridge. For threads.

        Raises:
            ArtifactStoreError: It cannot be kept.
        """
        unfinished = self._open()
        label = Label(
            owner=self._owner,
            run_id=self._run_id,
            kind=self._kind,
            name=shown_name(self._name),
            mime_type=mime_type(self._name, self._head, self._claimed),
            size=self._size,
            digest=self._digest.hexdigest(),
            provenance=self._origin(),
        )
        try:
            with translated("kept", self._keeper.root):
                artifact = self._keeper.keep(unfinished, label)
        except ArtifactStoreError:
            self.discard()
            raise
        self._unfinished = None
        os.close(unfinished.descriptor)
        return artifact

    def discard(self) -> None:
        """Keep nothing of it, if it is not finished."""
        if self._unfinished is None:
            return
        unfinished, self._unfinished = self._unfinished, None
        self._quota.give_back(self._size)
        self._keeper.discard(unfinished)

    def _open(self) -> Unfinished:
        if self._unfinished is None:
            raise ArtifactStoreError("This was finished, or could not be kept, before.")
        return self._unfinished

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()
