"""The files that a program left in `out/`, assembled from `File` frames and stored.

Names, order, sizes and number are checked. The host computes a file's size, type and digest. An
error loses only its file, and the result reports it.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace

from bridge.artifacts import ArtifactWriter, RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.guest.protocol.wire import File
from bridge.model import Artifact, Limits, Loss
from bridge.rpc.channel import Redact, RedactStream
from bridge.runs.collect import Collected
from bridge.runs.input_files import name_problem, quote

MAX_PART_BYTES = 1024 * 1024  # Of a guest's frame; an honest one has a quarter of it.
MAX_MISSING = 20  # Reported: a guest can name any number.
OUT, TOP = "out", "../"  # The directory, and the prefix of files next to it.


@dataclass(kw_only=True)
class _Open:
    """An incomplete file; only a text has a redactor."""

    name: str
    writer: ArtifactWriter
    clear: RedactStream | None

    def write(self, data: bytes) -> None:
        self.writer.write(data if self.clear is None else self.clear.feed(data))

    def flush(self) -> None:
        if self.clear is not None:
            self.writer.write(self.clear.finish())


class FilesOut:
    """The files of one run."""

    def __init__(self, limits: Limits, artifacts: RunArtifacts | None, clear: Redact) -> None:
        self._artifacts = artifacts
        self._clear = clear
        self._bytes = limits.out_bytes
        self._files = limits.out_files
        self._names: set[str] = set()
        self._open: _Open | None = None
        self._skipped = ""
        self._kept: list[Artifact] = []
        self._missing: list[Loss] = []
        self._more = 0
        self._over = artifacts is None

    async def add(self, frame: File) -> None:
        if self._over:
            # The reason is reported already.
            return
        file = self._open
        if file is not None and file.name != frame.name:
            file = None
        if frame.problem:
            if file is None:
                self._abandon()
            self._skip(frame.name, frame.problem)
        elif file is not None:
            await self._continue(file, frame)
        elif not frame.name or self._skipped != frame.name:
            self._abandon()
            await self._begin(frame)

    async def finish(self, left: Collected) -> None:
        self._abandon()
        self._over = True
        left.artifacts += tuple(self._kept)
        left.missing += tuple(self._missing)
        if self._more:
            left.missing += (Loss(name=OUT, why=f"{self._more:,} more could not be kept"),)

    def give_up(self) -> None:
        """Stop waiting: the files took too long."""
        if not self._over:
            self._abandon()
            self._miss("", "reading took too long; the rest was left out")
            self._over = True

    def discard(self) -> None:
        self._drop_open()
        self._over = True

    async def _begin(self, frame: File) -> None:
        name = frame.name.removeprefix(TOP)
        if problem := name_problem(name):
            self._skip(frame.name, f"its name {problem}")
        elif name in self._names:
            self._skip(frame.name, "it came twice; the first is kept")
        elif self._files <= 0:
            self._miss("", "there are more files than a run may leave")
            self._over = True
        else:
            self._names.add(name)
            self._files -= 1
            assert self._artifacts is not None
            try:
                writer = self._artifacts.writer(self._clear.text(name))
            except ArtifactStoreError as error:
                self._skip(frame.name, f"{error.message} {error.remedy}".rstrip())
                return
            clear = self._clear.stream() if _is_text(frame.data) else None
            self._skipped = ""
            self._open = _Open(name=frame.name, writer=writer, clear=clear)
            await self._continue(self._open, frame)

    async def _continue(self, file: _Open, frame: File) -> None:
        if len(frame.data) > MAX_PART_BYTES:
            self._skip(frame.name, "a part of it is too large")
            return
        if frame.more and not frame.data:
            self._skip(frame.name, "a part of it is empty")
            return
        self._bytes -= len(frame.data)
        if self._bytes < 0:
            self._skip(frame.name, "with it there are more bytes than a run may leave")
            return
        try:
            file.write(frame.data)
            if not frame.more:
                file.flush()
                # It waits for the disk and for other bridges.
                kept = await file.writer.keep()
                at_top = frame.name.startswith(TOP)
                self._kept.append(replace(kept, path=("" if at_top else f"{OUT}/") + kept.name))
                self._drop_open()
        except ArtifactStoreError as error:
            self._skip(frame.name, f"{error.message} {error.remedy}".rstrip())

    def _skip(self, name: str, why: str) -> None:
        """Report a file as missing, and ignore its further parts."""
        self._drop_open()
        self._skipped = name
        self._miss(name, why)

    def _abandon(self) -> None:
        if self._open is not None:
            self._miss(self._open.name, "it did not come whole")
            self._drop_open()

    def _drop_open(self) -> None:
        if self._open is not None:
            file, self._open = self._open, None
            file.writer.discard()

    def _miss(self, name: str, why: str) -> None:
        if len(self._missing) >= MAX_MISSING:
            self._more += 1
            return
        name = quote(name.removeprefix(TOP))[1:-1] if name else OUT
        why = quote(why[:300])[1:-1]
        self._missing.append(Loss(name=self._clear.text(name), why=self._clear.text(why)))


def _is_text(beginning: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning
