"""Runs one command line of the user's own tools to its end, with a deadline.

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

LINE_BYTES = 4096  # Shown of a line of progress.


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """How a command ended.

    Attributes:
        exit_code: None when there is none: it timed out, or could not be started.
        timed_out: Whether it was ended for taking too long.
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
    ) -> CompletedCommand:
        """Run `argv` without a terminal or stdin and wait for its end, at most `timeout` seconds.

        Raises nothing for a failing command.

        Args:
            on_line: Called with each line of either stream as it comes.
        """
        with _pipe() as out, _pipe() as err:
            try:
                # Cancelled in the middle, it would leave a process that no one waits for.
                with anyio.CancelScope(shield=True):
                    process = await anyio.open_process(
                        list(argv),
                        stdin=DEVNULL,
                        stdout=out[-1],
                        stderr=err[-1],
                        cwd=self.cwd,
                        env=self.env,
                        start_new_session=True,
                    )
            except OSError as error:
                missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                return CompletedCommand(
                    exit_code=None, stderr=f"{argv[0]}: {error}", missing=missing
                )
            os.close(out.pop())
            os.close(err.pop())
            return await _finish(process, *out, *err, timeout=timeout, on_line=on_line)


@contextmanager
def _pipe() -> Iterator[list[int]]:
    """Yield a pipe's descriptors: the last one is the writer's, until it is popped and closed.

    asyncio's own pipes stay open, with a warning, when a helper keeps the other end.
    """
    ends = list(os.pipe())
    try:
        os.set_blocking(ends[0], False)
        yield ends
    finally:
        for end in ends:
            os.close(end)


@dataclass
class _Output:
    """One stream's text, and its unfinished line."""

    on_line: Callable[[str], None] | None
    data: bytearray = field(default_factory=bytearray)
    line: bytes = b""

    async def read(self, descriptor: int) -> None:
        while True:
            await anyio.wait_readable(descriptor)
            try:
                chunk = os.read(descriptor, 65536)
            except BlockingIOError:
                continue
            if not chunk:
                return
            self.data += chunk
            # Progress bars redraw with a bare carriage return.
            *lines, self.line = (self.line + chunk.replace(b"\r", b"\n")).split(b"\n")
            self.emit(*lines)

    def emit(self, *lines: bytes) -> None:
        for line in lines:
            text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip()
            if text and self.on_line is not None:
                self.on_line(text)

    def text(self) -> str:
        self.emit(self.line)
        return self.data.decode("utf-8", "replace")


async def _finish(
    process: Process,
    stdout: int,
    stderr: int,
    *,
    timeout: float,
    on_line: Callable[[str], None] | None,
) -> CompletedCommand:
    """Collect a started command's output until it ends, is out of time or is cancelled."""
    out, err = _Output(on_line), _Output(on_line)
    ended = False
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(out.read, stdout)
            readers.start_soon(err.read, stderr)
            with anyio.move_on_after(timeout):
                await process.wait()
                ended = True
            if not ended:
                await end_group(process)
            # Helpers of `podman machine start` may hold the pipes open for as long as
            # the machine runs.
            readers.cancel_scope.deadline = anyio.current_time() + 1.0
    finally:
        if process.returncode is None:
            await end_group(process)
    return CompletedCommand(
        exit_code=process.returncode if ended else None,
        stdout=out.text(),
        stderr=err.text(),
        timed_out=not ended,
    )


async def end_group(process: Process) -> None:
    """End a process and what it started: SIGTERM, then SIGKILL. Bounded, done when cancelled."""
    with anyio.CancelScope(shield=True):
        # A process in uninterruptible sleep is left to init.
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            _signal_group(process, number)
            with anyio.move_on_after(patience):
                await process.wait()
                break
        # The group outlives its first process: rootless podman is two of them.
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: Process, number: int) -> None:
    # It leads its own session, so its group is its children and no one else's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
