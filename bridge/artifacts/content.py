"""Something that is kept, open to be read.

Owns the check of the whole against its digest, and which bytes lines are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from bridge.artifacts.folders import translated
from bridge.artifacts.ranges import Span, line_span
from bridge.errors import ArtifactStoreError
from bridge.model import Artifact

_PIECE = 1024 * 1024


class Content:
    """Something that is kept, open; it can be read though it is removed meanwhile.

    Args:
        descriptor: Closed on leaving.
        root: Of the store, for messages.
    """

    def __init__(self, artifact: Artifact, descriptor: int, root: Path) -> None:
        self.artifact = artifact
        self._descriptor = descriptor
        self._root = root

    def __enter__(self) -> Content:
        with translated("read", self._root):
            size = os.fstat(self._descriptor).st_size
        if size != self.artifact.size:
            os.close(self._descriptor)
            raise self._damaged()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Return a part; what is beyond the end is not there.

        Raises:
            ArtifactStoreError: It cannot be read.
        """
        pieces, left = [], max(min(size, self.artifact.size - start), 0)
        with translated("read", self._root):
            while left > 0 and (piece := os.pread(self._descriptor, min(left, _PIECE), start)):
                pieces.append(piece)
                start, left = start + len(piece), left - len(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Return it part by part.

        Raises:
            ArtifactStoreError: It cannot be read, or at the end: it was not what was kept.
        """
        digest, start = hashlib.sha256(), 0
        while piece := self.read(start, _PIECE):
            digest.update(piece)
            start += len(piece)
            yield piece
        if digest.hexdigest() != self.artifact.digest:
            raise self._damaged()

    def whole(self) -> bytes:
        """Return all of it.

        Raises:
            ArtifactStoreError: It cannot be read, or is not what was kept.
        """
        return b"".join(self.pieces())

    def lines(self, first: int, last: int | None) -> Span:
        """Return where lines are; see `line_span`.

        Raises:
            ArtifactStoreError: It cannot be read.
        """
        return line_span(self._unchecked, first, last)

    def _unchecked(self) -> Iterator[bytes]:
        start = 0
        while piece := self.read(start, _PIECE):
            start += len(piece)
            yield piece

    def _damaged(self) -> ArtifactStoreError:
        message = f"What is kept as {self.artifact.uri} is damaged: it is not what was kept."
        return ArtifactStoreError(message, remedy="Run the program again, and remove this.")
