"""Writes the artifacts of one run, within its quota."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from bridge.artifacts.mime import HEAD, mime_type
from bridge.artifacts.parts import translated
from bridge.errors import ArtifactQuotaError, ArtifactStoreError
from bridge.model import Artifact, ArtifactKind, Provenance
from bridge.store.blobs import Unfinished
from bridge.text import valid_text, visible

if TYPE_CHECKING:
    from bridge.artifacts.store import ArtifactStore

# A program can leave any number of files, with any names.
MAX_RUN_ENTRIES = 1_000
MAX_NAME = 255  # Characters, as of a file's name.

Origin = Callable[[], Provenance | None]
"""Returns what a run has read so far; None if nothing needs to be recorded. Called in threads."""


class Quota:
    """The remaining number and bytes of a run's artifacts. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._count = 0
        self._changing = threading.Lock()

    def begin(self) -> None:
        with self._changing:
            if self._count >= MAX_RUN_ENTRIES:
                message = (
                    f"A run may leave {MAX_RUN_ENTRIES:,} files and outputs, and this one has."
                )
                raise ArtifactQuotaError(message, remedy="Put many small files into an archive.")
            self._count += 1

    def take(self, size: int) -> None:
        with self._changing:
            if self._used + size > self._total:
                message = f"A run may leave {self._total:,} bytes, and this one would leave more."
                remedy = (
                    "MCP_BRIDGE_ARTIFACT_RUN_BYTES sets how much, within MCP_BRIDGE_ARTIFACT_BYTES."
                )
                raise ArtifactQuotaError(message, remedy=remedy)
            self._used += size

    def give_back(self, size: int) -> None:
        """Return the bytes of an artifact that was not stored."""
        with self._changing:
            self._used -= size
            self._count -= 1


class RunArtifacts:
    """The artifacts of one run, with its quota. Made by `ArtifactStore.of_run`."""

    def __init__(
        self,
        store: ArtifactStore,
        quota: Quota,
        owner: str,
        run_id: str,
        origin: Origin,
    ) -> None:
        self.store = store
        self.quota = quota
        self.owner = owner
        self.run_id = run_id
        self.origin = origin

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin an artifact, which is listed only once it is finished.

        Args:
            mime_type: The claimed type; the first bytes and the name override it.
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
        with self.writer(name, mime_type, kind) as writer:
            writer.write(data)
            return writer.finish()


class ArtifactWriter:
    """An unfinished artifact. Leaving the context without `finish` discards it."""

    def __init__(
        self, run: RunArtifacts, unfinished: Unfinished, name: str, claimed: str, kind: ArtifactKind
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
        """Append data. Fast enough for the event loop with pieces of up to a megabyte.

        Raises:
            ArtifactQuotaError: The run's quota is used up. The data until then stays.
            ArtifactStoreError: It cannot be written. The artifact is discarded.
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
        unfinished, run = self._open(), self._run
        name = visible(valid_text(self._name[: 2 * MAX_NAME]), keep="")
        label = Artifact(
            uri="",
            name=name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
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

    def __exit__(self, *_: object) -> None:
        self.discard()
