"""Runs one command line of the user's own tools to its end, with a deadline."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryFile
from typing import IO

import anyio
from anyio.abc import Process

LINE_BYTES = 4096  # A command may write lines of any length as progress.


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """How a command ended; `exit_code` is None if it timed out or could not be started."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    missing: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(kw_only=True)
class SystemRunner:
    """Runs commands as processes of this machine; an `env` of None inherits the bridge's."""

    env: Mapping[str, str] | None = None
    cwd: Path | None = None

    async def __call__(
        self, argv: Sequence[str], *, timeout: float, on_line: Callable[[str], None] | None = None
    ) -> CompletedCommand:
        """Run `argv` without stdin for at most `timeout` seconds; a failure is a result."""
        # Not pipes: helpers of `podman machine start` keep them open while the machine runs.
        with TemporaryFile() as out, TemporaryFile() as err:
            try:
                process = await open_group(argv, out, err, self.env, self.cwd)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                said = f"{argv[0]}: {error}"
                return CompletedCommand(exit_code=None, stderr=said, missing=missing)
            ended = anyio.Event()
            try:
                async with anyio.create_task_group() as tasks:
                    if on_line is not None:
                        tasks.start_soon(_follow, out.fileno(), on_line, ended)
                        tasks.start_soon(_follow, err.fileno(), on_line, ended)
                    with anyio.move_on_after(timeout) as patience:
                        await process.wait()
                    ended.set()
            finally:
                if process.returncode is None:
                    await end_group(process)
            return CompletedCommand(
                exit_code=None if patience.cancelled_caught else process.returncode,
                stdout=_text(out),
                stderr=_text(err),
                timed_out=patience.cancelled_caught,
            )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


async def _follow(file: int, on_line: Callable[[str], None], ended: anyio.Event) -> None:
    """Report the lines that a command writes to a file, until its end."""
    position, rest, last = 0, b"", False
    while not last:
        with anyio.move_on_after(0.1):
            await ended.wait()
        last = ended.is_set()
        while chunk := os.pread(file, 65536, position):
            position += len(chunk)
            # Progress bars redraw with a bare carriage return.
            *lines, rest = (rest + chunk.replace(b"\r", b"\n")).split(b"\n")
            for line in lines:
                _show(line, on_line)
    _show(rest, on_line)


def _show(line: bytes, on_line: Callable[[str], None]) -> None:
    if text := line[:LINE_BYTES].decode("utf-8", "replace").rstrip():
        on_line(text)


async def open_group(
    argv: Sequence[str],
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    env: Mapping[str, str] | None,
    cwd: Path | None,
) -> Process:
    """Start a process without stdin that leads its own session."""
    # A cancelled start would leave a process.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            list(argv),
            stdin=DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    return process  # noqa: RET504 - a scope may suppress, says mypy


async def end_group(process: Process) -> None:
    """End a process and its children with SIGTERM, then SIGKILL, even when cancelled."""
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
    # It leads its own session, so its group has only its children.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
