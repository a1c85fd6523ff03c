"""Collects a program's frames: streams here, displayed items and files in `outputs`.

Secrets are redacted before anything is shown or stored, also a secret that two pieces share. A
client that follows the run gets each piece at once. If a stream is larger than the result may show,
the whole stream is stored piece by piece. The two streams share the result's limit of tokens.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio.lowlevel
from anyio import to_thread

from bridge.artifacts.store import ArtifactWriter, RunArtifacts
from bridge.callers.client import RunCaller
from bridge.errors import ArtifactStoreError
from bridge.gate.redaction import Redactor
from bridge.guest.protocol.wire import File, Output, Progress, Shown, State
from bridge.model import Artifact, Limits, Loss
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
from bridge.runs.collect.outputs import Collected, FilesOut, ShownItems
from bridge.sessions.checkpoints import StateParts

logger = logging.getLogger(__name__)

AT_ONCE_BYTES = 256 * 1024
"""Bytes that are searched for secrets before other tasks run; this takes some milliseconds."""


class Collector:
    """Collects one run's frames. Used once.

    Args:
        caller: Receives progress and output.
        artifacts: Stores files and long output; without it they are dropped.
        state: Receives a session's state, if the host asked for it.

    Attributes:
        collecting: Whether files arrive, which is after the program's end.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        caller: RunCaller | None = None,
        artifacts: RunArtifacts | None = None,
        clear: Redact | None = None,
        state: StateParts | None = None,
    ) -> None:
        self._caller = caller
        self._limits = limits
        self._artifacts = artifacts
        self._clear = clear or Redactor({})
        self._state = state
        # Most runs need one of these at most.
        self._streams: Streams | None = None
        self._shown: ShownItems | None = None
        self._files: FilesOut | None = None
        self.collecting = False

    async def add(self, frame: Output | Shown | Progress | State | File) -> None:
        limits, artifacts, clear = self._limits, self._artifacts, self._clear
        match frame:
            case Output():
                self._streams = self._streams or Streams(limits, self._caller, artifacts, clear)
                await self._streams.add(frame)
            case Shown():
                self._shown = self._shown or ShownItems(limits, artifacts, clear)
                await self._shown.add(frame)
            case Progress():
                if self._caller is not None:
                    await self._caller.advance(frame.done, frame.total, frame.message)
            case State():
                if self._state is not None:
                    self._state.add(frame)
            case File():
                self.collecting = True
                self._files = self._files or FilesOut(limits, artifacts, clear)
                await self._files.add(frame)

    async def finish(self) -> Collected:
        left = Collected()
        for part in (self._streams, self._shown, self._files):
            if part is not None:
                await part.finish(left)
        return left

    def give_up_files(self) -> None:
        """Stop waiting for files: reading them took too long."""
        if self._files is not None:
            self._files.give_up()

    def discard(self) -> None:
        """Keep nothing more, and remove a stream or file that is only partly stored."""
        for part in (self._streams, self._shown, self._files):
            if part is not None:
                part.discard()


class _StoredStream:
    """The stored copy of one stream, which begins when the stream no longer fits into memory.

    Attributes:
        problem: Why the copy is missing or incomplete; empty if it is complete.
        lost: The number of bytes that the copy lacks.
    """

    def __init__(self, stream: ArtifactKind, artifacts: RunArtifacts | None) -> None:
        self._stream: ArtifactKind = stream
        self._artifacts = artifacts
        self._writer: ArtifactWriter | None = None
        self.problem = ""
        self.lost = 0

    def write(self, data: bytes) -> None:
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
                artifact = await self._writer.keep()
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
        self, name: ArtifactKind, limits: Limits, artifacts: RunArtifacts | None, clear: Redact
    ) -> None:
        # No text has more, so that all that may be shown is in memory.
        memory = max(MEMORY_BYTES, limits.output_tokens * 5)
        self.name: ArtifactKind = name
        self.buffer = OutputBuffer(min(limits.output_bytes, OUTPUT_BYTES), memory)
        self.stored = _StoredStream(name, artifacts)
        self._raw = b""
        self._redact = clear
        self._redact_stream = clear.stream()

    def add(self, data: bytes, skipped: int) -> bytes:
        """Add what was written; return the part that certainly holds no secret."""
        # What was held back came before the gap.
        before = self.flush() if skipped > 0 else b""
        cleared = self._redact_stream.feed(data)
        self._add(cleared, skipped)
        return before + cleared

    def flush(self) -> bytes:
        """Add what was held back, and return it."""
        rest = self._redact_stream.finish()
        self._add(rest, 0)
        return rest

    def _add(self, data: bytes, skipped: int) -> None:
        more = self.buffer.append(data, skipped)
        if more:
            self.stored.write(more)

    async def view(self) -> None:
        """Show what a terminal would show; the raw stream is what is stored."""
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
        if shown == data:
            return shown
        # A secret whose parts a colour separated is whole now.
        stream = self._redact.stream()
        return stream.feed(shown) + stream.finish()

    async def finish(self, most: float, left: Collected) -> str:
        """Return the text to show within `most` tokens; a cut stream is stored as a whole."""
        ends = self.buffer.shown(most, MAX_LINES // 2)
        if not self.buffer.is_whole:
            head, tail = await self._view(ends.head), await self._view(ends.tail)
            ends = replace(ends, head=head, tail=tail)
        if ends.left_out > 0:
            left.dropped = {**left.dropped, self.name: ends.left_out}
        if not ends.is_cut:
            self.stored.discard()
            return ends.text()
        if self.buffer.is_whole:
            self.stored.write(self._raw or self.buffer.start)
        artifact, lost = await self.stored.finish(), self.buffer.dropped
        problem = self.stored.problem
        if artifact is not None:
            left.artifacts += (artifact,)
            lost += self.stored.lost
            if lost and not problem:
                problem = f"{lost:,} bytes of it: there is more than may be kept of a stream"
        if problem:
            left.missing += (Loss(name=self.name, why=problem),)
        return ends.text(cut_notice(ends, dropped=lost, kept=artifact is not None))


class Streams:
    """Both streams of one run."""

    def __init__(
        self,
        limits: Limits,
        caller: RunCaller | None,
        artifacts: RunArtifacts | None,
        clear: Redact,
    ) -> None:
        self._caller = caller
        self._most = limits.output_tokens
        self._is_shown = caller is not None and caller.is_shown
        if self._is_shown:
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

    async def finish(self, left: Collected) -> None:
        both = (self._stdout, self._stderr)
        for stream in both:
            await self._tell(stream, stream.flush())
            if not self._is_shown:
                await stream.view()
        costs = [len(stream.buffer.start) for stream in both]
        if sum(costs) > self._most:  # A token has at least one byte.
            costs = [stream.buffer.cost(self._most) for stream in both]
        out, err = shares(costs, self._most)
        left.stdout = await self._stdout.finish(out, left)
        left.stderr = await self._stderr.finish(err, left)

    def discard(self) -> None:
        self._stdout.stored.discard()
        self._stderr.stored.discard()

    async def _tell(self, stream: _Stream, data: bytes) -> None:
        if data and self._caller is not None:
            await self._caller.wrote(stream.name, data)
