"""Workers that are forked before there is a program.

Owns their descriptors and the choice between them. One is there at once and imports the usual
modules while it waits; where the image has the large data packages, a second one imports those. The
program gets the second if its text names one of them, and whichever is left over is killed.
"""

from __future__ import annotations

import _socket  # what `socket` is made of, without what takes milliseconds to import
import os

from bridge.guest import imports, worker
from bridge.guest.descriptors import private
from bridge.guest.processes import Children, cpu_clock, kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Sequence


class Candidate:
    """A worker that waits, and this process's ends of what leads to it.

    Attributes:
        control: By which a session's later runs are given to it.
        words: Texts of which one must be in a run that is for this worker; empty for any run.
    """

    def __init__(
        self,
        pid: int,
        channel: int,
        control: int,
        stdout: int,
        stderr: int,
        words: Sequence[bytes],
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.control = control
        self.stdout = stdout
        self.stderr = stderr
        self.words = tuple(words)

    def suits(self, line: bytes) -> bool:
        """Whether a run's line calls for what this worker has imported."""
        # A run with packages of its own may have others of these names.
        return not self.words or (
            b'"paths":["' not in line and any(word in line for word in self.words)
        )

    def close(self) -> None:
        """Let go of it."""
        for fd in (self.channel, self.control, self.stdout, self.stderr):
            os.close(fd)

    def dismiss(self) -> None:
        """Let go of it and end it."""
        self.close()
        kill(self.pid)


class Nursery:
    """The workers that wait, the more special first."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._waiting: List[Candidate] = []

    def fork_all(self, memory: Any) -> None:
        """Fork all that this image and its memory limit (bytes, or None) make sense for."""
        self._fork(imports.STANDARD, ())
        names = imports.installed(imports.DATA, worker.search_path())
        if names and (memory is None or memory >= imports.DATA_MEMORY_BYTES):
            words = [name.partition(".")[0].encode() for name in names]
            self._fork((*names, *imports.STANDARD), words)

    def look_after(self) -> None:
        """Notice who has ended.

        Raises:
            ChildProcessError: The one that any program could have had.
        """
        self._children.reap()
        for candidate in list(self._waiting):
            if candidate.pid not in self._children.spare:
                self._waiting.remove(candidate)
                # Its number may be another process's by now.
                candidate.close()
                if not candidate.words:
                    message = "the process that waited for the program has ended"
                    raise ChildProcessError(message)

    def choose(self, line: bytes) -> Candidate:
        """Return the worker for a run, which is the program's process from now on."""
        chosen = next(candidate for candidate in self._waiting if candidate.suits(line))
        self._children.spare.discard(chosen.pid)
        self._children.worker = chosen.pid
        # What it did to get ready is not the program's.
        self._children.cpu_seconds = -cpu_clock(chosen.pid)
        for candidate in self._waiting:
            if candidate is not chosen:
                candidate.dismiss()
        self._waiting.clear()
        return chosen

    def _fork(self, modules: Sequence[str], words: Sequence[bytes]) -> None:
        ours, theirs = _socket.socketpair()
        told, control = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for candidate in self._waiting:
                # Else this process would keep another's channel open.
                candidate.close()
            own = (theirs.detach(), told)
            worker.main(*own, out_write, err_write, self._children.is_init, modules)
        self._children.spare.add(pid)
        for fd in (theirs.detach(), told, out_write, err_write):
            os.close(fd)
        channel, control = private(ours.detach()), private(control)
        streams = private(out_read), private(err_read)
        self._waiting.insert(0, Candidate(pid, channel, control, *streams, words))
