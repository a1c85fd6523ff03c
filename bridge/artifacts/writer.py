"""Keeping what one run leaves, within its quota.

Owns the run's quota, and a file's way from its first byte to its entry.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from bridge.artifacts.mime import HEAD, mime_type
from bridge.artifacts.parts import translated
from bridge.errors import ArtifactQuotaError, ArtifactStoreError
from bridge.model import Artifact, ArtifactKind, Provenance
from bridge.store.blobs import Unfinished
from bridge.text import valid_text, visible

if TYPE_CHECKING:
    from bridge.artifacts.store import ArtifactStore

MAX_RUN_ENTRIES = 1_000
"""Most of one run: more than a person looks at; a program makes an archive of more."""

MAX_NAME = 255
"""Characters of a name, which lists repeat; as long as a file's name may be."""

Origin = Callable[[], Provenance | None]
"""Returns what a run has read by now; None for nothing that is worth a note. Called in threads."""


def of_nothing() -> None:
    """Return None: nothing was read."""
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
        """Return the share of one that was not kept."""
        with self._changing:
            self._used -= size
            self._count -= 1


class RunArtifacts:
    """What one run leaves, within its quota. Made by `ArtifactStore.of_run`."""

    def __init__(
        self,
        store: ArtifactStore,
        quota: Quota,
        owner: str,
        run_id: str,
        origin: Origin = of_nothing,
    ) -> None:
        self.store = store
        self.quota = quota
        self.owner = owner
        self.run_id = run_id
        self.origin = origin

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin to keep something; it is listed only once it is finished.

        Args:
            mime_type: What it is said to be; told from the first bytes and the name as far as
                those say otherwise.

        Raises:
            ArtifactQuotaError: The run has left as many as it may.
            ArtifactStoreError: The directory cannot be written to.
        """
        self.quota.begin()
        try:
            with translated("kept", self.store.root):
                unfinished = self.store.blobs.begin()
        except ArtifactStoreError:
            self.quota.give_back(0)
            raise
        return ArtifactWriter(self, unfinished, name, mime_type, kind)

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
        run: RunArtifacts,
        unfinished: Unfinished,
        name: str,
        claimed: str,
        kind: ArtifactKind,
    ) -> None:
        self._run = run
        self._unfinished: Unfinished | None = unfinished
        self._name = name
        self._claimed = claimed
        self._kind: ArtifactKind = kind
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
        self._run.quota.take(len(data))
        self._size += len(data)
        try:
            with translated("kept", self._run.store.root):
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
        unfinished, run = self._open(), self._run
        label = Artifact(
            uri="",
            name=shown_name(self._name),
            mime_type=mime_type(self._name, self._head, self._claimed),
            size=self._size,
            digest=self._digest.hexdigest(),
            run_id=run.run_id,
            kind=self._kind,
            provenance=run.origin(),
        )
        try:
            with translated("kept", run.store.root):
                artifact = run.store.keep(unfinished, run.owner, label)
        except ArtifactStoreError:
            self.discard()
            raise
        self._unfinished = None
        os.close(unfinished.descriptor)
        return artifact

    def discard(self) -> None:
        """Remove it, if it is not finished."""
        if self._unfinished is None:
            return
        unfinished, self._unfinished = self._unfinished, None
        self._run.quota.give_back(self._size)
        self._run.store.blobs.discard(unfinished)

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


def shown_name(name: str) -> str:
    """Return a name from elsewhere in a form that can be shown: one line, and bounded."""
    text = visible(valid_text(name[: 2 * MAX_NAME]), keep="")
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
