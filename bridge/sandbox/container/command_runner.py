"""Runs one command line to its end, with bounded output and a deadline.

Does not interpret output.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

STDOUT_BYTES = 1024 * 1024
"""Kept of stdout, from its beginning: JSON is useless without its head, and lists are small."""

STDERR_BYTES = 64 * 1024  # Kept of stderr, from its end: that is where a tool says why it gave up.
CHUNK_BYTES = 65536  # Read at once: what a pipe holds.

LINE_BYTES = 4096
"""Longest line handed to a progress callback; the rest of a longer one follows as more lines."""

KILL_SECONDS = 5.0
"""Waited for a killed command to be reaped; a process in uninterruptible sleep is left to init."""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended.

    Attributes:
        exit_code: None when there is none: it timed out, or could not be started.
        timed_out: Whether it was ended for taking too long.
        missing: Whether there is no such command.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    missing: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended by itself and called that a success."""
        return self.exit_code == 0


@dataclass(kw_only=True)
class SystemRunner:
    """Runs commands as processes of this machine, each in its own session.

    Attributes:
        env: Their whole environment; None inherits the bridge's, which the user's own engine and
            package manager need (proxies, `CONTAINERS_CONF`, `HOME`).
        cwd: Their working directory; None inherits the bridge's.
    """

    env: Mapping[str, str] | None = None
    cwd: Path | None = None

    async def __call__(
        self, argv: Sequence[str], *, timeout: float, on_line: Callable[[str], None] | None = None
    ) -> CommandResult:
        """Run `argv` without a terminal or stdin and wait for its end, at most `timeout` seconds.

        Raises nothing for a failing command.

        Args:
            on_line: Called with each line of either stream as it comes.
        """
        with _pipe() as out, _pipe() as err:
            try:
                # Cancelled in the middle, it would leave a process that nobody waits for.
                with anyio.CancelScope(shield=True):
                    process = await anyio.open_process(
                        list(argv),
                        stdin=DEVNULL,
                        stdout=out.write,
                        stderr=err.write,
                        cwd=self.cwd,
                        env=self.env,
                        start_new_session=True,
                    )
            except OSError as error:
                missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                return CommandResult(exit_code=None, stderr=f"{argv[0]}: {error}", missing=missing)
            out.close_write()
            err.close_write()
            return await _finish(process, out.read, err.read, timeout=timeout, on_line=on_line)


@dataclass
class _Pipe:
    """A pipe of our own: asyncio's stay open, with a warning, when a helper keeps the other end."""

    read: int
    write: int

    def close_write(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1


@contextmanager
def _pipe() -> Iterator[_Pipe]:
    pipe = _Pipe(*os.pipe())
    try:
        os.set_blocking(pipe.read, False)
        yield pipe
    finally:
        pipe.close_write()
        os.close(pipe.read)


@dataclass
class _Kept:
    """The bounded part of one stream, and its unfinished line."""

    limit: int
    head: bool
    on_line: Callable[[str], None] | None
    data: bytearray = field(default_factory=bytearray)
    line: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> None:
        self.data += chunk
        if len(self.data) > self.limit:
            if self.head:
                del self.data[self.limit :]
            else:
                del self.data[: len(self.data) - self.limit]
        if self.on_line is None:
            return
        # Progress bars redraw with a bare carriage return.
        self.line += chunk.replace(b"\r", b"\n")
        *lines, rest = bytes(self.line).split(b"\n")
        while len(rest) > LINE_BYTES:
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self.line = bytearray(rest)
        for line in lines:
            self._emit(line)

    def finish(self) -> None:
        self._emit(bytes(self.line))
        self.line.clear()

    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    def _emit(self, line: bytes) -> None:
        text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip()
        if text and self.on_line is not None:
            self.on_line(text)


async def _finish(
    process: Process,
    stdout: int,
    stderr: int,
    *,
    timeout: float,
    on_line: Callable[[str], None] | None,
) -> CommandResult:
    """Collect a started command's output until it ends, is out of time or is cancelled."""
    out = _Kept(STDOUT_BYTES, True, on_line)
    err = _Kept(STDERR_BYTES, False, on_line)
    ended = False
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(_read, stdout, out)
            readers.start_soon(_read, stderr, err)
            with anyio.move_on_after(timeout):
                await process.wait()
                ended = True
            if not ended:
                await _end(process)
            # Helpers of `podman machine start` may hold the pipes open for as long as
            # the machine runs.
            readers.cancel_scope.deadline = anyio.current_time() + 1.0
    finally:
        await _end(process)
    out.finish()
    err.finish()
    return CommandResult(
        exit_code=process.returncode if ended else None,
        stdout=out.text(),
        stderr=err.text(),
        timed_out=not ended,
    )


async def _read(descriptor: int, kept: _Kept) -> None:
    while True:
        await anyio.wait_readable(descriptor)
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not chunk:
            return
        kept.feed(chunk)


async def _end(process: Process) -> None:
    """End the command and what it started, if it still runs. Bounded; safe to repeat."""
    if process.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, KILL_SECONDS)):
            # The command leads its own session, so its group is its children and nobody else's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with anyio.move_on_after(patience):
                await process.wait()
                return
