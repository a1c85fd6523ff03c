"""Collects a program's frames: streams here, displayed items and files in `outputs`.

Secrets are redacted before anything is shown or stored, also a secret that two pieces share. A
client that follows the run gets each piece at once. If a stream is larger than the result may show,
the whole stream is stored piece by piece. The two streams share the result's limit of tokens.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

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
from bridge.runs.collect.outputs import Collected, FilesOut, ShownItems
from bridge.sessions.checkpoints import StateParts
from bridge.text import count_tokens, counted

logger = logging.getLogger(__name__)

MAX_LINES = 50_000
"""Lines of a guest's output in the result. Structured content lists each line, and the token limit
alone would allow a million empty ones, which take clients seconds."""

MEMORY_BYTES = 128 * 1024  # Of a stream's beginning; of its end half as many. Storage has the rest.

OUTPUT_BYTES = 32 * 1024 * 1024  # Most stored bytes of a stream.
_STEP_BYTES = 2048  # Tokens are counted in steps of this size.
_WHOLE_LINES_WITHIN = 2048  # A cut moves to the end of a line within this distance.


def cost(data: bytes | bytearray) -> int:
    return count_tokens(data.decode("utf-8", "replace"))


def shares(costs: Sequence[float], most: float) -> list[float]:
    """Return the shares of two streams in `most` tokens; what one does not need the other gets."""
    first, second = costs
    half = most / 2
    return [min(first, max(half, most - second)), min(second, max(half, most - first))]


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The shown part of a stream: its beginning and its end, or everything as the head."""

    head: bytes
    tail: bytes = b""
    is_cut: bool = False  # Whether stored bytes are not shown.
    left_out: int = 0  # The number of bytes that are not shown.
    lines: int = 0  # The number of their line ends; -1 if the guest dropped some.

    def text(self, notice: str = "") -> str:
        """Return the text with the notice at the cut."""
        head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
        if not notice:
            return head + tail
        before = "" if not head or head.endswith("\n") else "\n"
        return f"{head}{before}[… {notice} …]\n{tail}"


def cut_notice(ends: Excerpt, *, dropped: int = 0, kept: bool = False) -> str:
    """Return the notice for a cut in a stream: `kept` if it is stored, but for `dropped` bytes."""
    amount = f"{ends.left_out:,} bytes"
    if ends.lines > 0:
        amount = f"{counted(ends.lines, 'line')} ({amount})"
    if not kept:
        return f"{amount} dropped"
    lost = f", {dropped:,} of them dropped" if dropped else ""
    return f"{amount} not shown here{lost}"


