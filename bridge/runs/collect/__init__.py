"""Collects a program's output, pictures, files, state and progress.

The guest may be hostile: each part bounds what it keeps, and no frame can fail the run.
"""

from __future__ import annotations

from bridge.artifacts import RunArtifacts
from bridge.callers.client import RunCaller
from bridge.guest.protocol.wire import File, Output, Progress, Shown, State
from bridge.model import Limits
from bridge.rpc.channel import Redact
from bridge.runs.collect.files import FilesOut
from bridge.runs.collect.pictures import ShownItems
from bridge.runs.collect.streams import Collected, Streams
from bridge.sessions.state import StateParts

Taken = Output | Shown | Progress | State | File


class Collector:
    """Collects one run's frames. Used once.

    Attributes:
        collecting: Whether files arrive, which is after the program's end.
        state: The parts of a session's state; None if the host did not ask for it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        run: RunCaller | None = None,
        artifacts: RunArtifacts | None = None,
        clear: Redact | None = None,
        saves: bool = False,
    ) -> None:
        """Make one.

        Args:
            run: Receives progress and output.
            artifacts: Stores files and long output; without it they are dropped.
            saves: Whether the host asked for a session's state.
        """
        self._run = run
        self._limits = limits
        self._artifacts = artifacts
        self._clear = clear
        # Most runs need one of these at most.
        self._streams: Streams | None = None
        self._shown: ShownItems | None = None
        self._files: FilesOut | None = None
        self.state = StateParts() if saves else None
        self.collecting = False

    async def add(self, frame: Taken) -> None:
        limits, artifacts, clear = self._limits, self._artifacts, self._clear
        match frame:
            case Output():
                if self._streams is None:
                    self._streams = Streams(limits, run=self._run, artifacts=artifacts, clear=clear)
                await self._streams.add(frame)
            case Shown():
                if self._shown is None:
                    self._shown = ShownItems(limits, artifacts=artifacts, clear=clear)
                await self._shown.add(frame)
            case Progress():
                if self._run is not None:
                    await self._run.advance(frame.done, frame.total, frame.message)
            case State():
                if self.state is not None:
                    self.state.add(frame)
            case File():
                self.collecting = True
                if self._files is None:
                    self._files = FilesOut(limits, artifacts=artifacts, clear=clear)
                await self._files.add(frame)

    async def finish(self) -> Collected:
        left = Collected()
        for part in (self._streams, self._shown, self._files):
            if part is not None:
                left = left.together(await part.finish())
        return left

    def give_up_files(self) -> None:
        """Stop waiting for files: reading them took too long."""
        if self._files is not None:
            self._files.give_up()

    def discard(self) -> None:
        for part in (self._streams, self._shown, self._files):
            if part is not None:
                part.discard()


__all__ = ["Collected", "Collector"]
