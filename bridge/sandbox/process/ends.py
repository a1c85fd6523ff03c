"""The descriptors of one start: what is handed down to a sandbox, and this side's ends of it.

Owns their making and closing, until somebody takes them; what passes through them is others'.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from bridge.sandbox.process.command import Descriptors

STDIN_BYTES = 512 * 1024
"""What the pipe to a sandbox holds: the whole guest, so that it is there when Python is up, and not
handed over in turns of 64 KiB. A user's pipes may hold only so much in all; then it is less."""


class Ends:
    """The pipes of one start; whatever nobody took is closed in the end.

    Args:
        opened: Closes them.
        texts: Files that are handed down open, by the name of their descriptor.
        data: Contents of further such files.
        asks: Whether there is a pipe for leave to go on.
    """

    def __init__(
        self,
        opened: ExitStack,
        *,
        texts: Mapping[str, str],
        data: Sequence[bytes],
        asks: bool,
    ) -> None:
        self._open: set[int] = set()
        opened.callback(self._close_all)
        self.stdin, self.stdout, self.stderr = self._pipe(), self._pipe(), self._pipe()
        self.info, self.status, self.options = self._pipe(), self._pipe(), self._pipe()
        with suppress(AttributeError, OSError):  # only Linux has it
            fcntl.fcntl(self.stdin[1], fcntl.F_SETPIPE_SZ, STDIN_BYTES)
        self.leave = self._pipe() if asks else (-1, -1)
        self._files = {name: self._file(text.encode("ascii")) for name, text in texts.items()}
        self._data = tuple(map(self._file, data))
        self.stage = self._file(b"")

    @property
    def descriptors(self) -> Descriptors:
        """The numbers of what is handed down."""
        return Descriptors(
            info=self.info[1],
            status=self.status[1],
            data=self._data,
            leave=self.leave[0],
            stage=self.stage,
            **self._files,
        )

    @property
    def passed(self) -> tuple[int, ...]:
        """What is handed down besides stdin, stdout and stderr."""
        leave = (self.leave[0],) if self.leave[0] >= 0 else ()
        own = (self.info[1], self.status[1], self.options[0], *leave)
        return (*own, *self._files.values(), *self._data, self.stage)

    def take(self, descriptor: int) -> int:
        """Leave a descriptor to the caller, who closes it."""
        self._open.discard(descriptor)
        return descriptor

    def close_theirs(self) -> None:
        """Close what the process has copies of by now."""
        for descriptor in (self.stdin[0], self.stdout[1], self.stderr[1], *self.passed):
            self._close(descriptor)

    def close_options(self) -> None:
        """End what it reads its options from."""
        self._close(self.options[1])

    def _pipe(self) -> tuple[int, int]:
        reader, writer = os.pipe()
        self._open |= {reader, writer}
        return reader, writer

    def _file(self, content: bytes) -> int:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        self._open.add(descriptor)
        self.fill(descriptor, content)
        return descriptor

    def fill(self, descriptor: int, content: bytes) -> None:
        """Have a file that is handed down hold this."""
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.lseek(descriptor, 0, os.SEEK_SET)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def _close_all(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)