class OutputBuffer:
    """One stream: its beginning, its end and its size.

    Args:
        limit: The most accepted bytes; the rest is dropped.
        memory: The most bytes of the beginning in memory.
    """

    def __init__(self, limit: int = OUTPUT_BYTES, memory: int = MEMORY_BYTES) -> None:
        self._room, self._memory = limit, memory
        self._start = bytearray()
        self._end = bytearray()
        self._end_lost = 0
        self._size = 0
        self._lines = 0
        self._gaps: list[tuple[int, int]] = []
        self._cost: int | None = None
        self.dropped = 0

    def append(self, data: bytes, skipped: int = 0) -> bytes:
        """Add bytes after `skipped` dropped ones; return those to store once memory is full."""
        gap = b""
        if skipped > 0:
            self.dropped += skipped
            if len(self._gaps) < 16:  # The guest announces one; more come from forged frames.
                gap = f"\n[… {skipped:,} bytes dropped …]\n".encode()
                self._gaps.append((self._size, len(gap)))
        taken = data[: self._room]
        self._room -= len(taken)
        self.dropped += len(data) - len(taken)
        return self._add(gap + taken if gap else taken)

    @property
    def start(self) -> bytes:
        return bytes(self._start)

    @property
    def is_whole(self) -> bool:
        return self._size == len(self._start)

    def cost(self, most: float) -> int:
        """Return the tokens of the whole stream, or any number above `most`."""
        if not self.is_whole:
            return int(most) + 1
        if self._cost is None:
            size = int(2 * most) + 1
            # Most long text exceeds `most` early and need not be counted to its end.
            while size < len(self._start):
                if (beginning := cost(self._start[:size])) > most:
                    return beginning
                size *= 4
            self._cost = cost(self._start)
        return self._cost

    def _add(self, data: bytes) -> bytes:
        was_whole = self.is_whole
        self._cost = None
        self._size += len(data)
        self._lines += data.count(b"\n")
        room = self._memory - len(self._start)
        if was_whole and len(data) <= room:
            self._start += data
            return b""
        before = b""
        if was_whole:
            before = bytes(self._start)
            self._start += data[:room]
            self._end += data[room:]
        else:
            self._end += data
        excess = len(self._end) - self._memory // 2
        # At twice the size, so that each byte moves once on average.
        if excess > self._memory // 2:
            del self._end[:excess]
            self._end_lost += excess
        return before + data

    def shown(self, most: float, lines: int = MAX_LINES) -> Excerpt:
        start, end = bytes(self._start), bytes(self._end)
        # A token has at least one byte, so a short stream needs no count.
        fits = self.is_whole and (len(start) <= most or self.cost(most) <= most)
        if fits and self._lines <= lines:
            return Excerpt(head=start, left_out=self.dropped)
        if not self._end_lost:
            # Nothing is missing in between, so the end may start earlier.
            start = end = start + end
        head = start[: _cut_to_tokens(start, most / 2, lines // 2)]
        tail = end[len(end) - _cut_to_tokens(end, most / 2, lines // 2, at_end=True) :]
        # Overlapping bytes would be shown twice.
        overlap = len(head) + len(tail) - self._size
        tail = tail[max(0, overlap) :]
        before = len(end) - len(tail)
        begins_a_line = end[max(0, before - 1) : before] == b"\n"
        return self._ends(_whole_head(head), tail if begins_a_line else _whole_tail(tail))

    def _ends(self, head: bytes, tail: bytes) -> Excerpt:
        shown = len(head) + len(tail)
        tail_at = self._size - len(tail)
        # Notices of gaps are not output, so leaving them out loses nothing.
        notices = sum(
            max(0, min(at + size, tail_at) - max(at, len(head))) for at, size in self._gaps
        )
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        return Excerpt(
            head=head,
            tail=tail,
            is_cut=True,
            left_out=self._size - shown - notices + self.dropped,
            lines=-1 if self.dropped else lines,
        )


def _cut_to_tokens(data: bytes, most: float, lines: int, *, at_end: bool = False) -> int:
    """Return how many bytes at the beginning or end of `data` fit into the tokens."""
    size, whole = 0, 0
    while size == whole < len(data):
        edge = len(data) - size if at_end else size
        part = (
            data[max(0, edge - _STEP_BYTES) : edge] if at_end else data[edge : edge + _STEP_BYTES]
        )
        end_of_line = (part.find(b"\n") if at_end else part.rfind(b"\n")) + 1
        part = (part[end_of_line:] if at_end else part[:end_of_line]) or part
        if size:
            # A text cut inside a line may cost more than its two parts.
            most -= 1 if data[edge - 1 : edge] == b"\n" else 5
        whole += len(part)
        while part and (tokens := cost(part)) > most:
            # Assumes equal tokens per byte; tried again if that does not hold.
            fits = max(0, min(len(part) - 1, int(len(part) * most / tokens)))
            part = part[len(part) - fits :] if at_end else part[:fits]
        most -= tokens
        size += len(part)
    kept = (data[len(data) - size :] if at_end else data[:size]).split(b"\n")
    if len(kept) <= lines + 1:
        return size
    if not lines:
        return 0
    return len(b"\n".join(kept[-lines - 1 :] if at_end else kept[:lines])) + (not at_end)


def _whole_head(head: bytes) -> bytes:
    """Return a head that ends with a whole line if one is near, else with a whole character."""
    end = head.rfind(b"\n", max(0, len(head) - _WHOLE_LINES_WITHIN)) + 1
    if end:
        return head[:end]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(head[-4:])
    # The bytes of a character that needs more than there are.
    incomplete, _ = decoder.getstate()
    return head[: len(head) - len(incomplete)]


def _whole_tail(tail: bytes) -> bytes:
    """Return a tail that begins with a whole line if one is near, else with a whole character."""
    start = tail.find(b"\n", 0, _WHOLE_LINES_WITHIN) + 1
    if start and start < len(tail):
        return tail[start:]
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return tail[start:]


_PIECES = re.compile(
    r"\x1b\[(?P<up>\d{0,3})A|(?P<end>\x1b\[0?K)|(?P<line>\x1b\[2K)"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])"
    r"|\r++|[\n\b\x1b]|[^\r\n\b\x1b]++"
)
"""Matches one piece: a cursor movement or erasure, an ignored sequence, or text."""

_REPEATED = re.compile(r"(?m)^([^\S\n]*+[^\n]++\n)\1{9,}")
"""Matches a line that repeats ten times or more; fewer may be rows of a drawing."""


def terminal_view(data: bytes) -> bytes:
    """Return what a terminal shows once it has received `data`."""
    # A character may be cut at either end.
    text = data.decode("utf-8", "surrogateescape")
    if not {"\r", "\x1b", "\b"}.isdisjoint(text):
        text = _draw(text)
    return _REPEATED.sub(_count, text).encode("utf-8", "surrogateescape")


def _count(match: re.Match[str]) -> str:
    line = match[1]
    return f"{line[:-1]} ({len(match[0]) // len(line):,} times)\n"


def _draw(text: str) -> str:
    rows: list[list[str]] = [[]]
    row = column = 0
    overwritten = set()
    for match in _PIECES.finditer(text):
        piece = match[0]
        if piece == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append([])
        elif piece[0] == "\r" or match["line"]:
            overwritten.add(row)
            column = 0
            if match["line"]:
                rows[row].clear()
        elif piece == "\b":
            column = max(0, column - 1)
        elif match["up"] is not None:
            # To the first column: no row is filled up with spaces, whose number has no bound.
            row, column = max(0, row - int(match["up"] or 1)), 0
        elif match["end"]:
            del rows[row][column:]
        elif piece[0] != "\x1b":
            rows[row][column : column + len(piece)] = piece
            column += len(piece)
    # A bar that was removed is overwritten with spaces.
    lines = ("".join(line) for line in rows)
    return "\n".join(s.rstrip(" ") if n in overwritten else s for n, s in enumerate(lines))


AT_ONCE_BYTES = 256 * 1024
"""Bytes that are searched for secrets before other tasks run; this takes some milliseconds."""


@dataclass(eq=False, repr=False)
class Collector:
    """Collects one run's frames. Used once."""

    limits: Limits
    _: KW_ONLY
    caller: RunCaller | None = None  # Receives progress and output.
    # Stores files and long output; without it they are dropped.
    artifacts: RunArtifacts | None = None
    clear: Redact = field(default_factory=lambda: Redactor({}))
    state: StateParts | None = None  # Receives a session's state, if the host asked for it.
    # Most runs need one of these at most.
    _streams: Streams | None = None
    _shown: ShownItems | None = None
    _files: FilesOut | None = None
    collecting: bool = False  # Whether files arrive, which is after the program's end.

    async def add(self, frame: Output | Shown | Progress | State | File) -> None:
        limits, artifacts, clear = self.limits, self.artifacts, self.clear
        match frame:
            case Output():
                self._streams = self._streams or Streams(limits, self.caller, artifacts, clear)
                await self._streams.add(frame)
            case Shown():
                self._shown = self._shown or ShownItems(limits, artifacts, clear)
                await self._shown.add(frame)
            case Progress():
                if self.caller is not None:
                    await self.caller.advance(frame.done, frame.total, frame.message)
            case State():
                if self.state is not None:
                    self.state.add(frame)
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
    """The stored copy of one stream, which begins when the stream no longer fits into memory."""

    def __init__(self, stream: ArtifactKind, artifacts: RunArtifacts | None) -> None:
        self._stream: ArtifactKind = stream
        self._artifacts = artifacts
        self._writer: ArtifactWriter | None = None
        self.problem = ""  # Why the copy is missing or incomplete; empty if it is complete.
        self.lost = 0  # The number of bytes that the copy lacks.

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
