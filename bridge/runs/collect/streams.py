"""A program's output: the part that is shown, and the whole if that is more.

Owns the way of what a program writes: secrets are taken out first, also those that two pieces
share; a client that follows the run sees the rest at once; what is more than can be shown is
still stored, piece by piece; the two streams share what a run's output may cost a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio.lowlevel
from anyio import to_thread

from bridge.artifacts import ArtifactWriter, RunArtifacts
from bridge.callers.client import RunCaller
from bridge.errors import ArtifactStoreError
from bridge.guest.protocol.wire import Output
from bridge.model import Artifact, Limits, Loss, ShownContent
from bridge.model.kept import ArtifactKind
from bridge.rpc.channel import Redact
from bridge.rpc.output import (
    MAX_LINES,
    MEMORY_BYTES,
    OUTPUT_BYTES,
    OutputBuffer,
    cut_notice,
    shares,
    terminal_view,
)


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


logger = logging.getLogger(__name__)

AT_ONCE_BYTES = 256 * 1024
"""Searched for secrets before other tasks have their turn: some milliseconds."""


class _Kept:
    """One stream on its way to where it is kept. Begins when there is more than fits in memory.

    Attributes:
        problem: Why it, or the rest of it, is not kept.
        lost: Bytes that are not.
    """

    def __init__(self, stream: ArtifactKind, artifacts: RunArtifacts | None) -> None:
        self._stream: ArtifactKind = stream
        self._artifacts = artifacts
        self._writer: ArtifactWriter | None = None
        self.problem = ""
        self.lost = 0

    def write(self, data: bytes) -> None:
        """Keep more; what cannot be kept is counted."""
        if self._artifacts is None or self.problem:
            self.lost += len(data)
            return
        try:
            if self._writer is None:
                self._writer = self._artifacts.writer(self._stream, "text/plain", self._stream)
            # A quarter of a megabyte is written and hashed sooner than a thread is woken.
            self._writer.write(data)
        except ArtifactStoreError as error:
            self._fail(error, data)
            # The data written before the quota was reached remains an artifact.
            if error.code != "artifact_quota":
                self._writer = None

    async def finish(self) -> Artifact | None:
        artifact = None
        if self._writer is not None:
            try:
                artifact = await to_thread.run_sync(self._writer.finish)
            except ArtifactStoreError as error:
                self._fail(error, b"")
        self.discard()
        return artifact

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None

    def _fail(self, error: ArtifactStoreError, data: bytes) -> None:
        logger.warning("%s of a run is not kept: %s", self._stream, error)
        self.problem = str(error)
        self.lost += len(data)


class _Stream:
    """One stream of one run."""

    def __init__(
        self,
        name: ArtifactKind,
        limits: Limits,
        artifacts: RunArtifacts | None,
        clear: Redact | None,
    ) -> None:
        # No text has more, so that all that may be shown is in memory.
        memory = max(MEMORY_BYTES, limits.output_tokens * 5)
        self.name: ArtifactKind = name
        self.buffer = OutputBuffer(min(limits.output_bytes, OUTPUT_BYTES), memory)
        self._raw = b""
        self._redact = clear
        self.kept = _Kept(name, artifacts)
        self._clear = None if clear is None else clear.stream()

    def add(self, data: bytes, skipped: int) -> bytes:
        """Add what was written; return the part that certainly holds no secret."""
        told = b""
        if skipped > 0:
            # What was held back came before the gap.
            told = self._rest()
            self._add(told, 0)
        cleared = data if self._clear is None else self._clear.feed(data)
        self._add(cleared, skipped)
        return told + cleared

    def flush(self) -> bytes:
        """Add what was held back, and return it."""
        rest = self._rest()
        self._add(rest, 0)
        return rest

    def _rest(self) -> bytes:
        return b"" if self._clear is None else self._clear.finish()

    def _add(self, data: bytes, skipped: int) -> None:
        more = self.buffer.append(data, skipped)
        if more:
            self.kept.write(more)

    async def view(self) -> None:
        """Show what a terminal would show; the raw stream is what is kept."""
        raw = self.buffer.start
        shown = await self._view(raw) if self.buffer.is_whole else raw
        if shown != raw:
            dropped, self._raw = self.buffer.dropped, raw
            self.buffer = OutputBuffer(memory=2 * len(raw))
            self.buffer.append(shown)
            self.buffer.dropped = dropped

    async def _view(self, data: bytes) -> bytes:
        # In a thread: 128 KiB of bars take a tenth of a second.
        small = len(data) <= 4096
        shown = terminal_view(data) if small else await to_thread.run_sync(terminal_view, data)
        if shown == data or self._redact is None:
            return shown
        # A secret whose parts a colour separated is whole now.
        stream = self._redact.stream()
        return stream.feed(shown) + stream.finish()

    async def left(self, most: float) -> Collected:
        """Return what is shown for so many tokens; the whole is kept if that is less."""
        ends = self.buffer.shown(most, MAX_LINES // 2)
        if not self.buffer.is_whole:
            head, tail = await self._view(ends.head), await self._view(ends.tail)
            ends = replace(ends, head=head, tail=tail)
        dropped = {str(self.name): ends.left_out} if ends.left_out > 0 else {}
        if not ends.is_cut:
            self.kept.discard()
            own: dict[str, Any] = {self.name: ends.text()}
            return Collected(**own, dropped=dropped)
        if self.buffer.is_whole:
            self.kept.write(self._raw or self.buffer.start)
        artifact = await self.kept.finish()
        lost = self.buffer.dropped + (self.kept.lost if artifact is not None else 0)
        notice = cut_notice(ends, dropped=lost, kept=artifact is not None)
        problem = self.kept.problem
        if artifact is not None and lost and not problem:
            problem = f"{lost:,} bytes of it: there is more than may be kept of a stream"
        own = {self.name: ends.text(notice)}
        return Collected(
            **own,
            dropped=dropped,
            artifacts=() if artifact is None else (artifact,),
            missing=(Loss(name=self.name, why=problem),) if problem else (),
        )


class Streams:
    """Takes both streams of one run."""

    def __init__(
        self,
        limits: Limits,
        *,
        run: RunCaller | None = None,
        artifacts: RunArtifacts | None = None,
        clear: Redact | None = None,
    ) -> None:
        self._run = run
        self._most = limits.output_tokens
        if run is not None and run.is_shown:
            # The client has shown all of it, and nothing is to be kept.
            artifacts = None
        self._stdout = _Stream("stdout", limits, artifacts, clear)
        self._stderr = _Stream("stderr", limits, artifacts, clear)

    async def add(self, frame: Output) -> None:
        stream = self._stdout if frame.stream == "stdout" else self._stderr
        data, skipped = frame.data, frame.skipped
        while len(data) > AT_ONCE_BYTES:
            await self._tell(stream, stream.add(data[:AT_ONCE_BYTES], skipped))
            data, skipped = data[AT_ONCE_BYTES:], 0
            await anyio.lowlevel.checkpoint()
        await self._tell(stream, stream.add(data, skipped))

    async def finish(self) -> Collected:
        both = (self._stdout, self._stderr)
        for stream in both:
            await self._tell(stream, stream.flush())
            if self._run is None or not self._run.is_shown:
                await stream.view()
        most = shares([stream.buffer.cost(self._most) for stream in both], self._most)
        stdout, stderr = [
            await stream.left(share) for stream, share in zip(both, most, strict=True)
        ]
        return stdout.together(stderr)

    def discard(self) -> None:
        self._stdout.kept.discard()
        self._stderr.kept.discard()

    async def _tell(self, stream: _Stream, data: bytes) -> None:
        if data and self._run is not None:
            await self._run.wrote(stream.name, data)
